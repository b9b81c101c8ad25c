"""What a folder of a user's files had when a build listed it, so that a build which goes on notices a change.

The lists of images that a build keeps are used again only while the folder has the same files. To list a million local
files takes seconds; a bucket takes a request for each thousand, so there the time of the kept list is told instead.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass

from dataprep.dataset.documents import Count, decoder
from dataprep.errors import DataprepError, StorageError
from dataprep.sources.base import Dataset
from dataprep.sources.own import OwnDataset
from dataprep.storage import ObjectInfo, Storage
from dataprep.storage.base import TooLargeError

_MAX_BYTES = 100_000
"""Maximum size of a stored listing; the name of a file has 4 kB at most."""


@dataclass(frozen=True, slots=True)
class SourceListing:
    """The files of a source at one time."""

    files: Count
    names: str
    """Digest of all names and sizes."""
    times: str
    """Digest of the times at which the files were last written."""
    newest: str
    """The file that was written last."""


def list_source(source: Storage, dataset: Dataset) -> SourceListing | None:
    """List the files in which a dataset is found, on a disk; None where not all files below the source may belong to
    it, or they cannot be listed."""
    if not isinstance(dataset, OwnDataset) or not dataset.reads_all_files:
        return None
    try:
        return _listing(_files(source, dataset))
    except DataprepError:  # the dataset is found nevertheless, or the error is told when it is read
        return None


def store_listing(storage: Storage, name: str, listing: SourceListing) -> None:
    """Store a listing, once all lists of images are stored; one that is there stays."""
    with suppress(StorageError, FileNotFoundError):
        storage.create(name, json.dumps(asdict(listing)).encode())


def load_listing(storage: Storage, name: str) -> SourceListing | None:
    """Return a stored listing; None if it is missing or malformed."""
    try:
        return decoder(SourceListing).decode(storage.read(name, _MAX_BYTES))
    except (FileNotFoundError, TooLargeError, ValueError):
        return None


def _files(source: Storage, dataset: OwnDataset) -> Iterator[ObjectInfo]:
    if dataset.own is None or not dataset.own.archive:
        yield from source.list()
    elif (info := source.stat(dataset.own.archive)) is not None:
        yield info


def _listing(files: Iterator[ObjectInfo]) -> SourceListing:
    names, times = hashlib.sha256(), hashlib.sha256()
    count, newest = 0, (-1, "")
    for info in files:
        changed_ns = info.changed_ns or 0
        names.update(f"{info.name}\0{info.num_bytes}\0".encode("utf-8", "surrogateescape"))
        times.update(changed_ns.to_bytes(16, "little", signed=True))
        newest = max(newest, (changed_ns, info.name))
        count += 1
    shown = newest[1].encode("utf-8", "replace").decode()  # names on disk may be no UTF-8
    return SourceListing(count, names.hexdigest(), times.hexdigest(), shown)
