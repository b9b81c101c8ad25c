"""The check before the first byte of a bucket is read: whether reading from here costs money, whether that is allowed,
and whether reading a copy of the dataset costs less.

Google Cloud's metadata server, or the environment of GKE, says where this machine is. Outside Google Cloud no server
answers at its address, or one that does not identify as Google's: then the reader's place is unknown, no requests are
sent, and nothing is ever refused.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dataprep.cloud.prices import Prices, published_prices
from dataprep.cloud.region import PAID, UNKNOWN, Verdict, can_cache, describe, verdict
from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.replicas import Replica, read_replicas, same_dataset
from dataprep.errors import AccessError, DataprepError, StorageError, UndecidedError, UsageError
from dataprep.messages import shell_words
from dataprep.storage import ObjectInfo, Storage, open_storage
from dataprep.storage.gcs_location import DEADLINES, BucketLocation, bucket_location, running_caches

POLICIES = ("refuse", "warn", "off")
"""Advice when the transfer is charged: the verdict is PAID."""
SCHEME = "gs://"
ADVICE = "read it from its own region or copy it near the reader (dataprep check-region {words} shows what both cost)"
_log = logging.getLogger("dataprep")
# A bucket never moves, so its location is cached. A failure is not cached: the next caller tries again.
_location = functools.cache(bucket_location)
_running_caches = functools.cache(running_caches)
DEADLINE_S = 1.5
"""Deadline for all requests to the metadata server together: if it exists, it answers within milliseconds."""
METADATA_IP = "169.254.169.254"
"""Address of the metadata server, used instead of its name, whose look-up may take longer than the requests."""
_ROOT = "/computeMetadata/v1/instance/"
_HOSTS = "attributes/worker-network-endpoints"
_MAX_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Placement:
    """A bucket, its reader, and the verdict on reading."""

    url: str
    where: str | None
    """Zone or region of the reader; None if unknown."""
    bucket: BucketLocation | None
    """Location of the bucket; None if it could not be determined."""
    verdict: Verdict


def guard(url: str, policy: str, *, where: str | None = None, advice: str = ADVICE) -> Placement | None:
    """Check a URL before it is read. Reading from a disk costs nothing, so paths are not checked.

    Args:
        url: URL of a dataset or of original files.
        policy: One of POLICIES.
        where: The reader's zone or region; by default this machine's zone.
        advice: Advice for the user, with `{words}` as a placeholder.

    Returns:
        Locations and verdict; None if nothing was checked.

    Raises:
        UsageError: The policy is `refuse` and the transfer is charged, or there is no such policy.
    """
    if policy not in POLICIES:
        raise UsageError(f"the region policy must be one of {', '.join(POLICIES)}, got {policy!r}")
    if policy == "off" or "://" not in url or url.lower().startswith("file://"):
        return None
    where = where or this_zone()
    if where is None:
        return None
    try:
        found = placement_of(url, where)
    except AccessError:
        return None  # no such bucket, or no credentials: the reading will report it
    if found.verdict.kind == PAID and policy == "refuse":
        step = advice.format(words=shell_words(url))
        raise UsageError(f"{_paid(found)}; {step}, or accept the price with `region_policy` warn")
    if found.verdict.kind in (PAID, UNKNOWN):
        _warn(_paid(found) if found.verdict.kind == PAID else f"{url}: {found.verdict.reason}")
    return found


def placement_of(url: str, where: str | None, prices: Prices | None = None, *, every_cache: bool = False) -> Placement:
    """Find the location of a bucket, once in each process, and judge it; if it cannot be found, the verdict is UNKNOWN.

    Args:
        url: URL of the bucket, or of something in it.
        where: The reader's zone or region; None if unknown.
        prices: Prices to apply; None for the published ones.
        every_cache: List the bucket's Rapid Caches even if reading costs nothing without them.

    Raises:
        AccessError: The bucket does not exist, or there are no credentials.
    """
    if not is_bucket(url):
        return Placement(url, where, None, _verdict_elsewhere(url, prices or published_prices()))
    try:
        bucket = _location(bucket_name(url))
    except AccessError:
        raise
    except (StorageError, UndecidedError) as error:
        return Placement(url, where, None, Verdict(UNKNOWN, None, f"it is not known where the bucket is: {error}"))
    prices = prices or published_prices()
    found = verdict(bucket, where, prices)
    asked = every_cache or found.kind == PAID
    if asked and where is not None and can_cache(bucket, where) is not False:
        bucket = replace(bucket, caches=_caches(bucket_name(url)))
        found = verdict(bucket, where, prices)
    return Placement(url, where, bucket, found)


def _verdict_elsewhere(url: str, prices: Prices) -> Verdict:
    """Judge reading from a place outside Google Cloud, whose owner pays for what leaves it. Nothing is looked up."""
    is_aws = url.startswith("s3://") and not any(map(os.environ.get, ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")))
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    price = prices.find("internet_per_gib", "aws", region) if is_aws else None
    if price is None or os.environ.get("AWS_SKIP_SIGNATURE"):
        return Verdict(UNKNOWN, None, "it is not known what reading it from outside costs, or who pays: ask its owner")
    return Verdict(PAID, price, f"AWS charges for reading from {region} outside AWS")


def nearer_copy(found: Placement, prices: Prices, warn: Callable[[str], None]) -> tuple[Replica, Verdict] | None:
    """Return the copy of a dataset that is cheapest for its reader; None if no copy is cheaper than the dataset itself.

    Only `replicas.json` and the metadata of the manifests are requested from the dataset and its copies.

    Args:
        found: Locations of the dataset and its reader, with a known price.
        warn: Called with one line, with the reason, for each copy that is skipped, or for the complete list.
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
    """Return the URL itself, or the URL of a cheaper copy if reading it costs money; a copy is logged once in each
    process.

    Outside Google Cloud, with the policy `off`, and if reading the URL is free, no objects of any bucket are requested.
    """
    where = this_zone() if policy != "off" and is_bucket(url) else None
    if where is None:
        return url
    try:
        found = placement_of(url, where)
    except AccessError:
        return url  # no such bucket, or no credentials: the reading will report it
    copy = nearer_copy(found, published_prices(), _warn) if found.verdict.kind == PAID else None
    if copy is None:
        return url
    replica, judgement = copy
    _say(f"reading the copy at {replica.url} instead of {url}: {judgement.kind}, in {describe(replica.bucket)}")
    return replica.url


def is_bucket(url: str) -> bool:
    """Return whether a URL is one of Cloud Storage."""
    return url[: len(SCHEME)].lower() == SCHEME


def bucket_name(url: str) -> str:
    """Return the name of the bucket in a gs:// URL."""
    return url[len(SCHEME) :].partition("/")[0]


def _paid(found: Placement) -> str:
    where = f"is in {describe(found.bucket)} and is read from {found.where}" if found.bucket else found.verdict.reason
    return f"{found.url}{' ' if found.bucket else ': '}{where}: ${found.verdict.usd_per_gib:g} per GiB"


def _difference(url: str, original: ObjectInfo | None) -> str:
    """Return why a copy is not the same dataset; an empty text if it is."""
    try:
        if original is not None and is_bucket(url) and same_dataset(_with_deadline(url), original):
            return ""
    except DataprepError as error:
        return str(error)
    return f"a different {MANIFEST} exists there, or none; run dataprep replicate again"


def _with_deadline(url: str) -> Storage:
    """Open the storage at a URL with short deadlines, because a price is not worth waiting five minutes."""
    from dataprep.storage.gcs import GCSStorage

    return GCSStorage(url, DEADLINES) if is_bucket(url) else open_storage(url)


def _caches(bucket: str) -> tuple[str, ...] | None:
    """Return the zones of a bucket's Rapid Caches; None if they cannot be listed, which only makes the price higher."""
    try:
        return _running_caches(bucket)
    except StorageError:
        return None


@functools.cache
def _say(message: str) -> None:
    """Log a message, once in each process."""
    _log.warning("dataprep: %s", message)


def _warn(message: str) -> None:
    _say(f"warning: {message}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A machine in Google Cloud."""

    zone: str
    hosts: tuple[str, ...]
    """Names or addresses of all hosts of its TPU, in the order of their numbers; empty without a TPU."""


def this_zone() -> str | None:
    """Return the zone of this machine; None outside Google Cloud. Each process requests it once, within DEADLINE_S."""
    address = _address()
    return None if address is None else _zone_at(os.getpid(), address)


def this_machine() -> Machine | None:
    """Return the zone of this machine and the hosts of its TPU; None outside Google Cloud.

    On GKE an environment variable lists the hosts; with TPU_SKIP_MDS_QUERY=1 they are not requested from the metadata
    server.
    """
    address = _address()
    paths = ["zone"] if os.environ.get("TPU_SKIP_MDS_QUERY") == "1" else ["zone", _HOSTS]
    said = {} if address is None else _ask(address, *paths)
    if "zone" not in said:
        return None
    hosts = said.get(_HOSTS) or os.environ.get("TPU_WORKER_HOSTNAMES", "")
    return Machine(zone=said["zone"].rpartition("/")[2], hosts=endpoints(hosts))


def _address() -> str | None:
    """Return the address of the metadata server, found as by google-auth; None if it must not be used."""
    if os.environ.get("NO_GCE_CHECK", "").lower() == "true":
        return None
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"):
        if os.environ.get(name):
            return os.environ[name]
    return METADATA_IP


# The process is part of the key. The answer would also hold after a fork, but another request costs nothing.
@functools.lru_cache(maxsize=4)
def _zone_at(_pid: int, address: str) -> str | None:
    zone = _ask(address, "zone").get("zone")
    return zone.rpartition("/")[2] if zone else None


def _ask(address: str, *paths: str) -> dict[str, str]:
    """Return the metadata server's answer for each path; paths without an answer in time are left out."""
    said: dict[str, str] = {}
    # A thread, because no timeout limits the look-up of a name, or a server that sends byte by byte.
    thread = threading.Thread(target=_ask_in_turn, args=(address, paths, said), name="metadata", daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    return dict(said)


def _ask_in_turn(address: str, paths: Iterable[str], said: dict[str, str]) -> None:
    """Request each path, until an answer is not Google's or the connection breaks."""
    import http.client

    with contextlib.suppress(OSError, http.client.HTTPException, ValueError), contextlib.ExitStack() as opened:
        connection = opened.enter_context(contextlib.closing(http.client.HTTPConnection(address, timeout=DEADLINE_S)))
        for path in paths:
            connection.request("GET", _ROOT + path, headers={"Metadata-Flavor": "Google"})
            answer = connection.getresponse()
            text = answer.read(_MAX_ANSWER_BYTES).decode()
            if answer.headers.get("Metadata-Flavor") != "Google":
                return
            if answer.status == http.HTTPStatus.OK:
                said[path] = text.strip()


def endpoints(text: str) -> tuple[str, ...]:
    """Parse the hosts of `worker-network-endpoints`: an item is `name:uid:address`, or a name or address alone."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    return tuple(item.split(":", 2)[2] if item.count(":") == 2 else item for item in items)
