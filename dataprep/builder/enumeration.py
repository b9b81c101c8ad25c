"""Lists the originals of a build, or takes the list that an earlier run kept under `_build/`.

`Enumerator` lists each split, `Keeping` stores the lists while shards are built, and a kept list is used again only if
`compare` finds the same originals.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dataprep.arrays import pa
from dataprep.builder.plan import BuildOptions, FileDigest, Progress, digest_of, fault_of
from dataprep.builder.references import refs_schema, stored_rows
from dataprep.dataset.documents import decoder
from dataprep.dataset.features import Feature, features_document
from dataprep.dataset.index import spool_row_groups
from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.paths import BUILD, PLAN_JSON
from dataprep.dataset.records import Enumeration, SourceFile
from dataprep.dataset.spill import REFERENCE_ROWS, SpilledReferences, spill_rows, spilled
from dataprep.errors import DataprepError, StorageError
from dataprep.messages import one_line
from dataprep.sources.base import MAX_SAMPLES, SPLITS, Dataset, OwnDataset, Reading
from dataprep.sources.folders import followed_links
from dataprep.sources.tables import table_sha256
from dataprep.sources.unpacked import unpacked_list, unpacked_name
from dataprep.storage import Storage, expected
from dataprep.storage.base import TooLargeError
from dataprep.storage.checksums import HashingWriter
from dataprep.storage.parquet import open_parquet


def list_source(source: Storage, dataset: Dataset) -> str | None:
    """Return a digest of names, sizes and versions of a dataset's files on disk; None if some files below the source
    cannot belong to the dataset, or the files cannot be listed."""
    if not isinstance(dataset, OwnDataset) or not dataset.reads_all_files:
        return None
    digest = hashlib.sha256()
    try:
        only = dataset.own.archive if dataset.own is not None else ""
        for info in filter(None, [source.stat(only)]) if only else source.list():
            listed = f"{info.name}\0{info.num_bytes}\0{info.version}\0"
            digest.update(listed.encode("utf-8", "surrogateescape"))
    except DataprepError:  # reading the dataset succeeds nevertheless, or reports the error
        return None
    return digest.hexdigest()


def load_note(storage: Storage, name: str) -> bytes:
    """Return the bytes that `Keeping.note` stored; empty if they are missing or too many."""
    try:
        return storage.read(name, MAX_NOTE_BYTES)
    except (FileNotFoundError, TooLargeError):
        return b""


def load_splits(storage: Storage, name: str) -> tuple[str, ...]:
    """Return the stored names of splits; empty if they are missing or malformed."""
    try:
        splits = decoder(tuple[str, ...]).decode(load_note(storage, name))
    except ValueError:
        return ()
    return splits if set(splits) <= set(SPLITS) else ()


MAX_ENUMERATION_BYTES = 64 << 30
"""Maximum size of an enumeration, which is read in batches; ImageNet's, of 1.3 million images, has 100 MB."""
READ_BYTES = 1 << 20
"""Bytes of each column that are read at a time."""
Spooled = tuple[Path, HashingWriter]
"""A spool file, and its digests."""
_DAMAGE = (ValueError, KeyError, TypeError, OSError, MemoryError, OverflowError, TooLargeError)
MAX_DIGEST_BYTES = 1_000
"""Maximum size of the file with an enumeration's digest."""
MAX_NOTE_BYTES = 10_000
"""Maximum size of the file with the names of splits, or with the digest of a listing."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An enumeration that an earlier run has stored."""

    enumeration: Enumeration
    listed: str
    """Time of the listing, for messages."""
    has_folders: bool
    """Whether images are in folders; archives and tables are compared."""


@dataclass(frozen=True, slots=True)
class _Digest(FileDigest):
    listed: str


def enumeration_file(
    source: Storage, dataset: Dataset, split: str, classes: tuple[str, ...] | None, *, allow_partial: bool
) -> str:
    """Return the name of a kept enumeration's file, a hash of all that determines it except sizes of archives."""
    facts: list[object] = [source.url, dataset.name, classes, allow_partial]
    if isinstance(dataset, OwnDataset) and dataset.own is not None:
        facts.append(asdict(dataset.own))
        facts.extend([dataset.identity] if dataset.identity else [])
    if dataset.features:
        facts.append(features_document(dataset.features))
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return f"{BUILD}/source-{split}-{key}.parquet"


def spool_enumeration(storage: Storage, name: str, enumeration: Enumeration) -> Spooled | None:
    """Write an enumeration to a spool file, so that reruns need not list the originals; None if that fails."""
    sources = json.dumps([asdict(source) for source in enumeration.sources])
    annotated = bool(enumeration.features)
    metadata = {"sources": sources, "classes": json.dumps(enumeration.classes)}
    if annotated:
        metadata["features"] = json.dumps(features_document(enumeration.features))
    schema = refs_schema(with_annotations=annotated, with_crc32c=enumeration.is_checked).with_metadata(metadata)
    # If the name is taken or the folder was removed in the meantime, a rerun walks the archives again.
    with suppress(StorageError, FileNotFoundError):
        batches = spilled(enumeration.refs).batches()
        return spool_row_groups(storage, name, (stored_rows(batch, schema) for batch in batches), schema)
    return None


def publish_enumeration(storage: Storage, name: str, spooled: Spooled | None) -> None:
    """Publish the file that `spool_enumeration` wrote; an existing enumeration stays."""
    if spooled is None:
        return
    spool, written = spooled
    with suppress(StorageError, FileNotFoundError):
        storage.publish(spool, name, written.crc32c)
        listed = {"listed": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
        storage.create(_digest_file(name), json.dumps(digest_of(written).document() | listed).encode())


def forget_enumeration(storage: Storage, name: str) -> None:
    storage.delete(_digest_file(name))
    storage.delete(name)


def _digest_file(name: str) -> str:
    return name.replace(".parquet", ".json")


def splits_file(source: Storage, dataset: Dataset) -> str:
    """Return the name of the file with the splits that were found in a user's own data."""
    return enumeration_file(source, dataset, "splits", None, allow_partial=False).replace(".parquet", ".json")


def listing_file(source: Storage, dataset: Dataset) -> str:
    """Return the name of the file with a source's listing, which is compared before kept enumerations are used."""
    key = splits_file(source, dataset).rpartition("-")[2]
    return f"{BUILD}/listing-{key}"


def load_enumeration(
    storage: Storage, source: Storage, name: str, log: Callable[[str], None], *, folders_are_same: bool = True
) -> Kept | None:
    """Return the stored enumeration, or None if there is no valid one.

    An enumeration is removed if it is damaged or has no digest, if an archive or a table has changed, or if the images
    of a table are not unpacked any more. An enumeration with images in folders is used only if `folders_are_same`.
    """
    info = storage.stat(name)
    if info is None:
        return None
    try:
        if info.num_bytes > MAX_ENUMERATION_BYTES:
            raise ValueError(f"{info.num_bytes:,} bytes")
        digest = decoder(_Digest).decode(storage.read(_digest_file(name), MAX_DIGEST_BYTES))
        fault = fault_of(storage, name, digest)
        if fault is not None:
            raise ValueError(fault)
        found = _read_enumeration(storage, name)
    except FileNotFoundError:  # its writer was killed before it stored the digest, or it was removed in the meantime
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
        elif (info.num_bytes, info.version) != (file.num_bytes, file.version or info.version):
            forget_enumeration(storage, name)
            return None
        is_other = file.sha256 and table_sha256(source, file.name, file.num_bytes) != file.sha256
        if is_other or (file.is_unpacked and unpacked_list(storage, unpacked_name(file)) is None):
            forget_enumeration(storage, name)
            return None
    return Kept(found, digest.listed, has_folders)


def _read_enumeration(storage: Storage, name: str) -> Enumeration:
    """Read an enumeration in batches. Raises ValueError, KeyError, and pyarrow's errors for damaged files."""
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


class Keeping:
    """Stores the lists of originals in the output of a build; in a bucket, while the build runs.

    Args:
        storage: The output; None stores nothing.
        is_empty: The output was empty when the build began.
    """

    def __init__(self, storage: Storage | None, *, is_empty: bool = False) -> None:
        self.storage = storage
        self._is_empty = is_empty
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="dataprep-keep")
        self._under_way: list[Future[None]] = []

    def is_under_way(self) -> bool:
        """Return whether a build owns the output."""
        return self.storage is not None and self.storage.stat(PLAN_JSON) is not None

    @property
    def earlier(self) -> Storage | None:
        """Storage where an earlier run may have stored lists; None if there was none."""
        return None if self._is_empty else self.storage

    def is_allowed(self) -> bool:
        """Return whether files may be stored; a finished dataset must not get any."""
        return self.storage is not None and (self._is_empty or self.storage.stat(MANIFEST) is None)

    def keep(self, name: str, enumeration: Enumeration, *, afresh: bool) -> None:
        """Store a list under a name; `afresh` first removes the existing one."""
        storage = self.storage
        if storage is None or (storage.is_local and not self.is_allowed()):
            return
        spooled = spool_enumeration(storage, name, enumeration)
        if storage.is_local:
            self._put(storage, name, spooled, afresh=afresh)
        else:
            self._under_way.append(self._threads.submit(self._put_if_allowed, storage, name, spooled, afresh=afresh))

    def note(self, name: str, data: bytes) -> None:
        """Store a few bytes after all lists are stored; an existing file stays."""
        if self.storage is not None:
            self._under_way.append(self._threads.submit(self._note, self.storage, name, data))
            if self.storage.is_local:
                self._under_way[-1].result()

    def wait(self) -> None:
        while self._under_way:
            self._under_way.pop().result()

    def _note(self, storage: Storage, name: str, data: bytes) -> None:
        with suppress(StorageError, FileNotFoundError):
            storage.create(name, data)

    def _put_if_allowed(self, storage: Storage, name: str, spooled: Spooled | None, *, afresh: bool) -> None:
        # A list only saves time in a rerun, so this error must not fail a build that is complete.
        with suppress(StorageError):
            if storage.stat(MANIFEST) is None:
                self._put(storage, name, spooled, afresh=afresh)

    def _put(self, storage: Storage, name: str, spooled: Spooled | None, *, afresh: bool) -> None:
        if afresh:
            forget_enumeration(storage, name)
        publish_enumeration(storage, name, spooled)


@dataclass(kw_only=True, slots=True)
class Enumerator:
    """Lists the originals of a build's splits, or reads the list that an earlier run stored."""

    dataset: Dataset
    """The dataset; a user's own data is opened when it is first needed."""
    source: Storage
    keeping: Keeping
    options: BuildOptions
    progress: Progress
    overwrite: bool
    max_reject_ratio: float
    _listing: str | None = None
    """Digest of the source's listing, if the complete source is compared and differs from an earlier run's listing."""
    _listing_file: str = ""
    _is_compared: bool = False
    """Whether the complete source was compared with the earlier run's listing.

    If so, and `_listing` is None, images in folders are known to be unchanged.
    """
    _may_keep: bool = True
    """Whether lists may be stored; lists of a build under way stay unchanged."""
    _told: bool = False
    """Whether the user was told that an earlier list is used."""
    _found: dict[str, Enumeration] = field(default_factory=dict)
    """Lists of this run, by the names of their files."""

    def __post_init__(self) -> None:
        self.source = expected(self.source)

    @property
    def afresh(self) -> bool:
        """Whether lists of an earlier run are ignored, because a user's own files have changed or may have changed."""
        return (self.overwrite and self.options.own is not None) or self._listing is not None

    def compare(self) -> None:
        """Compare the files of a local source with an earlier run's listing."""
        if not self.source.is_local or not self.keeping.is_allowed():
            return
        found = list_source(self.source, self.dataset)
        if found is None:
            return
        name = self._listing_file = listing_file(self.source, self.dataset)
        earlier = self.keeping.earlier
        before = b"" if earlier is None else load_note(earlier, name)
        self._is_compared = True
        if found.encode() == before and not self.overwrite:
            return
        self._listing = found
        self._may_keep = self.overwrite or not before or not self.keeping.is_under_way()
        if self._may_keep and earlier is not None:
            earlier.delete(name)

    def note(self) -> None:
        """Store the digest of the source's listing, after all lists are stored."""
        if self._listing is not None and self._may_keep:
            self.keeping.note(self._listing_file, self._listing.encode())

    def splits(self) -> tuple[str, ...]:
        """Return the splits to build: the requested ones, or all splits found in a user's own data."""
        if self.options.splits or self.dataset.is_published:
            return self.options.splits
        name, earlier = splits_file(self.source, self.dataset), self.keeping.earlier
        kept = () if earlier is None or self.afresh else load_splits(earlier, name)
        if kept:
            return kept
        splits = self._opened(may_keep=self.keeping.is_allowed()).splits
        if self._may_keep and self.keeping.is_allowed():
            if earlier is not None:
                earlier.delete(name)
            for split in splits:
                self(split, None)
            self.keeping.note(name, json.dumps(splits).encode())
        return splits

    def _opened(self, *, may_keep: bool) -> Dataset:
        # `overwrite` removes files only when the plan is known, but images are unpacked before.
        unpack_to = self.keeping.storage if self.overwrite or may_keep else None
        reading = Reading(
            progress=self.progress.reading,
            unpack_to=unpack_to,
            splits=self.options.splits,
            max_reject_ratio=self.max_reject_ratio,
        )
        if self.options.own is None or not self.options.own.archive:
            for line in followed_links(self.source):
                self.progress.log(line)
        opened = self.dataset.opened(self.source, reading)
        if opened is not self.dataset:
            for note in opened.notes:
                self.progress.log(note)
            self.dataset = opened
        return opened

    def __call__(self, split: str, classes: tuple[str, ...] | None) -> Enumeration:
        """Return the enumeration of a split; `classes` is the class list, if another split's enumeration has it."""
        allow_partial = self.options.allow_partial
        if not self.dataset.is_published:
            classes = None  # classes are found over all splits together
        name = enumeration_file(self.source, self.dataset, split, classes, allow_partial=allow_partial)
        if name not in self._found:
            self._found[name] = self._enumeration(name, split, classes)
        return self._found[name]

    def _enumeration(self, name: str, split: str, classes: tuple[str, ...] | None) -> Enumeration:
        with ThreadPoolExecutor(2) as threads:  # over a network concurrently
            may_keep = threads.submit(self.keeping.is_allowed)
            if not self.source.is_local:
                threads.submit(self._expect_archives)
            kept, earlier = None, self.keeping.earlier
            if earlier is not None and not self.afresh:
                are_same = self._is_compared or self.options.converted is not None
                are_same = are_same or not (self.source.is_local or self.overwrite)
                kept = load_enumeration(earlier, self.source, name, self.progress.log, folders_are_same=are_same)
        if kept is not None:
            self._tell_of(kept)
            return kept.enumeration
        enumeration = self._opened(may_keep=may_keep.result()).enumerate(
            self.source,
            split,
            allow_partial=self.options.allow_partial,
            classes=classes,
            progress=self.progress.reading,
        )
        for note in enumeration.notes:
            self.progress.log(note)
        if self._may_keep and may_keep.result():
            self.keeping.keep(name, enumeration, afresh=self.afresh)
        return enumeration

    def _tell_of(self, kept: Kept) -> None:
        """Tell the user, once, that a kept list of folders is used without comparison."""
        if self._told or self._is_compared or not kept.has_folders or self.options.converted is not None:
            return
        self._told = True
        self.progress.log(
            f"continuing with the listing of {kept.listed}; pictures added since are not seen (`overwrite` lists again)"
        )

    def _expect_archives(self) -> None:
        """Look up the archives of a published dataset before it is opened."""
        from dataprep.storage.readonly import Expected

        if isinstance(self.source, Expected):
            archives = (archive for facts in self.dataset.facts.values() for archive in facts.archives)
            self.source.expect([archive.name for archive in archives])
