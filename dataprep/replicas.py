"""`replicas.json`: where copies of a dataset stand, and which of them to read. Not part of any digest, so that a copy
changes nothing. Every place has the whole list, itself included:

{"version": 1, "replicas": [{"url": "gs://…", "location": "EUROPE-WEST4", "location_type": "region",
                             "data_locations": []}]}
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dataprep.errors import AccessError, DataprepError, FormatError, StorageError
from dataprep.machine import this_zone
from dataprep.manifest import MANIFEST
from dataprep.placement import Placement, is_bucket, placement_of
from dataprep.prices import Prices, published_prices
from dataprep.region import PAID, Verdict, describe, verdict
from dataprep.storage import ObjectInfo, Storage, open_storage
from dataprep.storage.gcs_location import IMPATIENCE, BucketLocation

REPLICAS = "replicas.json"
VERSION = 1
# Each try is lost to another writer's success: this is how many may write at once.
RECORD_TRIES = 20
_log = logging.getLogger("dataprep")


@dataclass(frozen=True, slots=True)
class Replica:
    """A whole copy of a dataset."""

    url: str
    bucket: BucketLocation


def read_replicas(storage: Storage) -> list[Replica]:
    """The copies that a dataset knows of; none where there is no such file.

    Raises:
        FormatError: The file is not what it should be.
    """
    return _parsed(storage, _stored(storage))


def record_replicas(storage: Storage, replicas: Iterable[Replica], gone: Iterable[str] = ()) -> list[Replica]:
    """Add copies to the list at one place, which several may do at once.

    Args:
        gone: URLs that are taken off the list: no copy stands there any more.

    Returns:
        The list as it is there now.

    Raises:
        FormatError: The list that is there is not what it should be.
        StorageError: It cannot be written.
    """
    added, removed = list(replicas), set(gone)
    for _ in range(RECORD_TRIES):
        before = _stored(storage)
        merged = {each.url: each for each in (*_parsed(storage, before), *added) if each.url not in removed}
        listed = [merged[url] for url in sorted(merged)]
        data = _document(listed)
        if data == before or storage.replace(REPLICAS, data, before):
            return listed
    raise StorageError(f"{storage.url_of(REPLICAS)}: changed by others all the while; run the same command again")


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
        storage = _impatient(found.url)
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


def same_dataset(storage: Storage, original: ObjectInfo) -> bool:
    """Whether the manifest there is the one that is described, by its size and CRC32C."""
    there = storage.stat(MANIFEST)
    return there is not None and (there.num_bytes, there.crc32c) == (original.num_bytes, original.crc32c)


def _difference(url: str, original: ObjectInfo | None) -> str:
    """Why a copy is not the same dataset; empty where it is."""
    try:
        if original is not None and is_bucket(url) and same_dataset(_impatient(url), original):
            return ""
    except DataprepError as error:
        return str(error)
    return f"another {MANIFEST} stands there, or none; run dataprep replicate again"


def _impatient(url: str) -> Storage:
    """Nobody waits five minutes for a price."""
    from dataprep.storage.gcs import GCSStorage

    return GCSStorage(url, IMPATIENCE) if is_bucket(url) else open_storage(url)


def _stored(storage: Storage) -> bytes | None:
    try:
        return storage.read(REPLICAS)
    except FileNotFoundError:
        return None


def _parsed(storage: Storage, data: bytes | None) -> list[Replica]:
    if data is None:
        return []
    try:
        document = json.loads(data)
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']}, expected {VERSION}")
        return [_replica(entry) for entry in document["replicas"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(
            f"{storage.url_of(REPLICAS)}: no list of replicas ({error}); remove it and run dataprep replicate again"
        ) from error


def _replica(entry: dict[str, object]) -> Replica:
    places = entry.get("data_locations", [])
    if not isinstance(places, list):
        raise TypeError(f"data_locations {places!r}")
    return Replica(
        url=str(entry["url"]),
        bucket=BucketLocation(
            location=str(entry["location"]),
            location_type=str(entry["location_type"]),
            data_locations=tuple(str(place) for place in places),
        ),
    )


def _document(replicas: Iterable[Replica]) -> bytes:
    entries = [
        {
            "url": each.url,
            "location": each.bucket.location,
            "location_type": each.bucket.location_type,
            "data_locations": list(each.bucket.data_locations),
        }
        for each in replicas
    ]
    return json.dumps({"version": VERSION, "replicas": entries}, indent=1).encode() + b"\n"


def _warn(message: str) -> None:
    _say(f"warning: {message}")


@functools.cache
def _say(message: str) -> None:
    """Once a process."""
    _log.warning("dataprep: %s", message)
