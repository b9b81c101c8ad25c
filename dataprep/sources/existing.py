"""A finished dataset as the originals of another one: every reference leads into one of its shards.

    manifest ─▶ index, shard by shard ─▶ references: file, offset and size of the image, its checksum, key, label
             └▶ records, without their images ─▶ annotations (stored_values.py)

Index and records may be a stranger's: no offset, size, key or label is used before it is compared with its bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, NamedTuple

from dataprep.dataset.adopted import is_adopted, refuse_changed
from dataprep.dataset.features import Features
from dataprep.dataset.index import Index, are_ranges_inside, open_index
from dataprep.dataset.manifest import MANIFEST, built_as
from dataprep.dataset.paths import RETRY_JSON
from dataprep.dataset.records import NO_LABEL, Enumeration, Manifest, SampleRef, ShardEntry, SourceFile, SplitManifest
from dataprep.dataset.spill import SpilledReferences
from dataprep.errors import FormatError, SourceError, UsageError
from dataprep.formats import FORMATS
from dataprep.formats.base import MAX_CLASS_NAME_CHARS, check_class_folder, is_key
from dataprep.formats.imagefolder import image_file, image_suffix
from dataprep.messages import quoted, shell_words, shown
from dataprep.sources.archives import Progress
from dataprep.sources.base import MAX_IMAGE_BYTES, READ_ALL, Reading, SplitFacts
from dataprep.sources.own import Converted, OwnData, OwnDataset, split_fault
from dataprep.sources.pictures import OpenedDataset, empty_split, in_val, uneven_classes
from dataprep.sources.stored_values import FirstSample, StoredValues, left_out, open_values, record_places
from dataprep.storage.base import Storage
from dataprep.storage.checksums import crc32c_hex

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_PASS = "-r0"
"""End of the keys of the first of several stored passes (`--repeat physical`)."""
ALL_FILES = "*"
"""Name in the plan's sources for an image folder whose files have no folder in common."""
_CHECKED_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Existing:
    """A finished dataset: its manifest, and where its index and its data are."""

    manifest: Manifest
    index: Storage
    data: Storage

    def split(self, name: str) -> SplitManifest:
        """Return a split. Raises UsageError, with those that exist, for an unknown one."""
        found = {split.name: split for split in self.manifest.splits}
        if name not in found:
            raise UsageError(f"--split {name}: {self.index.url} has {', '.join(found)}")
        if fault := split_fault(name):
            raise UsageError(f"{self.index.url}: {fault}; adopt it again with --split NAME=PATTERN")
        return found[name]


@dataclass(frozen=True, kw_only=True)
class ExistingDataset(Converted):
    """A finished dataset that is converted."""

    existing: Existing
    fields: tuple[str, ...] = ()
    """Fields of its samples that become features."""
    defaults: tuple[tuple[str, str], ...] = ()
    """Value for samples without one, by field."""
    all_fields: bool = False
    """Whether all fields become features."""

    def opened(self, root: Storage, reading: Reading = READ_ALL) -> OpenedDataset:
        """Return the dataset with the references and annotations of its splits, after a comparison of its files."""
        refuse_other_files(self.existing)
        manifest = self.existing.manifest
        values = open_values(manifest, root.url, self.fields, dict(self.defaults), all_fields=self.all_fields)
        stored = stored_splits(tuple(self.facts), self.own)
        readers = {split: _SplitReader(self.existing, root, split) for split in stored}
        for reader in readers.values():
            reader.read(values, reading.progress)
        features = values.features()
        found = {split: reader.enumeration(values, features) for split, reader in readers.items()}
        if stored != tuple(self.facts) and self.own is not None:
            found |= _parted(found["train"], self.own)
        first = next(reader.first for reader in readers.values())
        known = {item.name: getattr(self, item.name) for item in fields(OwnDataset)}
        notes = values.notes or left_out(manifest, root, first, features)
        uneven = () if self.own is None else uneven_classes(self.own, found)
        return OpenedDataset(**known | {"notes": (*notes, *uneven)}, found=found)


def split_facts(existing: Existing, splits: tuple[str, ...], own: OwnData | None = None) -> dict[str, SplitFacts]:
    """Return the facts that a conversion keeps: the passes of an epoch. A share of train that becomes val has one.

    Args:
        existing: The dataset.
        splits: Splits of the new dataset; all that exist if empty.
        own: What the user says about the new dataset.
    """
    names = splits or tuple(split.name for split in existing.manifest.splits)
    facts = {
        name: SplitFacts(samples=None, repeats=existing.split(name).repeats["count"])
        for name in stored_splits(names, own)
    }
    return facts if own is None or not own.val_fraction else facts | {"val": SplitFacts(samples=None)}


def stored_splits(splits: tuple[str, ...], own: OwnData | None) -> tuple[str, ...]:
    """Return the splits that are read for those of the new dataset: all but val, if it becomes a share of train."""
    return splits if own is None or not own.val_fraction else tuple(name for name in splits if name != "val")


def check_val_fraction(existing: Existing, splits: tuple[str, ...], val_fraction: float) -> None:
    """Raise UsageError if a dataset, or the splits of it that are converted, have no train, or a val already."""
    names = splits or tuple(split.name for split in existing.manifest.splits)
    if val_fraction and ("train" not in names or "val" in names):
        raise UsageError(
            f"--val-fraction {val_fraction:g}: the splits to convert are {', '.join(names)}; it needs train, and no "
            "val: choose them with --split"
        )


def _parted(train: Enumeration, own: OwnData) -> dict[str, Enumeration]:
    """Return train without the share that becomes val, and val. Raises UsageError if one has no sample."""
    refs = {"train": SpilledReferences(), "val": SpilledReferences()}
    for ref in train.refs:
        refs["val" if in_val(own, ref.key) else "train"].add(ref)
    counts = {name: len(found) for name, found in refs.items()}
    if not all(counts.values()):
        raise empty_split(own, counts["train"], counts["val"], (ref.key for ref in train.refs))
    return {name: replace(train, refs=found) for name, found in refs.items()}


def padded_classes(classes: tuple[str, ...]) -> tuple[str, ...]:
    """Return class names in sorted order: the numbers that `dataprep adopt` uses as names get leading zeros."""
    if classes == tuple(str(label) for label in range(len(classes))):
        return tuple(name.zfill(len(str(len(classes) - 1))) for name in classes)
    return classes


def refuse_other_files(existing: Existing) -> None:
    """Compare the files of a dataset with its manifest, without reading them.

    Raises:
        SourceError: A shard is missing or has another size, or in a bucket another CRC32C.
        UsageError: Adopted data have changed, or failed rows are being tried again.
    """
    manifest, index = existing.manifest, existing.index
    if index.stat(RETRY_JSON) is not None:
        raise UsageError(f"{index.url}: dataprep retry-failed is under way there; finish it first")
    if is_adopted(manifest):
        refuse_changed(index, existing.data, manifest, None)
        return
    names = FORMATS[manifest.format].stored_files
    shards = [shard for split in manifest.splits for shard in split.shards if names(shard["file"])]
    with ThreadPoolExecutor(_CHECKED_AT_ONCE, thread_name_prefix="dataprep-stat") as threads:
        for fault in filter(None, threads.map(lambda shard: _shard_fault(existing.data, shard), shards)):
            raise SourceError(
                f'{fault}; restore it, or see what else is wrong with "dataprep verify {shell_words(index.url)}"'
            )


def _shard_fault(data: Storage, shard: ShardEntry) -> str:
    info, where = data.stat(shard["file"]), data.url_of(shard["file"])
    if info is None:
        return f"{where}: missing, {MANIFEST} lists it"
    if info.num_bytes != shard["bytes"]:
        return f"{where}: {info.num_bytes:,} bytes, {MANIFEST} lists {shard['bytes']:,}"
    if info.crc32c is not None and shard["crc32c"] and info.crc32c != shard["crc32c"]:
        return f"{where}: CRC32C {crc32c_hex(info.crc32c)}, {MANIFEST} lists {crc32c_hex(shard['crc32c'])}"
    return ""


class _Row(NamedTuple):
    """One row of an index; the fields are its columns."""

    key: str
    label: int
    image_offset: int
    image_bytes: int
    image_crc32c: int | None
    file: str | None = None
    """File of the image, in an adopted image folder."""


class _SplitReader:
    """Reads the index of one split, and the values of its samples."""

    def __init__(self, existing: Existing, data: Storage, split: str) -> None:
        self._manifest, self._index, self._data = existing.manifest, existing.index, data
        self._split = existing.split(split)
        self._format = FORMATS[self._manifest.format]
        self._classes = self._checked_classes()
        self._refs = SpilledReferences()
        self._kept: list[bytes] = []
        """Values of each sample, as `StoredValues` keeps them until all types are known."""
        self._unlabelled = 0
        self._image_bytes = 0
        self.first: FirstSample | None = None
        """Shard of the first sample, and its place there; None if there is no sample."""

    def read(self, values: StoredValues, progress: Progress | None) -> None:
        """Read all shards of the split."""
        table = self._opened_index()
        for number, shard in enumerate(self._split.shards):
            rows = table.read_group(number)
            self._refuse_outside(rows, shard)
            if self.first is None and rows.num_rows:
                self.first = shard["file"], record_places(rows.slice(0, 1))[0]
            kept = values.of_shard(self._data, self._split, number, rows)
            for position, ref in enumerate(self._shard_refs(number, rows)):
                if self._is_of_first_pass(ref.key):
                    self._add(self._as_stored_once(ref), kept[position] if kept else b"", values)
            if progress is not None:
                progress(shard["file"], shard["bytes"], shard["bytes"])
        if self._unlabelled and self._classes:
            raise SourceError(
                f"{self._index.url}: {self._unlabelled:,} of {len(self._refs):,} samples of {self._split.name} have no "
                "label, the others have; adopt the data again with --overwrite --labels none"
            )

    def _add(self, ref: SampleRef, kept: bytes, values: StoredValues) -> None:
        """Add a reference; annotations whose types are not known yet are kept apart."""
        self._unlabelled += ref.label == NO_LABEL
        self._image_bytes += ref.num_bytes
        self._refs.add(replace(ref, annotations=kept) if values.are_annotations else ref)
        if kept and not values.are_annotations:
            self._kept.append(kept)

    def enumeration(self, values: StoredValues, features: Features) -> Enumeration:
        """Return the references, with their annotations."""
        refs = self._refs
        if features and not values.are_annotations:
            refs = SpilledReferences()
            for ref, kept in zip(self._refs, self._kept, strict=True):
                refs.add(replace(ref, annotations=values.annotations(kept)))
        return Enumeration(refs, self._sources(), padded_classes(self._classes), features, is_checked=True)

    def _opened_index(self) -> Index:
        try:
            table = open_index(self._index, self._split, compare=True)
        except FileNotFoundError as error:
            raise SourceError(f"{error}: missing, {MANIFEST} lists it; restore it") from error
        if table.group_rows != [shard["samples"] for shard in self._split.shards]:
            raise FormatError(
                f"{self._index_url}: its row groups are not those of the shards that "
                f"{MANIFEST} lists; build or adopt it again"
            )
        return table

    def _refuse_outside(self, rows: pa.Table, shard: ShardEntry) -> None:
        import numpy as np

        names = ("record_offset", "record_bytes", "image_offset", "image_bytes")
        columns = [np.array(rows.column(name).to_pylist(), np.int64) for name in names]
        inside = are_ranges_inside(*columns, shard_bytes=shard["bytes"])
        if not inside or (rows.num_rows and columns[3].max() > MAX_IMAGE_BYTES):
            raise FormatError(
                f"{self._index_url}: images outside of {shard['file']} of {shard['bytes']:,} bytes, or over "
                f"{MAX_IMAGE_BYTES:,} bytes; build or adopt it again"
            )

    def _shard_refs(self, number: int, rows: pa.Table) -> Iterator[SampleRef]:
        names = [name for name in _Row._fields if name in rows.column_names]
        columns = (rows.column(name).to_pylist() for name in names)
        return (self._ref(number, _Row(*row)) for row in zip(*columns, strict=True))

    def _ref(self, number: int, row: _Row) -> SampleRef:
        labels = range(len(self._classes)) if self._classes else range(NO_LABEL, 0)
        if not is_key(row.key) or (row.label not in labels and row.label != NO_LABEL):
            raise FormatError(
                f"{self._index_url}: key {shown(row.key)} with label {row.label}, expected a key of a sample and one "
                f"of {len(self._classes):,} classes; build or adopt it again"
            )
        file = self._file(number, row)
        return SampleRef(row.key, file, row.image_offset, row.image_bytes, row.label, crc32c=row.image_crc32c)

    def _file(self, number: int, row: _Row) -> str:
        """Return the file that holds an image."""
        if not self._format.one_file_per_image:
            return self._split.shards[number]["file"]
        if row.file is not None:
            return row.file
        class_name = "" if row.label == NO_LABEL else self._classes[row.label]
        return image_file(self._root, row.key, class_name, image_suffix(built_as(self._manifest)))

    @property
    def _index_url(self) -> str:
        return self._index.url_of(self._split.index["file"])

    @property
    def _root(self) -> str:
        return self._format.image_root(self._split.name, self._split.repeats["stored"])

    @property
    def _written(self) -> int:
        """Passes of which the index has a row for each sample."""
        return self._format.passes_written(self._split.repeats["stored"])

    def _is_of_first_pass(self, key: str) -> bool:
        return self._written == 1 or key.endswith(FIRST_PASS)

    def _as_stored_once(self, ref: SampleRef) -> SampleRef:
        return ref if self._written == 1 else replace(ref, key=ref.key.removesuffix(FIRST_PASS))

    def _sources(self) -> list[SourceFile]:
        """Return the shards; an image folder as a whole."""
        if not self._format.one_file_per_image:
            return [SourceFile(shard["file"], shard["bytes"]) for shard in self._split.shards]
        name = ALL_FILES if is_adopted(self._manifest) else self._root
        return [SourceFile(name, self._image_bytes)]

    def _checked_classes(self) -> tuple[str, ...]:
        for name in self._manifest.classes:
            try:
                check_class_folder(name)
            except FormatError as error:
                raise SourceError(f"{self._index.url}: {error}") from error
            if len(name) > MAX_CLASS_NAME_CHARS:
                raise SourceError(f"{self._index.url}: class {quoted(name)} of {len(name):,} characters; rename it")
        if len(set(self._manifest.classes)) < len(self._manifest.classes):
            raise SourceError(f"{self._index.url}: a class occurs twice in {MANIFEST}")
        return self._manifest.classes
