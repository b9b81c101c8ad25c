"""The one check before a bucket's first byte: does reading it from here cost money, is that allowed, and does a copy of
the dataset cost less?

Outside Google Cloud it is not known where the reader is: then no bucket is asked, and nothing is ever refused.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass

from dataprep.cloud.machine import this_zone
from dataprep.cloud.prices import Prices, published_prices
from dataprep.cloud.region import PAID, UNKNOWN, Verdict, describe, verdict
from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.replicas import Replica, read_replicas, same_dataset
from dataprep.errors import AccessError, DataprepError, StorageError, UndecidedError, UsageError
from dataprep.storage import ObjectInfo, Storage, open_storage
from dataprep.storage.gcs_location import DEADLINES, BucketLocation, bucket_location

POLICIES = ("refuse", "warn", "off")
"""What to do when reading is known to cost money."""
SCHEME = "gs://"
ADVICE = "read it from its own region or copy it beside the reader (dataprep check-region {url} shows what both cost)"
_log = logging.getLogger("dataprep")


@dataclass(frozen=True, slots=True)
class Placement:
    """A bucket, its reader, and what lies between them."""

    url: str
    where: str | None
    """Zone or region of the reader; None where it is not known."""
    bucket: BucketLocation | None
    """Place of the bucket; None where it could not be found out."""
    verdict: Verdict


def guard(url: str, policy: str, *, where: str | None = None, advice: str = ADVICE) -> Placement | None:
    """Check a URL before anything of it is read; outside buckets reading costs nothing, and nothing is asked.

    Args:
        url: URL of a dataset or of original files.
        policy: One of POLICIES.
        where: The reader's zone or region; by default this machine's zone.
        advice: What to do instead; `{url}` stands for the URL.

    Returns:
        Places and verdict; None where there was nothing to find out.

    Raises:
        UsageError: The policy is `refuse` and the reading is known to cost money, or there is no such policy.
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


def nearer_copy(found: Placement, prices: Prices, warn: Callable[[str], None]) -> tuple[Replica, Verdict] | None:
    """The copy of the same dataset that the same reader reads for the least, where that is less than now.

    Of the dataset and its copies `replicas.json` and the manifests' digests are asked for, and nothing else.

    Args:
        found: Where the dataset and its reader are, the price known.
        warn: Told, in one line, why a copy or the whole list is passed over.
    """
    price = found.verdict.usd_per_gib
    if price is None:
        return None
    try:
        storage = _with_deadline(found.url)
        judged = [(each, verdict(each.bucket, found.where, prices)) for each in read_replicas(storage)]
        cheaper = [pair for pair in judged if pair[1].usd_per_gib is not None and pair[1].usd_per_gib < price]
        original = storage.stat(MANIFEST) if cheaper else None
    except DataprepError as error:
        warn(str(error))
        return None
    for replica, judgement in sorted(cheaper, key=lambda pair: pair[1].usd_per_gib or 0.0):
        trouble = _difference(replica.url, original)
        if not trouble:
            return replica, judgement
        warn(f"{replica.url}, a copy of {found.url}, is not read: {trouble}")
    return None


def url_to_read(url: str, policy: str) -> str:
    """The URL itself, or the copy beside this machine where reading the URL would be paid; once a process it is said.

    Outside Google Cloud, with the policy `off`, and where reading the URL is free, nothing is asked of any bucket's
    objects.
    """
    where = this_zone() if policy != "off" and is_bucket(url) else None
    if where is None:
        return url
    try:
        found = placement_of(url, where)
    except AccessError:
        return url  # no such bucket, or no credentials: the reading itself says so
    copy = nearer_copy(found, published_prices(), _warn) if found.verdict.kind == PAID else None
    if copy is None:
        return url
    replica, judgement = copy
    _say(f"reading the copy at {replica.url} in place of {url}: {judgement.kind}, in {describe(replica.bucket)}")
    return replica.url


def is_bucket(url: str) -> bool:
    """Return whether a URL is one of Cloud Storage."""
    return url[: len(SCHEME)].lower() == SCHEME


def bucket_name(url: str) -> str:
    """Return the name of the bucket in a gs:// URL."""
    return url[len(SCHEME) :].partition("/")[0]


def _paid(found: Placement) -> str:
    place = describe(found.bucket) if found.bucket else "an unknown place"
    return f"{found.url} lies in {place} and is read from {found.where}: ${found.verdict.usd_per_gib:g} per GiB"


def _difference(url: str, original: ObjectInfo | None) -> str:
    """Why a copy is not the same dataset; empty where it is."""
    try:
        if original is not None and is_bucket(url) and same_dataset(_with_deadline(url), original):
            return ""
    except DataprepError as error:
        return str(error)
    return f"another {MANIFEST} stands there, or none; run dataprep replicate again"


def _with_deadline(url: str) -> Storage:
    """Open the storage at a URL with short deadlines, because nobody waits five minutes for a price."""
    from dataprep.storage.gcs import GCSStorage

    return GCSStorage(url, DEADLINES) if is_bucket(url) else open_storage(url)


# A bucket never moves, so that its place is kept. A failure is not: the next caller asks again.
_location = functools.cache(bucket_location)


@functools.cache
def _say(message: str) -> None:
    """Log a message once a process."""
    _log.warning("dataprep: %s", message)


def _warn(message: str) -> None:
    _say(f"warning: {message}")
