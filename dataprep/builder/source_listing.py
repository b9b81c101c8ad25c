"""What a folder of a user's files had when a build listed it, so that a build which goes on notices a change.

The lists of images that a build keeps are used again only while the folder has the same files. To list a million local
files takes seconds; a bucket takes a request for each thousand, so there the time of the kept list is told instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress

from dataprep.errors import DataprepError, StorageError
from dataprep.sources.base import Dataset, OwnDataset
from dataprep.storage import ObjectInfo, Storage
from dataprep.storage.base import TooLargeError

_MAX_BYTES = 100


def list_source(source: Storage, dataset: Dataset) -> str | None:
    """Return a digest of names, sizes and versions of the files in which a dataset is found, on a disk; None where not
    all files below the source may belong to it, or they cannot be listed."""
    if not isinstance(dataset, OwnDataset) or not dataset.reads_all_files:
        return None
    digest = hashlib.sha256()
    try:
        for info in _files(source, dataset):
            listed = f"{info.name}\0{info.num_bytes}\0{info.version}\0"
            digest.update(listed.encode("utf-8", "surrogateescape"))
    except DataprepError:  # the dataset is found nevertheless, or the error is told when it is read
        return None
    return digest.hexdigest()


def store_listing(storage: Storage, name: str, listing: str) -> None:
    """Store a listing, once all lists of images are stored; one that is there stays."""
    with suppress(StorageError, FileNotFoundError):
        storage.create(name, listing.encode())


def load_listing(storage: Storage, name: str) -> str | None:
    """Return a stored listing; None if it is missing or malformed."""
    try:
        return storage.read(name, _MAX_BYTES).decode("ascii", "replace")
    except (FileNotFoundError, TooLargeError):
        return None


def _files(source: Storage, dataset: OwnDataset) -> Iterator[ObjectInfo]:
    if dataset.own is None or not dataset.own.archive:
        yield from source.list()
    elif (info := source.stat(dataset.own.archive)) is not None:
        yield info
