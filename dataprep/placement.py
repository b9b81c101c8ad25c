"""The one check before a bucket's first byte: does reading it from here cost money, and is that allowed?

Outside Google Cloud nobody knows where the reader is: then no bucket is asked, and nothing is ever refused.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass

from dataprep.errors import AccessError, StorageError, UndecidedError, UsageError
from dataprep.machine import this_zone
from dataprep.prices import Prices, published_prices
from dataprep.region import PAID, UNKNOWN, Verdict, describe, verdict
from dataprep.storage.gcs_location import BucketLocation, bucket_location

POLICIES = ("refuse", "warn", "off")
"""What happens when a reading is known to cost money."""
SCHEME = "gs://"
ADVICE = "read it from its own region or copy it beside the reader (dataprep check-region {url} shows what both cost)"
_log = logging.getLogger("dataprep")


@dataclass(frozen=True, slots=True)
class Placement:
    """A bucket, its reader, and what lies between them."""

    url: str
    where: str | None
    """The reader's zone or region; None where it is not known."""
    bucket: BucketLocation | None
    """None where it could not be found out."""
    verdict: Verdict


def guard(url: str, policy: str, *, where: str | None = None, advice: str = ADVICE) -> Placement | None:
    """Check a URL before anything of it is read; what is no bucket costs nothing, and nothing is asked.

    Args:
        url: Of a dataset or of original files.
        policy: One of POLICIES.
        where: The reader's zone or region; by default this machine's zone.
        advice: What to do instead; `{url}` stands for the URL.

    Returns:
        What was found; None where there was nothing to find.

    Raises:
        UsageError: The policy is `refuse` and the reading is known to be paid, or the policy is none.
    """
    if policy not in POLICIES:
        raise UsageError(f"the region policy must be one of {', '.join(POLICIES)}, got {policy!r}")
    if policy == "off" or not is_bucket(url):
        return None
    where = where or this_zone()
    if where is None:
        return None
    try:
        found = placement_of(url, where)
    except AccessError:
        return None  # no such bucket, or no credentials: the reading itself says so
    if found.verdict.kind == PAID and policy == "refuse":
        step = advice.format(url=url)
        raise UsageError(f"{_paid(found)}; {step}, or accept the price with --region-policy warn")
    if found.verdict.kind in (PAID, UNKNOWN):
        _warn(_paid(found) if found.verdict.kind == PAID else f"{url}: {found.verdict.reason}")
    return found


def placement_of(url: str, where: str | None, prices: Prices | None = None) -> Placement:
    """Ask where a bucket is, once a process, and compare; what cannot be found out is UNKNOWN.

    Raises:
        AccessError: The bucket does not exist, or there are no credentials.
    """
    try:
        bucket = _location(bucket_name(url))
    except AccessError:
        raise
    except (StorageError, UndecidedError) as error:
        return Placement(url, where, None, Verdict(UNKNOWN, None, f"it is not known where the bucket is: {error}"))
    return Placement(url, where, bucket, verdict(bucket, where, prices or published_prices()))


def is_bucket(url: str) -> bool:
    """Whether a URL is of Cloud Storage."""
    return url[: len(SCHEME)].lower() == SCHEME


def bucket_name(url: str) -> str:
    """The bucket in a gs:// URL."""
    return url[len(SCHEME) :].partition("/")[0]


def _paid(found: Placement) -> str:
    place = describe(found.bucket) if found.bucket else "an unknown place"
    return f"{found.url} lies in {place} and is read from {found.where}: ${found.verdict.usd_per_gib:g} per GiB"


# A bucket never moves. What fails is not kept: the next caller asks again.
_location = functools.cache(bucket_location)


@functools.cache
def _warn(message: str) -> None:
    """Once a process."""
    _log.warning("dataprep: warning: %s", message)
