"""The annotations of a finished dataset's samples, read back from its records; the images in them are not read.

A dataset with features has annotations already, and the index has their checksums. Any other dataset has fields, such
as the caption of an adopted tar: those that the user names become features, or all that every sample has. Their types
are found over all samples.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from dataprep.dataset.features import (
    MAX_ANNOTATION_BYTES,
    NO_FEATURES,
    RESERVED,
    Features,
    Values,
    annotations_json,
    name_fault,
)
from dataprep.dataset.index import ANNOTATIONS
from dataprep.dataset.records import Manifest, SplitManifest
from dataprep.errors import DataprepError, FormatError, SourceError
from dataprep.formats import FORMATS
from dataprep.formats.fields import CAPTIONS, check_fields, read_all_fields, read_fields
from dataprep.formats.imagefolder import annotations_of, metadata_file
from dataprep.formats.pictures import UnusableImageError, open_image
from dataprep.messages import printable, shell_words, shown
from dataprep.sources.columns import ColumnError, Columns
from dataprep.sources.metadata import Row
from dataprep.storage.base import Storage
from dataprep.storage.checksums import crc32c_of

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
MAX_REST_BYTES = 1 << 26
"""Maximum size of a record without its image."""
_SHOWN = 12
"""Maximum number of fields in a message."""
_OF_EVERY_SAMPLE = frozenset({"height", "key", "width"})
"""Fields that every dataset has of its samples, whatever these hold."""
_COMPARED = 8
"""Number of samples whose fields of these names are compared with their keys and images: fields that mean something
else, such as the sides before a resize, differ in most samples."""
_OF_CLASSES = frozenset({"class_name", "cls", "label"})
"""Fields with labels: a dataset has those of its index, and no others."""
_INTEGER = re.compile(r"-?\d{1,18}")
_RENAME = "to keep it, rename it in the original data, and build again"
_LEAVE_OUT = "give no --field {words} to leave it out"
_KEEP_OTHERS = "leave it out, with --field NAME for every other field"


class RecordPlace(NamedTuple):
    """Where one sample lies; the fields are columns of the index."""

    key: str
    record_offset: int
    record_bytes: int
    image_offset: int
    image_bytes: int
    label: int


FirstSample = tuple[str, RecordPlace]
"""Shard of a dataset's first sample, and its place there."""


def record_places(rows: pa.Table) -> list[RecordPlace]:
    """Return the places of some samples, from their rows of the index."""
    columns = (rows.column(name).to_pylist() for name in RecordPlace._fields)
    return [RecordPlace(*place) for place in zip(*columns, strict=True)]


class StoredValues(Protocol):
    """Reads the values of all samples of a dataset, then returns their features and annotations."""

    are_annotations: bool
    """Whether `of_shard` returns the annotations themselves, because all types are known."""
    notes: tuple[str, ...]
    """Lines for the user about what is kept and left out, once the features are known."""

    def of_shard(self, data: Storage, split: SplitManifest, number: int, rows: pa.Table) -> list[bytes]:
        """Return the values of a shard's samples as `annotations` takes them; nothing if samples have none.

        Args:
            data: Where the shards are.
            split: The shard's split.
            number: Position of the shard in it; shards must be read in order.
            rows: The shard's rows of the index.

        Raises:
            SourceError: Values are missing, damaged, or do not have the checksums of the index.
        """

    def features(self) -> Features:
        """Return the features, once all shards were read. Raises SourceError if a field has values of two types."""

    def annotations(self, kept: bytes) -> bytes:
        """Return the annotations of one sample, once all shards were read."""


def open_values(
    manifest: Manifest, url: str, fields: tuple[str, ...], defaults: dict[str, str], *, all_fields: bool = False
) -> StoredValues:
    """Return a reader of the annotations of a dataset, of the named fields, or of all fields.

    Args:
        manifest: The manifest of the dataset.
        url: Where its shards are, for messages.
        fields: The fields that are named.
        defaults: Value for samples without one, by field.
        all_fields: Whether all fields are read.

    Raises:
        UsageError: The format holds no fields.
        SourceError: A field cannot be the name of a feature.
    """
    if manifest.features:
        return _Annotations(manifest)
    if all_fields:
        return _AllFields(manifest, defaults)
    if not fields:
        return _Nothing()
    check_fields(manifest.format, fields)
    for name in fields:
        if fault := name_fault(name):
            raise SourceError(
                f"--field {name}: {fault}{_way_to_classes(name, url)}; {_LEAVE_OUT.format(words=shell_words(name))}"
            )
    return _Fields(manifest, fields, defaults)


def left_out(manifest: Manifest, data: Storage, first: FirstSample | None, taken: Features) -> tuple[str, ...]:
    """Return notes about the fields of a dataset's first sample that are not taken; none if all are.

    Args:
        manifest: The manifest of the dataset.
        data: Where its shards are.
        first: The first sample; None if there is none.
        taken: Features of the new dataset.
    """
    if manifest.features or first is None or FORMATS[manifest.format].one_file_per_image:
        return ()
    record = _without_image(data, *first)
    fields = _fields_of(manifest, data, record, first)
    names = sorted(fields.keys() - RESERVED - taken.keys())
    usable = [name for name in names if not name_fault(name)]
    notes: tuple[str, ...] = ()
    if usable:
        more = ", ..." if len(usable) > _SHOWN else ""
        notes = (f"its samples also have {', '.join(usable[:_SHOWN])}{more}; --field NAME keeps a field as a feature",)
    return notes + _warnings(_name_faults(fields, data.url) | _replaced(manifest, data, record, first))


class _Nothing:
    """Samples without annotations."""

    are_annotations = True
    notes: tuple[str, ...] = ()

    def of_shard(self, data: Storage, split: SplitManifest, number: int, rows: pa.Table) -> list[bytes]:
        return []

    def features(self) -> Features:
        return NO_FEATURES

    def annotations(self, kept: bytes) -> bytes:
        return b""


class _Annotations:
    """Annotations of a dataset with features, each compared with its checksum in the index."""

    are_annotations = True
    notes: tuple[str, ...] = ()

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._lines: Iterator[bytes] = iter(())
        self._split = ""

    def of_shard(self, data: Storage, split: SplitManifest, number: int, rows: pa.Table) -> list[bytes]:
        if FORMATS[self._manifest.format].one_file_per_image:
            found = self._from_lines(data, split, rows.num_rows)
        else:
            file = split.shards[number]["file"]
            found = _mapped(data, partial(self._from_record, data, file), record_places(rows))
        sums, keys = rows.column(ANNOTATIONS).to_pylist(), rows.column("key").to_pylist()
        for key, text, crc32c in zip(keys, found, sums, strict=True):
            if crc32c_of(text) != crc32c:
                raise SourceError(
                    f"{data.url}: the annotations of {shown(key)} in {split.name} do not have the checksum of the "
                    'index; restore the dataset, or see what else is wrong with "dataprep verify"'
                )
        return found

    def _from_record(self, data: Storage, file: str, place: RecordPlace) -> bytes:
        features = self._manifest.features
        record = _without_image(data, file, place)
        try:
            return annotations_json(features, read_fields(self._manifest.format, record, tuple(features), features))
        except FormatError as error:
            raise _damaged(data, file, place, error) from error

    def _from_lines(self, data: Storage, split: SplitManifest, count: int) -> list[bytes]:
        if self._split != split.name:
            self._split, self._lines = split.name, _lines(data, split)
        found = []
        for _ in range(count):
            line = next(self._lines, b"")
            try:
                found.append(annotations_of(line, self._manifest.features)[1])
            except FormatError as error:
                raise SourceError(f"{data.url_of(metadata_file(split.name))}: {error}; restore it") from error
        return found

    def features(self) -> Features:
        return self._manifest.features

    def annotations(self, kept: bytes) -> bytes:
        return kept


class _Fields:
    """Fields of a dataset without features; the types of their values are found over all samples."""

    are_annotations = False
    notes: tuple[str, ...] = ()

    def __init__(self, manifest: Manifest, names: tuple[str, ...], defaults: dict[str, str]) -> None:
        self._format, self._names, self._defaults = manifest.format, names, defaults
        self._columns = Columns(defaults, frozenset(), leave_out=_LEAVE_OUT)
        self._found: Features = {}

    def of_shard(self, data: Storage, split: SplitManifest, number: int, rows: pa.Table) -> list[bytes]:
        file = split.shards[number]["file"]
        listed = record_places(rows)
        values = _mapped(data, partial(self._values, data, file), listed)
        where = (f"{data.url_of(file)}: {shown(place.key)}" for place in listed)
        return [self._columns.add(Row((), at, each, False)) for at, each in zip(where, values, strict=True)]

    def _values(self, data: Storage, file: str, place: RecordPlace) -> Values:
        record = _without_image(data, file, place)
        values: Values = {}
        for name in self._names:
            try:
                values |= read_fields(self._format, record, (name,))
            except FormatError as error:
                if name not in self._defaults:
                    raise _damaged(data, file, place, error) from error
        return values

    def features(self) -> Features:
        self._found = self._columns.features()
        return self._found

    def annotations(self, kept: bytes) -> bytes:
        try:
            return annotations_json(self._found, self._columns.values(kept, self._found))
        except FormatError as error:
            raise SourceError(f"--field: {error}") from error


class _AllFields(_Fields):
    """All fields of a dataset without features; those that cannot be features are left out, and named in the notes."""

    def __init__(self, manifest: Manifest, defaults: dict[str, str]) -> None:
        super().__init__(manifest, (), defaults)
        self._manifest = manifest
        self._faults: dict[str, str] = {}
        self._compared = 0
        self._columns = Columns(defaults, frozenset(), leave_out=_KEEP_OTHERS, refuse=self._leave_out)

    def _values(self, data: Storage, file: str, place: RecordPlace) -> Values:
        record = _without_image(data, file, place)
        values = _fields_of(self._manifest, data, record, (file, place))
        caption, text = CAPTIONS
        if text in values and values[text] == values.get(caption):
            del values[text]  # img2dataset stores a caption under both names
        self._faults |= _name_faults(values.keys() - self._faults.keys(), data.url)
        if self._compared < _COMPARED:
            self._compared += 1
            self._faults = _replaced(self._manifest, data, record, (file, place)) | self._faults
        return {name: value for name, value in values.items() if name not in self._faults}

    def _leave_out(self, error: DataprepError) -> None:
        """Keep the fault of a column, unless the user gives this one a default."""
        if not isinstance(error, ColumnError) or error.column in self._defaults:
            raise error
        self._faults.setdefault(error.column, error.reason)

    def features(self) -> Features:
        features = super().features()
        if features:
            names = ", ".join(map(printable, features))
            self.notes += (f"fields kept as features: {names} (--field NAME keeps some, --no-fields none)",)
        self.notes += _warnings(self._faults)
        return features


def _fields_of(manifest: Manifest, data: Storage, record: bytes, sample: FirstSample) -> Values:
    """Return the fields of a sample, but for its image and for what the new dataset has anew."""
    file, place = sample
    try:
        values = read_all_fields(manifest.format, record, place.image_offset - place.record_offset, _OF_EVERY_SAMPLE)
    except FormatError as error:
        raise _damaged(data, file, place, error) from error
    labels = range(len(manifest.classes))
    class_name = manifest.classes[place.label] if place.label in labels else ""
    return {
        name: value
        for name, value in values.items()
        if not (name == "orientation" and isinstance(value, int))
        and not (name in _OF_CLASSES and _is_label(value, place.label, class_name))
    }


def _replaced(manifest: Manifest, data: Storage, record: bytes, sample: FirstSample) -> dict[str, str]:
    """Return those fields of a sample that every dataset has anew, and that say something else of it; each with why it
    is left out."""
    file, place = sample
    try:
        values = read_all_fields(manifest.format, record, place.image_offset - place.record_offset, ())
    except FormatError as error:
        raise _damaged(data, file, place, error) from error
    if not _OF_EVERY_SAMPLE & values.keys():
        return {}
    height, width = _sides(data.read_range(file, place.image_offset, place.image_bytes))
    stored = {"key": place.key, "height": height, "width": width}
    return {
        name: f"it is {shown(str(values[name]))} where the dataset has {own} ({shown(place.key)}); {_RENAME}"
        for name, own in stored.items()
        if own is not None and name in values and str(values[name]) != str(own)
    }


def _sides(data: bytes) -> tuple[int, int] | tuple[None, None]:
    """Return height and width by the header of an image; None if Pillow does not read it."""
    try:
        with open_image(data) as image:
            return image.height, image.width
    except UnusableImageError:
        return None, None


def _is_label(value: object, label: int, class_name: str) -> bool:
    """Return whether a value says nothing but the label of its sample, or the name of its class."""
    if not isinstance(value, str):
        return value == label
    text = value.strip()
    return text in ("", class_name) or (_INTEGER.fullmatch(text) is not None and int(text) == label)


def _name_faults(names: Iterable[str], url: str) -> dict[str, str]:
    """Return the names that no feature can have, each with the reason and what to do."""
    faults = {name: fault for name in names if (fault := name_fault(name))}
    return {name: f"{fault}{_way_to_classes(name, url)}; {_RENAME}" for name, fault in faults.items()}


def _way_to_classes(name: str, url: str) -> str:
    if name not in _OF_CLASSES:
        return ""
    adopt = shell_words("dataprep", "adopt", url, "--index", "INDEX", "--labels", name)
    return f"; to have its values as classes: {adopt}, and convert INDEX"


def _warnings(faults: Mapping[str, str]) -> tuple[str, ...]:
    """Return lines about fields that are left out, with the reason of each."""
    lines = [f"warning: the field {shown(name)} is left out: {faults[name]}" for name in sorted(faults)[:_SHOWN]]
    if len(faults) > _SHOWN:
        lines.append(f"warning: {len(faults) - _SHOWN:,} more fields are left out")
    return tuple(lines)


def _mapped(data: Storage, function: Callable[[RecordPlace], T], places: Sequence[RecordPlace]) -> list[T]:
    """Call a function that reads, for each row, with as many reads in flight as the storage can take."""
    if data.reads_in_flight == 1:
        return [function(place) for place in places]
    with ThreadPoolExecutor(data.reads_in_flight, thread_name_prefix="dataprep-values") as threads:
        return list(threads.map(function, places))


def _without_image(data: Storage, file: str, place: RecordPlace) -> bytes:
    """Return a record with zeros in the place of its image, which is not read."""
    start, stop = place.record_offset, place.record_offset + place.record_bytes
    image_start, image_stop = place.image_offset, place.image_offset + place.image_bytes
    rest = (image_start - start) + (stop - image_stop)
    if rest > MAX_REST_BYTES:
        raise SourceError(
            f"{data.url_of(file)}: {shown(place.key)} has {rest:,} bytes besides its image, expected at most "
            f"{MAX_REST_BYTES:,}"
        )
    head = data.read_range(file, start, image_start - start)
    return b"".join((head, bytes(place.image_bytes), data.read_range(file, image_stop, stop - image_stop)))


def _lines(data: Storage, split: SplitManifest) -> Iterator[bytes]:
    """Yield the lines of the annotation file of an image folder."""
    try:
        stream = data.open(metadata_file(split.name))
    except FileNotFoundError as error:
        raise SourceError(f"{error}: missing, the manifest lists it; restore it") from error
    with stream:
        while line := stream.readline(2 * MAX_ANNOTATION_BYTES):
            yield line


def _damaged(data: Storage, file: str, place: RecordPlace, error: FormatError) -> SourceError:
    return SourceError(f"{data.url_of(file)}: {shown(place.key)}: {error}")
