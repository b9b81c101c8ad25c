"""Enumerations of originals, kept under `_build/` so that no rerun walks the archives again."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict

import msgspec

from dataprep.build.references import refs_from_table, refs_schema, refs_table
from dataprep.dataset.features import Feature, features_document
from dataprep.dataset.paths import BUILD
from dataprep.dataset.records import Enumeration, SourceFile
from dataprep.dataset.row_groups import publish_row_groups
from dataprep.errors import StorageError
from dataprep.sources.base import Dataset
from dataprep.sources.own import SPLITS, OwnDataset
from dataprep.storage import Storage
from dataprep.storage.base import TooLargeError
from dataprep.storage.parquet import table_in

MAX_ENUMERATION_BYTES = 2 << 30
"""Maximum size of an enumeration; that of the 1.3 million images of ImageNet has 100 MB."""
MAX_SPLITS_BYTES = 10_000
"""Maximum size of the file with the names of splits."""


def enumeration_file(
    source: Storage, dataset: Dataset, split: str, classes: tuple[str, ...] | None, *, allow_partial: bool
) -> str:
    """Return the file of a kept enumeration; its name depends on everything that decides the content, except the
    archives' sizes."""
    facts: list[object] = [source.url, dataset.name, classes, allow_partial]
    if isinstance(dataset, OwnDataset) and dataset.own is not None:
        facts.append(asdict(dataset.own))
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return f"{BUILD}/source-{split}-{key}.parquet"


def store_enumeration(storage: Storage, name: str, enumeration: Enumeration) -> None:
    """Store an enumeration to save reruns time; an existing one stays."""
    sources = json.dumps([asdict(source) for source in enumeration.sources])
    annotated = bool(enumeration.features)
    metadata = {"sources": sources, "classes": json.dumps(enumeration.classes)}
    if annotated:
        metadata["features"] = json.dumps(features_document(enumeration.features))
    schema = refs_schema(with_annotations=annotated).with_metadata(metadata)
    # If the name is taken or the folder was removed meanwhile, a rerun walks the archives again.
    with suppress(StorageError, FileNotFoundError):
        refs = refs_table(enumeration.refs, with_annotations=annotated)
        publish_row_groups(storage, name, iter([refs]), schema)


def splits_file(source: Storage, dataset: Dataset) -> str:
    """Return the file of the names of the splits that were found in a user's own data."""
    return enumeration_file(source, dataset, "splits", None, allow_partial=False).replace(".parquet", ".json")


def store_splits(storage: Storage, name: str, splits: tuple[str, ...]) -> None:
    """Store the names of all splits, once the enumeration of each is stored."""
    with suppress(StorageError, FileNotFoundError):
        storage.create(name, json.dumps(splits).encode())


def load_splits(storage: Storage, name: str) -> tuple[str, ...]:
    """Return the stored names of splits; empty if they are missing or malformed."""
    try:
        splits = msgspec.json.decode(storage.read(name, MAX_SPLITS_BYTES), type=tuple[str, ...])
    except (FileNotFoundError, TooLargeError, ValueError):
        return ()
    return splits if set(splits) <= set(SPLITS) else ()


def load_enumeration(storage: Storage, source: Storage, name: str) -> Enumeration | None:
    """Return the stored enumeration, or None if there is no valid one.

    A damaged enumeration, and one with an archive whose size has changed, is removed.
    """
    import pyarrow as pa

    try:
        data = storage.read(name, MAX_ENUMERATION_BYTES)
    except FileNotFoundError:
        return None
    except TooLargeError:
        storage.delete(name)
        return None
    try:
        table = table_in(data)
        sources = msgspec.json.decode(table.schema.metadata[b"sources"], type=list[SourceFile])
        classes = msgspec.json.decode(table.schema.metadata[b"classes"], type=tuple[str, ...])
        features = msgspec.json.decode(table.schema.metadata.get(b"features", b"{}"), type=dict[str, Feature])
        found = Enumeration(refs_from_table(table), sources, classes, features)
    except (pa.ArrowException, ValueError, KeyError, TypeError, OSError):
        storage.delete(name)
        return None
    for file in sources:
        info = source.stat(file.name)  # None: an unpacked folder, whose files are checked as they are read
        if info is not None and info.num_bytes != file.num_bytes:
            storage.delete(name)
            return None
    return found
