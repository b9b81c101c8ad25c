"""`replicas.json`: where copies of a dataset are.

No digest includes the file, because copying changes it. Every copy has the complete list, itself included:

{"version": 1, "replicas": [{"url": "gs://…", "location": "EUROPE-WEST4", "location_type": "region",
                             "data_locations": []}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass

from dataprep.dataset.documents import decode
from dataprep.dataset.manifest import MANIFEST
from dataprep.errors import FormatError, StorageError
from dataprep.storage import ObjectInfo, Storage
from dataprep.storage.base import read_bounded
from dataprep.storage.gcs_location import BucketLocation

REPLICAS = "replicas.json"
VERSION = 1
MAX_BYTES = 2**20
"""Maximum size of the list: some thousand copies."""
RECORD_TRIES = 20
"""Attempts to replace the list; an attempt fails only if another writer has succeeded since the list was read."""
_ADVICE = "remove it and run dataprep replicate again"


@dataclass(frozen=True, slots=True)
class Replica:
    """A complete copy of a dataset."""

    url: str
    bucket: BucketLocation


@dataclass(frozen=True, slots=True)
class _Entry:
    """A replica as the file lists it."""

    url: str
    location: str
    location_type: str
    data_locations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Document:
    """`replicas.json`."""

    version: int
    replicas: list[_Entry]


def read_replicas(storage: Storage) -> list[Replica]:
    """Read the list of a dataset's copies; empty if there is no such file. Raises FormatError if it is malformed."""
    return _parsed(storage, _stored(storage))


def record_replicas(storage: Storage, replicas: Iterable[Replica], gone: Iterable[str] = ()) -> list[Replica]:
    """Add copies to the list in one storage, remove the URLs of those that are `gone`, and return the list; several
    processes may do so at once. Raises FormatError if the stored list is malformed, and StorageError if the list cannot
    be written."""
    added, removed = list(replicas), set(gone)
    for _ in range(RECORD_TRIES):
        before = _stored(storage)
        merged = {each.url: each for each in (*_parsed(storage, before), *added) if each.url not in removed}
        listed = [merged[url] for url in sorted(merged)]
        data = _document(listed)
        if data == before or storage.replace(REPLICAS, data, before):
            return listed
    raise StorageError(f"{storage.url_of(REPLICAS)}: other processes kept changing it; run the same command again")


def same_dataset(storage: Storage, original: ObjectInfo) -> bool:
    """Return whether the manifest in a storage has the same size and CRC32C as the original's."""
    found = storage.stat(MANIFEST)
    return found is not None and (found.num_bytes, found.crc32c) == (original.num_bytes, original.crc32c)


def _stored(storage: Storage) -> bytes | None:
    return read_bounded(storage, REPLICAS, MAX_BYTES, advice=_ADVICE)


def _parsed(storage: Storage, data: bytes | None) -> list[Replica]:
    if data is None:
        return []
    where = f"{storage.url_of(REPLICAS)}: not a list of replicas"
    document = decode(data, _Document, where=where, advice=_ADVICE)
    if document.version != VERSION:
        raise FormatError(f"{where}: version {document.version}, expected {VERSION}; {_ADVICE}")
    return [
        Replica(url, BucketLocation(location=location, location_type=kind, data_locations=data_locations))
        for url, location, kind, data_locations in map(astuple, document.replicas)
    ]


def _document(replicas: Iterable[Replica]) -> bytes:
    places = ((each.url, each.bucket) for each in replicas)
    entries = [_Entry(url, each.location, each.location_type, each.data_locations) for url, each in places]
    return json.dumps(asdict(_Document(VERSION, entries)), indent=1).encode() + b"\n"
