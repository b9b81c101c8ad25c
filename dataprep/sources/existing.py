"""A finished dataset as the originals of a new one: every reference is a byte range of one of its shards.

    manifest ─▶ index, shard by shard ─▶ references: file, offset and size of the image, its checksum, key, label
             └▶ records, without their images ─▶ annotations, class names

Index and records may come from a stranger: no offset, size, key or label is used before its bounds are checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from dataprep.arrays import np, pa
from dataprep.dataset import records
from dataprep.dataset.adopted import is_adopted, refuse_changed
from dataprep.dataset.column_files import ColumnType, read_column, read_values
from dataprep.dataset.features import (
    MAX_ANNOTATION_BYTES,
    NO_FEATURES,
    RESERVED,
    Feature,
    Features,
    Values,
    annotation_values,
    annotations_json,
    feature_faults,
    member_fault,
    name_fault,
)
from dataprep.dataset.index import ANNOTATIONS, Index, are_ranges_inside, open_index
from dataprep.dataset.manifest import MANIFEST, built_as
from dataprep.dataset.paths import CHANGE_JSON
from dataprep.dataset.spill import SpilledReferences
from dataprep.errors import DataprepError, FormatError, SourceError, UsageError
from dataprep.formats import FORMATS
from dataprep.formats.base import is_key
from dataprep.formats.fields import CAPTIONS, check_fields, member_suffixes, read_all_fields, read_fields
from dataprep.formats.imagefolder import annotations_of, image_file, image_suffix, metadata_file
from dataprep.formats.pictures import UnusableImageError, open_image
from dataprep.messages import printable, shell_words, shown
from dataprep.sources import base
from dataprep.sources.archives import Progress
from dataprep.sources.pictures import ColumnError, Columns, OpenedDataset, empty_split, in_val, uneven_classes
from dataprep.sources.tables import Row
from dataprep.storage.base import Storage, read_ahead
from dataprep.storage.checksums import crc32c_hex, crc32c_of

FIRST_PASS = "-r0"
"""End of the keys of the first of several stored passes (`repeat` physical)."""
_CHECKED_AT_ONCE = 32
MAX_REST_BYTES = 1 << 26
"""Maximum size of a record without its image."""
_SHOWN = 12
"""Maximum number of fields in a message."""
_OF_EVERY_SAMPLE = frozenset({"height", "key", "width"})
"""Fields of samples that every dataset writes itself."""
_COMPARED = 8
"""Number of samples whose `height`, `key` and `width` are compared with key and image: fields with another meaning,
such as the sides before a resize, differ in most samples."""
_OF_CLASSES = frozenset({"class_name", "cls", "label"})
"""Fields with labels; a dataset's labels come only from its index."""
_INTEGER = re.compile(r"-?\d{1,18}")
_RENAME = "to keep it, rename it in the original data, and build again"
_LEAVE_OUT = "give no `field` {words} to leave it out"
_KEEP_OTHERS = "leave it out, with `field` NAME for every other field"


@dataclass(frozen=True, slots=True)
class Existing:
    """A finished dataset: its manifest, and the places of its index and its data."""

    manifest: records.Manifest
    index: Storage
    data: Storage

    def split(self, name: str) -> records.SplitManifest:
        """Return a split. Raises UsageError, with the existing ones, for an unknown split."""
        found = {split.name: split for split in self.manifest.splits}
        if name not in found:
            raise UsageError(f"`split` {name}: {self.index.url} has {', '.join(found)}")
        if fault := base.split_fault(name):
            raise UsageError(f"{self.index.url}: {fault}; adopt it again with `split` NAME=PATTERN")
        return found[name]


@dataclass(frozen=True, kw_only=True)
class ExistingDataset(base.Converted):
    """A finished dataset that is converted."""

    existing: Existing
    wanted: base.Conversion

    def opened(self, root: Storage, reading: base.Reading = base.READ_ALL) -> OpenedDataset:
        """Compare the dataset's files, and return it with the references and annotations of its splits."""
        refuse_other_files(self.existing)
        manifest = self.existing.manifest
        values = open_values(manifest, root.url, self.wanted)
        if self.wanted.columns:
            values = _WithColumns(values, self.existing, self.wanted.columns)
        stored = stored_splits(tuple(self.facts), self.own)
        readers = {split: SplitReader(self.existing, root, split) for split in stored}
        for reader in readers.values():
            reader.read(values, reading.progress)
        features = values.features()
        found = {split: reader.enumeration(values, features) for split, reader in readers.items()}
        if stored != tuple(self.facts) and self.own is not None:
            found |= _parted(found["train"], self.own)
        first = next(reader.first for reader in readers.values())
        notes = values.notes or left_out(manifest, root, first, features)
        uneven = () if self.own is None else uneven_classes(self.own, found)
        return OpenedDataset.of(self, found, notes=(*notes, *uneven))


def split_facts(
    existing: Existing, splits: tuple[str, ...], own: base.OwnData | None = None
) -> dict[str, base.SplitFacts]:
    """Return the facts that a conversion keeps: the passes of an epoch, 1 for a share of train that becomes val."""
    names = splits or tuple(split.name for split in existing.manifest.splits)
    facts = {
        name: base.SplitFacts(samples=None, repeats=existing.split(name).repeats["count"])
        for name in stored_splits(names, own)
    }
    return facts if own is None or not own.val_fraction else facts | {"val": base.SplitFacts(samples=None)}


def stored_splits(splits: tuple[str, ...], own: base.OwnData | None) -> tuple[str, ...]:
    """Return the splits to read for the new dataset's splits: all except val, if val becomes a share of train."""
    return splits if own is None or not own.val_fraction else tuple(name for name in splits if name != "val")


def check_val_fraction(existing: Existing, splits: tuple[str, ...], val_fraction: float) -> None:
    """Raise UsageError if the dataset, or the splits to convert, lack train or already have val."""
    names = splits or tuple(split.name for split in existing.manifest.splits)
    if val_fraction and ("train" not in names or "val" in names):
        raise UsageError(
            f"`val_fraction` {val_fraction:g}: the splits to convert are {', '.join(names)}; it needs train, and no "
            "val: choose them with `split`"
        )


def padded_classes(classes: tuple[str, ...]) -> tuple[str, ...]:
    """Return class names that stay in order when sorted: numbers from `dataprep adopt` get leading zeros."""
    if classes == tuple(str(label) for label in range(len(classes))):
        return tuple(name.zfill(len(str(len(classes) - 1))) for name in classes)
    return classes


def refuse_other_files(existing: Existing) -> None:
    """Compare the files of a dataset with its manifest, without reading them. Raises SourceError if a shard is missing
    or has another size, or in a bucket another CRC32C, and UsageError if adopted data have changed, or `retry-failed`
    is running."""
    manifest, index = existing.manifest, existing.index
    if index.stat(CHANGE_JSON) is not None:
        raise UsageError(f"{index.url}: dataprep retry-failed is under way there; finish it first")
    if is_adopted(manifest):
        refuse_changed(index, existing.data, manifest, None)
        return
    names = FORMATS[manifest.format].stored_files
    shards = [shard for split in manifest.splits for shard in split.shards if names(shard["file"])]
    for fault in filter(None, read_ahead(partial(_shard_fault, existing.data), shards, _CHECKED_AT_ONCE)):
        raise SourceError(
            f'{fault}; restore it, or see what else is wrong with "dataprep verify {shell_words(index.url)}"'
        )


class RecordPlace(NamedTuple):
    """Place of one sample: its shard, and columns of the index."""

    file: str
    key: str
    record_offset: int
    record_bytes: int
    image_offset: int
    image_bytes: int
    label: int


def record_places(file: str, rows: pa.Table) -> list[RecordPlace]:
    """Return the places of samples of a shard, from their rows of the index."""
    columns = (rows.column(name).to_pylist() for name in RecordPlace._fields[1:])
    return [RecordPlace(file, *place) for place in zip(*columns, strict=True)]


class StoredValues:
    """Reads the values of all samples of a dataset, then returns their features and annotations; this base has none."""

    are_annotations = True
    """Whether `of_shard` returns final annotations, because all types are known."""
    notes: tuple[str, ...] = ()
    """Lines for the user about fields that are kept or left out, once the features are known."""

    def of_shard(self, data: Storage, split: records.SplitManifest, number: int, rows: pa.Table) -> list[bytes]:
        """Return the values of the samples of the split's shard `number` as `annotations` takes them; empty if samples
        have none. Shards must be read in order. Raises SourceError if values are missing, damaged, or do not have the
        checksums of the index."""
        return []

    def features(self) -> Features:
        """Return the features, once all shards were read. Raises SourceError if a field has values of two types."""
        return NO_FEATURES

    def annotations(self, kept: bytes) -> bytes:
        """Return the annotations of one sample, once all shards were read."""
        return kept


def open_values(manifest: records.Manifest, url: str, wanted: base.Conversion) -> StoredValues:
    """Return a reader of a dataset's annotations, or of named fields, or of all fields. Raises UsageError if the format
    cannot hold fields, and SourceError if a field cannot be the name of a feature."""
    if manifest.features:
        return _Annotations(manifest)
    if wanted.all_fields:
        return _AllFields(manifest, dict(wanted.defaults))
    if not wanted.fields:
        return StoredValues()
    check_fields(manifest.format, wanted.fields)
    for name in wanted.fields:
        if fault := name_fault(name):
            raise SourceError(
                f"`field` {name}: {fault}{_way_to_classes(name, url)}; {_LEAVE_OUT.format(words=shell_words(name))}"
            )
    return _Fields(manifest, wanted.fields, dict(wanted.defaults))


def left_out(manifest: records.Manifest, data: Storage, first: RecordPlace | None, taken: Features) -> tuple[str, ...]:
    """Return notes about the fields of a dataset's first sample that are not taken; empty if all are."""
    if manifest.features or first is None or FORMATS[manifest.format].one_file_per_image:
        return ()
    record = _without_image(data, first)
    fields = _fields_of(manifest, data, record, first)
    names = sorted(fields.keys() - RESERVED - taken.keys())
    usable = [name for name in names if not name_fault(name)]
    notes: tuple[str, ...] = ()
    if usable:
        more = ", ..." if len(usable) > _SHOWN else ""
        notes = (f"its samples also have {', '.join(usable[:_SHOWN])}{more}; `field` NAME keeps a field as a feature",)
    return notes + _warnings(_name_faults(fields, data.url) | _replaced(manifest, data, record, first))


def _parted(train: records.Enumeration, own: base.OwnData) -> dict[str, records.Enumeration]:
    """Divide train into val and the rest. Raises UsageError if one of them has no sample."""
    refs = {"train": SpilledReferences(), "val": SpilledReferences()}
    for ref in train.refs:
        refs["val" if in_val(own, ref.key) else "train"].add(ref)
    counts = {name: len(found) for name, found in refs.items()}
    if not all(counts.values()):
        raise empty_split(own, counts["train"], counts["val"], (ref.key for ref in train.refs))
    return {name: replace(train, refs=found) for name, found in refs.items()}


def _shard_fault(data: Storage, shard: records.ShardEntry) -> str:
    info, where = data.stat(shard["file"]), data.url_of(shard["file"])
    if info is None:
        return f"{where}: missing, but {MANIFEST} lists it"
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


class SplitReader:
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
        self.first: RecordPlace | None = None
        """The first sample; None if there is none."""

    def read(self, values: StoredValues, progress: Progress | None) -> None:
        table = self._opened_index()
        for number, shard in enumerate(self._split.shards):
            rows = table.read_group(number)
            self._refuse_outside(rows, shard)
            if self.first is None and rows.num_rows:
                (self.first,) = record_places(shard["file"], rows.slice(0, 1))
            kept = values.of_shard(self._data, self._split, number, rows)
            for position, ref in enumerate(self.shard_refs(number, rows)):
                if self._written > 1:
                    if not ref.key.endswith(FIRST_PASS):
                        continue
                    ref = ref._replace(key=ref.key.removesuffix(FIRST_PASS))
                self._add(ref, kept[position] if kept else b"", values)
            if progress is not None:
                progress(shard["file"], shard["bytes"], shard["bytes"])
        if self._unlabelled and self._classes:
            raise SourceError(
                f"{self._index.url}: {self._unlabelled:,} of {len(self._refs):,} samples of {self._split.name} have no "
                "label, expected one for all; adopt the data again with `overwrite` `labels` none"
            )

    def _add(self, ref: records.SampleRef, kept: bytes, values: StoredValues) -> None:
        """Add a reference; annotations whose types are not known yet are kept separately."""
        self._unlabelled += ref.label == records.NO_LABEL
        self._image_bytes += ref.num_bytes
        self._refs.add(ref._replace(annotations=kept) if values.are_annotations else ref)
        if kept and not values.are_annotations:
            self._kept.append(kept)

    def enumeration(self, values: StoredValues, features: Features) -> records.Enumeration:
        """Return the references, with their annotations."""
        refs = self._refs
        if features and not values.are_annotations:
            refs = SpilledReferences()
            for ref, kept in zip(self._refs, self._kept, strict=True):
                refs.add(ref._replace(annotations=values.annotations(kept)))
        return records.Enumeration(refs, self._sources(), padded_classes(self._classes), features, is_checked=True)

    def _opened_index(self) -> Index:
        try:
            table = open_index(self._index, self._split, compare=True)
        except FileNotFoundError as error:
            raise SourceError(f"{error}: missing, but {MANIFEST} lists it; restore it") from error
        if table.group_rows != [shard["samples"] for shard in self._split.shards]:
            raise FormatError(
                f"{self._index_url}: its row groups do not match the shards that "
                f"{MANIFEST} lists; build or adopt it again"
            )
        return table

    def _refuse_outside(self, rows: pa.Table, shard: records.ShardEntry) -> None:
        names = ("record_offset", "record_bytes", "image_offset", "image_bytes")
        columns = [np.array(rows.column(name).to_pylist(), np.int64) for name in names]
        inside = are_ranges_inside(*columns, shard_bytes=shard["bytes"])
        if not inside or (rows.num_rows and columns[3].max() > base.MAX_IMAGE_BYTES):
            raise FormatError(
                f"{self._index_url}: images outside of {shard['file']} of {shard['bytes']:,} bytes, or over "
                f"{base.MAX_IMAGE_BYTES:,} bytes; build or adopt it again"
            )

    def shard_refs(self, number: int, rows: pa.Table) -> Iterator[records.SampleRef]:
        """Yield references to samples of a shard, from their rows of the index."""
        names = [name for name in _Row._fields if name in rows.column_names]
        columns = (rows.column(name).to_pylist() for name in names)
        return (self._ref(number, _Row(*row)) for row in zip(*columns, strict=True))

    def _ref(self, number: int, row: _Row) -> records.SampleRef:
        labels = range(len(self._classes)) if self._classes else range(records.NO_LABEL, 0)
        if not is_key(row.key) or (row.label not in labels and row.label != records.NO_LABEL):
            raise FormatError(
                f"{self._index_url}: key {shown(row.key)} with label {row.label}, expected a key of a sample and one "
                f"of {len(self._classes):,} classes; build or adopt it again"
            )
        file = self._file(number, row)
        return records.SampleRef(row.key, file, row.image_offset, row.image_bytes, row.label, crc32c=row.image_crc32c)

    def _file(self, number: int, row: _Row) -> str:
        """Return the file that holds an image."""
        if not self._format.one_file_per_image:
            return self._split.shards[number]["file"]
        if row.file is not None:
            return row.file
        class_name = "" if row.label == records.NO_LABEL else self._classes[row.label]
        return image_file(self._root, row.key, class_name, image_suffix(built_as(self._manifest)))

    @property
    def _index_url(self) -> str:
        return self._index.url_of(self._split.index["file"])

    @property
    def _root(self) -> str:
        return self._format.image_root(self._split.name, self._split.repeats["stored"])

    @property
    def _written(self) -> int:
        """Number of passes with their own rows in the index."""
        return self._format.passes_written(self._split.repeats["stored"])

    def _sources(self) -> list[records.SourceFile]:
        """Return the shards; an image folder is one source."""
        if not self._format.one_file_per_image:
            return [records.SourceFile(shard["file"], shard["bytes"]) for shard in self._split.shards]
        name = records.ALL_FILES if is_adopted(self._manifest) else self._root
        return [records.SourceFile(name, self._image_bytes)]

    def _checked_classes(self) -> tuple[str, ...]:
        for name in self._manifest.classes:
            if fault := base.class_fault(name):
                raise SourceError(f"{self._index.url}: {fault}")
        if len(set(self._manifest.classes)) < len(self._manifest.classes):
            raise SourceError(f"{self._index.url}: a class occurs twice in {MANIFEST}")
        return self._manifest.classes


class _Annotations(StoredValues):
    """Annotations of a dataset with features; each is compared with its checksum in the index."""

    def __init__(self, manifest: records.Manifest) -> None:
        self._manifest = manifest
        self._lines: Iterator[bytes] = iter(())
        self._next = "", 0
        """Split and shard whose lines come next."""

    def of_shard(self, data: Storage, split: records.SplitManifest, number: int, rows: pa.Table) -> list[bytes]:
        if FORMATS[self._manifest.format].one_file_per_image:
            found = self._from_lines(data, split, number)
        else:
            places = record_places(split.shards[number]["file"], rows)
            found = list(read_ahead(partial(self._from_record, data), places, data.reads_in_flight))
        sums, keys = rows.column(ANNOTATIONS).to_pylist(), rows.column("key").to_pylist()
        for key, text, crc32c in zip(keys, found, sums, strict=True):
            if crc32c_of(text) != crc32c:
                raise SourceError(
                    f"{data.url}: the annotations of {shown(key)} in {split.name} do not have the checksum of the "
                    'index; restore the dataset, or see what else is wrong with "dataprep verify"'
                )
        return found

    def _from_record(self, data: Storage, place: RecordPlace) -> bytes:
        features, record = self._manifest.features, _without_image(data, place)
        try:
            return annotations_json(features, read_fields(self._manifest.format, record, tuple(features), features))
        except FormatError as error:
            raise _damaged(data, place, error) from error

    def _from_lines(self, data: Storage, split: records.SplitManifest, number: int) -> list[bytes]:
        kept = split.kept if isinstance(split, records.ViewedSplit) else None
        stored = kept.stored if kept else [shard["samples"] for shard in split.shards]
        name, following = self._next
        if name != split.name or number < following:
            self._lines, following = _lines(data, split), 0
        self._next = split.name, number + 1
        for _ in range(sum(stored[following:number])):
            next(self._lines, b"")
        lines = [next(self._lines, b"") for _ in range(stored[number])]
        found = []
        for line in [lines[at] for at in kept.numbers(number)] if kept else lines:
            try:
                found.append(annotations_of(line, self._manifest.features)[1])
            except FormatError as error:
                raise SourceError(f"{data.url_of(metadata_file(split.name))}: {error}; restore it") from error
        return found

    def features(self) -> Features:
        return self._manifest.features


def stored_fields(
    manifest: records.Manifest, data: Storage, split: records.SplitManifest, names: tuple[str, ...]
) -> Callable[[int, pa.Table], list[Values]]:
    """Return a function that reads fields of a shard's samples, given its number and its rows of the index; shards are
    read fastest in order.

    A sample that lacks a field has no value for it. The function raises SourceError as `StoredValues.of_shard`.
    """
    if manifest.features:
        annotations, features = _Annotations(manifest), manifest.features
        return lambda number, rows: [
            annotation_values(features, text) for text in annotations.of_shard(data, split, number, rows)
        ]

    def values(place: RecordPlace) -> Values:
        record, found = _without_image(data, place), Values()
        for name in names:
            with suppress(FormatError):
                found |= read_fields(manifest.format, record, (name,))
        return found

    return lambda number, rows: list(
        read_ahead(values, record_places(split.shards[number]["file"], rows), data.reads_in_flight)
    )


class _Fields(StoredValues):
    """Fields of a dataset without features; the types of their values are found over all samples."""

    are_annotations = False

    def __init__(self, manifest: records.Manifest, names: tuple[str, ...], defaults: dict[str, str]) -> None:
        self._format, self._names, self._defaults = manifest.format, names, defaults
        self._columns = Columns(defaults, frozenset(), leave_out=_LEAVE_OUT)
        self._found: Features = {}
        self._members: frozenset[str] | None = None
        """Suffixes of the members of the first sample: a new tar has the same."""

    def of_shard(self, data: Storage, split: records.SplitManifest, number: int, rows: pa.Table) -> list[bytes]:
        listed = record_places(split.shards[number]["file"], rows)
        values = read_ahead(partial(self._values, data), listed, data.reads_in_flight)
        if self._members is None and listed:
            self._members = member_suffixes(self._format, _without_image(data, listed[0]))
        where = (f"{data.url_of(place.file)}: {shown(place.key)}" for place in listed)
        return [self._columns.add(Row((), at, each, False)) for at, each in zip(where, values, strict=True)]

    def _values(self, data: Storage, place: RecordPlace) -> Values:
        record, values = _without_image(data, place), Values()
        for name in self._names:
            try:
                values |= read_fields(self._format, record, (name,))
            except FormatError as error:
                if name not in self._defaults:
                    raise _damaged(data, place, error) from error
        return values

    def features(self) -> Features:
        members = {name for name in self._members or () if not member_fault(name)}
        self._found = {
            name: replace(each, member=name if name in members else "")
            for name, each in self._columns.features().items()
        }
        return self._found

    def annotations(self, kept: bytes) -> bytes:
        try:
            return annotations_json(self._found, self._columns.values(kept, self._found))
        except FormatError as error:
            raise SourceError(f"`field`: {error}") from error


class _AllFields(_Fields):
    """All fields of a dataset without features; fields that cannot be features are left out and named in the notes."""

    def __init__(self, manifest: records.Manifest, defaults: dict[str, str]) -> None:
        super().__init__(manifest, (), defaults)
        self._manifest = manifest
        self._faults: dict[str, str] = {}
        self._compared = 0
        self._columns = Columns(defaults, frozenset(), leave_out=_KEEP_OTHERS, refuse=self._leave_out)

    def _values(self, data: Storage, place: RecordPlace) -> Values:
        record = _without_image(data, place)
        values = _fields_of(self._manifest, data, record, place)
        caption, text = CAPTIONS
        if text in values and values[text] == values.get(caption):
            del values[text]  # img2dataset stores a caption under both names
        self._faults |= _name_faults(values.keys() - self._faults.keys(), data.url)
        if self._compared < _COMPARED:
            self._compared += 1
            self._faults = _replaced(self._manifest, data, record, place) | self._faults
        return {name: value for name, value in values.items() if name not in self._faults}

    def _leave_out(self, error: DataprepError) -> None:
        """Remember the fault of a column, unless the user gives it a default."""
        if not isinstance(error, ColumnError) or error.column in self._defaults:
            raise error
        self._faults.setdefault(error.column, error.reason)

    def features(self) -> Features:
        features = super().features()
        if features:
            names = ", ".join(map(printable, features))
            self.notes += (f"fields kept as features: {names} (`field` NAME keeps some, `no_fields` none)",)
        self.notes += _warnings(self._faults)
        return features


class _WithColumns(StoredValues):
    """Annotations of a dataset together with columns, which become features."""

    are_annotations = False

    def __init__(self, stored: StoredValues, existing: Existing, columns: tuple[tuple[str, str], ...]) -> None:
        self._stored, self._index = stored, existing.index
        self._columns = {name: read_column(existing.index, existing.manifest, name) for name, _ in columns}
        for name, digest in columns:
            if self._columns[name].sha256 != digest:
                raise SourceError(f"{existing.index.url}: column {name} was replaced meanwhile; convert again")
        self._own = {name: feature_of(name, column.type) for name, column in self._columns.items()}

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]  # those of the other fields
        return self._stored.notes

    def of_shard(self, data: Storage, split: records.SplitManifest, number: int, rows: pa.Table) -> list[bytes]:
        values = dict[str, list[object]]()
        for name, column in self._columns.items():
            found = read_values(self._index, column.type, column.shard(split.name, number))
            kept = split.kept.numbers(number).tolist() if isinstance(split, records.ViewedSplit) else range(len(found))
            values[name] = [_plain(found[at]) for at in kept]
        stored = self._stored.of_shard(data, split, number, rows) or [b""] * rows.num_rows
        both = []
        for at, (key, other) in enumerate(zip(rows.column("key").to_pylist(), stored, strict=True)):
            try:
                own = annotations_json(self._own, {name: each[at] for name, each in values.items()})
            except FormatError as error:
                raise SourceError(f"{self._index.url}: {shown(key)}: {error}") from error
            both.append(len(own).to_bytes(4) + own + other)
        return both

    def features(self) -> Features:
        self._others = self._stored.features()
        for name in self._own.keys() & self._others.keys():
            raise SourceError(f"`column` {name}: its samples have a field of this name; {_KEEP_OTHERS}")
        return {**self._others, **self._own}

    def annotations(self, kept: bytes) -> bytes:
        stop = 4 + int.from_bytes(kept[:4])
        others = annotation_values(self._others, self._stored.annotations(kept[stop:]))
        own = annotation_values(self._own, kept[4:stop])
        try:
            return annotations_json({**self._others, **self._own}, others | own)
        except FormatError as error:
            raise SourceError(f"`column`: {error}") from error


def feature_of(name: str, kind: ColumnType) -> Feature:
    """Return the feature for values of a column: integers become int64 (uint64 with the same bits), float16 becomes
    float32. Raises UsageError if no format stores the type."""
    if kind.kind != "array":
        return Feature(kind.kind)
    dtype = np.dtype(kind.dtype)
    feature = Feature("bool" if dtype.kind == "b" else "int64" if dtype.kind in "iu" else "float32", kind.shape)
    if kind.dtype == "float64":
        feature = replace(feature, kind="float64")
    for fault in feature_faults({name: feature}):
        raise UsageError(f"`column` {name}: of type {kind}, which no format stores: {fault}")
    return feature


def _plain(value: Any) -> object:
    """Return a column's value as the value of a feature."""
    if isinstance(value, str | bytes):
        return value
    return np.asarray(value.view(np.int64) if value.dtype == np.uint64 else value).tolist()


def _fields_of(manifest: records.Manifest, data: Storage, record: bytes, place: RecordPlace) -> Values:
    """Return the fields of a sample, except its image and fields that the new dataset writes itself."""
    values = _all_fields(manifest, data, record, place, _OF_EVERY_SAMPLE)
    labels = range(len(manifest.classes))
    class_name = manifest.classes[place.label] if place.label in labels else ""
    return {
        name: value
        for name, value in values.items()
        if not (name == "orientation" and isinstance(value, int))
        and not (name in _OF_CLASSES and _is_label(value, place.label, class_name))
    }


def _all_fields(
    manifest: records.Manifest, data: Storage, record: bytes, place: RecordPlace, leave_out: frozenset[str]
) -> Values:
    try:
        return read_all_fields(manifest.format, record, place.image_offset - place.record_offset, leave_out)
    except FormatError as error:
        raise _damaged(data, place, error) from error


def _replaced(manifest: records.Manifest, data: Storage, record: bytes, place: RecordPlace) -> dict[str, str]:
    """Return the reason for leaving out each field that every dataset writes itself but whose value differs here."""
    values = _all_fields(manifest, data, record, place, frozenset())
    if not _OF_EVERY_SAMPLE & values.keys():
        return {}
    height, width = _sides(data.read_range(place.file, place.image_offset, place.image_bytes))
    stored = {"key": place.key, "height": height, "width": width}
    return {
        name: f"it is {shown(str(values[name]))} where the dataset has {own} ({shown(place.key)}); {_RENAME}"
        for name, own in stored.items()
        if own is not None and name in values and str(values[name]) != str(own)
    }


def _sides(data: bytes) -> tuple[int, int] | tuple[None, None]:
    """Return height and width from an image's header; None if Pillow cannot read it."""
    try:
        with open_image(data) as image:
            return image.height, image.width
    except UnusableImageError:
        return None, None


def _is_label(value: object, label: int, class_name: str) -> bool:
    """Return whether a value is only the sample's label, or the name of its class."""
    if not isinstance(value, str):
        return value == label
    text = value.strip()
    return text in ("", class_name) or (_INTEGER.fullmatch(text) is not None and int(text) == label)


def _name_faults(names: Iterable[str], url: str) -> dict[str, str]:
    """Return the fields whose names features cannot have, each with the reason and advice."""
    faults = {name: fault for name in names if (fault := name_fault(name))}
    return {name: f"{fault}{_way_to_classes(name, url)}; {_RENAME}" for name, fault in faults.items()}


def _way_to_classes(name: str, url: str) -> str:
    if name not in _OF_CLASSES:
        return ""
    adopt = f"dataprep adopt {shell_words(url)} with `labels` {shell_words(name)} and an `index` of its own"
    return f"; to have its values as classes: {adopt}, and convert that index"


def _warnings(faults: Mapping[str, str]) -> tuple[str, ...]:
    """Return lines about fields that are left out, with the reason of each."""
    lines = [f"warning: the field {shown(name)} is left out: {faults[name]}" for name in sorted(faults)[:_SHOWN]]
    if len(faults) > _SHOWN:
        lines.append(f"warning: {len(faults) - _SHOWN:,} more fields are left out")
    return tuple(lines)


def _without_image(data: Storage, place: RecordPlace) -> bytes:
    """Return a record with zeros instead of its image, which is not read."""
    start, stop = place.record_offset, place.record_offset + place.record_bytes
    image_start, image_stop = place.image_offset, place.image_offset + place.image_bytes
    rest = (image_start - start) + (stop - image_stop)
    if rest > MAX_REST_BYTES:
        what = f"has {rest:,} bytes in addition to its image, expected at most {MAX_REST_BYTES:,}"
        raise SourceError(f"{data.url_of(place.file)}: {shown(place.key)} {what}")
    head = data.read_range(place.file, start, image_start - start)
    return b"".join((head, bytes(place.image_bytes), data.read_range(place.file, image_stop, stop - image_stop)))


def _lines(data: Storage, split: records.SplitManifest) -> Iterator[bytes]:
    """Yield the lines of the annotation file of an image folder."""
    try:
        stream = data.open(metadata_file(split.name))
    except FileNotFoundError as error:
        raise SourceError(f"{error}: missing, but the manifest lists it; restore it") from error
    with stream:
        while line := stream.readline(2 * MAX_ANNOTATION_BYTES):
            yield line


def _damaged(data: Storage, place: RecordPlace, error: FormatError) -> SourceError:
    return SourceError(f"{data.url_of(place.file)}: {shown(place.key)}: {error}")
