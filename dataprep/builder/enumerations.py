"""Enumerations of originals, kept under `_build/` so that no rerun walks the archives again."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from dataprep.builder.digest import FileDigest, digest_of, fault_of
from dataprep.builder.references import refs_schema, stored_rows
from dataprep.dataset.documents import decoder
from dataprep.dataset.features import Feature, features_document
from dataprep.dataset.index import spool_row_groups
from dataprep.dataset.paths import BUILD
from dataprep.dataset.records import Enumeration, SourceFile
from dataprep.dataset.spill import REFERENCE_ROWS, SpilledReferences, spill_rows, spilled
from dataprep.errors import StorageError
from dataprep.messages import one_line
from dataprep.sources.base import MAX_SAMPLES, SPLITS, Dataset, OwnDataset
from dataprep.sources.tables import table_sha256
from dataprep.sources.unpacked import unpacked_list, unpacked_name
from dataprep.storage import Storage
from dataprep.storage.base import TooLargeError
from dataprep.storage.checksums import HashingWriter
from dataprep.storage.parquet import open_parquet

MAX_ENUMERATION_BYTES = 64 << 30
"""Maximum size of an enumeration, which is read in batches; that of the 1.3 million images of ImageNet has 100 MB."""
READ_BYTES = 1 << 20
"""Bytes of each column that are read at a time."""
Spooled = tuple[Path, HashingWriter]
"""A spool file, and its digests."""
_DAMAGE = (ValueError, KeyError, TypeError, OSError, MemoryError, OverflowError, TooLargeError)
MAX_DIGEST_BYTES = 1_000
"""Maximum size of the file with an enumeration's digest."""
MAX_SPLITS_BYTES = 10_000
"""Maximum size of the file with the names of splits."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An enumeration that an earlier run has stored."""

    enumeration: Enumeration
    listed: str
    """Time of the listing, for messages; empty in one of an earlier version."""
    has_folders: bool
    """Whether images lie in folders, and not only in archives and tables, which are compared."""


@dataclass(frozen=True, slots=True)
class _Digest(FileDigest):
    listed: str = ""


def enumeration_file(
    source: Storage, dataset: Dataset, split: str, classes: tuple[str, ...] | None, *, allow_partial: bool
) -> str:
    """Return the file of a kept enumeration; its name depends on everything that decides the content, except the
    archives' sizes."""
    facts: list[object] = [source.url, dataset.name, classes, allow_partial]
    if isinstance(dataset, OwnDataset) and dataset.own is not None:
        facts.append(asdict(dataset.own))
        facts.extend([dataset.identity] if dataset.identity else [])
    if dataset.features:
        facts.append(features_document(dataset.features))
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return f"{BUILD}/source-{split}-{key}.parquet"


def spool_enumeration(storage: Storage, name: str, enumeration: Enumeration) -> Spooled | None:
    """Write an enumeration, which saves reruns time, to a spool file; None if there is no place for it."""
    sources = json.dumps([asdict(source) for source in enumeration.sources])
    annotated = bool(enumeration.features)
    metadata = {"sources": sources, "classes": json.dumps(enumeration.classes)}
    if annotated:
        metadata["features"] = json.dumps(features_document(enumeration.features))
    schema = refs_schema(with_annotations=annotated, with_crc32c=enumeration.is_checked).with_metadata(metadata)
    # If the name is taken or the folder was removed meanwhile, a rerun walks the archives again.
    with suppress(StorageError, FileNotFoundError):
        batches = spilled(enumeration.refs).batches()
        return spool_row_groups(storage, name, (stored_rows(batch, schema) for batch in batches), schema)
    return None


def publish_enumeration(storage: Storage, name: str, spooled: Spooled | None) -> None:
    """Publish what `spool_enumeration` has written; an enumeration that is there stays."""
    if spooled is None:
        return
    spool, written = spooled
    with suppress(StorageError, FileNotFoundError):
        storage.publish(spool, name, written.crc32c)
        listed = {"listed": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
        storage.create(_digest_file(name), json.dumps(digest_of(written).document() | listed).encode())


def forget_enumeration(storage: Storage, name: str) -> None:
    """Remove an enumeration."""
    storage.delete(_digest_file(name))
    storage.delete(name)


def _digest_file(name: str) -> str:
    return name.replace(".parquet", ".json")


def splits_file(source: Storage, dataset: Dataset) -> str:
    """Return the file of the names of the splits that were found in a user's own data."""
    return enumeration_file(source, dataset, "splits", None, allow_partial=False).replace(".parquet", ".json")


def listing_file(source: Storage, dataset: Dataset) -> str:
    """Return the file of the listing of a source that is compared before kept enumerations are used."""
    key = splits_file(source, dataset).rpartition("-")[2]
    return f"{BUILD}/listing-{key}"


def store_splits(storage: Storage, name: str, splits: tuple[str, ...]) -> None:
    """Store the names of all splits, once the enumeration of each is stored."""
    with suppress(StorageError, FileNotFoundError):
        storage.create(name, json.dumps(splits).encode())


def load_splits(storage: Storage, name: str) -> tuple[str, ...]:
    """Return the stored names of splits; empty if they are missing or malformed."""
    try:
        splits = decoder(tuple[str, ...]).decode(storage.read(name, MAX_SPLITS_BYTES))
    except (FileNotFoundError, TooLargeError, ValueError):
        return ()
    return splits if set(splits) <= set(SPLITS) else ()


def load_enumeration(
    storage: Storage, source: Storage, name: str, log: Callable[[str], None], *, folders_are_same: bool = True
) -> Kept | None:
    """Return the stored enumeration, or None if there is no valid one.

    An enumeration is removed that is damaged, or that an earlier version stored without a digest, and one with an
    archive that has changed, a table that has changed, or a table whose images are not unpacked any more. One
    with images in folders is not used unless these are known to be the same.

    Args:
        storage: Where enumerations are kept.
        source: The originals.
        name: Name of the enumeration.
        log: Called with a line about a damaged enumeration.
        folders_are_same: Whether images in folders need no comparison.
    """
    info = storage.stat(name)
    if info is None:
        return None
    import pyarrow as pa  # takes as long as an answer of a bucket, which most builds need not wait for

    try:
        if info.num_bytes > MAX_ENUMERATION_BYTES:
            raise ValueError(f"{info.num_bytes:,} bytes")
        digest = decoder(_Digest).decode(storage.read(_digest_file(name), MAX_DIGEST_BYTES))
        fault = fault_of(storage, name, digest)
        if fault is not None:
            raise ValueError(fault)
        found = _read_enumeration(storage, name)
    except FileNotFoundError:  # an earlier version stored no digest, or the enumeration was removed meanwhile
        forget_enumeration(storage, name)
        return None
    except (*_DAMAGE, pa.ArrowException) as error:
        log(f"warning: {storage.url_of(name)} is damaged ({one_line(error)}); the originals are listed again")
        forget_enumeration(storage, name)
        return None
    has_folders = False
    for file in found.sources:
        info = source.stat(file.name)
        if info is None:
            has_folders = True
            if not folders_are_same:
                return None
        if info is not None and (info.num_bytes, info.version) != (file.num_bytes, file.version or info.version):
            forget_enumeration(storage, name)
            return None
        if not _is_same_table(storage, source, file):
            forget_enumeration(storage, name)
            return None
    return Kept(found, digest.listed, has_folders)


def _is_same_table(storage: Storage, source: Storage, file: SourceFile) -> bool:
    """Return whether a table still has its digest, and its images are unpacked; True for other files."""
    if file.sha256 and table_sha256(source, file.name, file.num_bytes) != file.sha256:
        return False
    return not file.is_unpacked or unpacked_list(storage, unpacked_name(file)) is not None


def _read_enumeration(storage: Storage, name: str) -> Enumeration:
    """Read an enumeration in batches. Raises what pyarrow raises for damaged files, ValueError, KeyError."""
    file = open_parquet(storage, name, buffer_bytes=READ_BYTES)
    metadata = file.schema_arrow.metadata
    sources = decoder(list[SourceFile]).decode(metadata[b"sources"])
    classes = decoder(tuple[str, ...]).decode(metadata[b"classes"])
    features = decoder(dict[str, Feature]).decode(metadata.get(b"features", b"{}"))
    if file.metadata.num_rows > MAX_SAMPLES:
        raise ValueError(f"{file.metadata.num_rows:,} rows")
    refs = SpilledReferences()
    for batch in file.iter_batches(REFERENCE_ROWS):
        batch.validate(full=True)
        refs.add_rows(spill_rows(batch))
    return Enumeration(refs, sources, classes, features, is_checked="crc32c" in file.schema_arrow.names)
