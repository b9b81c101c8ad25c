"""Reads the samples of tars and TFRecord files of other tools, and describes TFRecords of img2dataset to TFDS.

Members of a tar are grouped into samples as in webdataset: successive members whose names agree up to the first dot. A
TFRecord file has framed tf.train.Example messages, written by TFDS, img2dataset or others.

TFDS needs a feature to be of one kind in all records. img2dataset writes an absent number as an empty text, so a
feature that is absent in some records cannot be described in `features.json`; all others can.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from dataprep.adoption.labels import LabelReader, key_from, key_in_shard, read_small, side_from
from dataprep.dataset.documents import JsonObject
from dataprep.dataset.index import IndexRow
from dataprep.dataset.records import NO_LABEL, Event
from dataprep.errors import FormatError, SourceError
from dataprep.formats import tfds
from dataprep.formats.base import DatasetInfo
from dataprep.formats.example import (
    BYTES,
    FLOATS,
    FRAME_HEAD_BYTES,
    FRAME_TAIL_BYTES,
    INTEGERS,
    Feature,
    Read,
    byte_ranges,
    features_of,
    frame_length,
    integers,
    is_single,
)
from dataprep.formats.img2dataset import DESCRIPTION, escaped, numbered
from dataprep.formats.tars import BLOCK_BYTES, ByteReader, Member, damaged, split_name, tar_members
from dataprep.messages import shown
from dataprep.storage.checksums import crc32c_of

if TYPE_CHECKING:
    from dataprep.adoption.find import Found
    from dataprep.adoption.shards import ReadShard


T = TypeVar("T")
IMAGE_MEMBERS = ("jpg", "jpeg", "png", "webp")
"""Extensions of the member that is the image; the first one that a sample has is used."""
NO_IMAGE, DOTTED, APART = "no image", "dot in its key", "apart from its image"
"""Reasons for samples without an image: none at all, an image whose extension has a dot, or an image with this key
elsewhere in the tar."""
MAX_TEXT_BYTES = 1 << 20
"""Maximum size of a .json or .cls member."""
# webdataset skips names that begin with a component of this form.
_METADATA = re.compile(r"__[^/]*__(?:$|/)")
IMAGE_FEATURES = ("image", "jpg", "jpeg", "png", "webp", "image/encoded")
LABEL_FEATURES = ("label", "cls", "image/class/label")
KEY_FEATURES = ("key", "__key__", "file_name", "filename", "image/filename", "image_id", "image/id", "id")
"""Names of the features that may hold image, label and key; the first one that a record has is used."""
SIDE_FEATURES = {"height": ("height", "image/height"), "width": ("width", "image/width")}
MAX_KEY_BYTES = 4096
_IMAGES = {"jpg": "jpeg", "png": "png"}
"""TFDS's name of the image format, by the feature's name; TFDS decodes no WebP."""
_SCALARS = {BYTES: tfds.text(), FLOATS: tfds.scalar("float32"), INTEGERS: tfds.scalar("int64")}
_DTYPES = {BYTES: "string", FLOATS: "float32", INTEGERS: "int64"}


@dataclass(slots=True)
class TarSample:
    """The members of one sample, by extension."""

    base: str
    start: int
    """First byte of the sample's first header."""
    stop: int = 0
    """First byte after the padding of the sample's last member."""
    members: dict[str, Member] = field(default_factory=dict)


def tar_samples(reader: ByteReader) -> Iterator[TarSample]:
    """Yield the samples of a tar, in its order. Raises SourceError if the tar is damaged, holds anything but files and
    directories, or a sample has an extension twice."""
    sample: TarSample | None = None
    position = 0
    for member in tar_members(reader):
        start, position = position, member.offset + -(-member.num_bytes // BLOCK_BYTES) * BLOCK_BYTES
        base, suffix = split_name(member.name)
        if member.is_directory or not suffix or _METADATA.match(member.name):
            continue
        if sample is not None and sample.base != base:
            yield sample
            sample = None
        sample = sample or TarSample(base, start)
        if suffix in sample.members:
            raise damaged(
                reader, member.offset, "it occurs twice in one sample; expected each once", member=member.name
            )
        sample.members[suffix] = member
        sample.stop = position
    if sample is not None:
        yield sample


def tar_rows(
    reader: ByteReader, *, labels: LabelReader, fields: Counter[str], digest: bool
) -> Iterator[IndexRow | Event]:
    """Yield a row for each sample, and an Event for each that has no image. Raises SourceError if the tar is damaged
    (see `tar_samples`), or a label is not valid.

    Args:
        labels: Reads the labels; its field is an extension or a key of the .json member, by default .cls, then `label`.
        fields: Receives the number of samples that have each field.
    """
    for sample in tar_samples(reader):
        key = key_from(sample.base)
        image = next((sample.members[suffix] for suffix in IMAGE_MEMBERS if suffix in sample.members), None)
        if image is None or not image.num_bytes:
            yield _without_image(key, sample, image)
            continue
        document = _document(reader, sample.members.get("json"))
        label = _label(reader, sample, document, labels)
        names = {name for name, value in document.items() if value is not None}
        fields.update(names.union(suffix for suffix, member in sample.members.items() if member is not image))
        yield IndexRow(
            key=key,
            record_offset=sample.start,
            record_bytes=sample.stop - sample.start,
            image_offset=image.offset,
            image_bytes=image.num_bytes,
            image_crc32c=crc32c_of(reader.read(image.offset, image.num_bytes)) if digest else None,
            label=label,
            height=side_from(document.get("height")),
            width=side_from(document.get("width")),
        )


def told_apart(events: Iterable[Event], keys: Collection[str]) -> list[Event]:
    """Return the events of a tar; a sample without an image has its own reason if an image has the same key."""
    return [
        replace(event, reason=APART) if event.reason == NO_IMAGE and event.key in keys else event for event in events
    ]


def tfrecord_rows(
    reader: ByteReader,
    *,
    shard: str,
    labels: LabelReader,
    fields: Counter[str],
    digest: bool,
    seen: Counter[FeatureShape] | None = None,
) -> Iterator[IndexRow | Event]:
    """Yield a row for each record, and an Event for each whose image has no bytes. Raises SourceError if a frame's
    length does not match its checksum, the file is truncated, a message is not an Example, or its image is not a single
    value of bytes.

    Args:
        shard: Name of the file, which becomes part of the keys of records without one.
        labels: Reads the labels; its field is a feature, by default one of LABEL_FEATURES.
        fields: Receives the number of samples that have each feature other than the image.
        seen: Receives the number of records by shape of each feature; None to skip counting.
    """
    for number, (start, stop) in enumerate(_frames(reader)):
        record = _Record(reader, number, start + FRAME_HEAD_BYTES, stop - FRAME_TAIL_BYTES)
        if seen is not None:
            seen.update(record.shapes())
        key = record.key() or key_in_shard(shard, f"{number:06d}")
        image_start, image_stop = record.image()
        if image_start == image_stop:
            yield Event(key, "rejected", "empty", f"its image has no bytes (record {number:,})")
            continue
        image_bytes = image_stop - image_start
        fields.update(record.fields())
        yield IndexRow(
            key=key,
            record_offset=start,
            record_bytes=stop - start,
            image_offset=image_start,
            image_bytes=image_bytes,
            image_crc32c=crc32c_of(reader.read(image_start, image_bytes)) if digest else None,
            label=record.label(labels),
            height=side_from(record.integer(SIDE_FEATURES["height"])),
            width=side_from(record.integer(SIDE_FEATURES["width"])),
        )


class FeatureShape(NamedTuple):
    """Name, kind and multiplicity of one feature of a record."""

    name: str
    kind: int
    """Kind of the feature, as in dataprep/formats/example.py."""
    is_single: bool


@dataclass(frozen=True, slots=True)
class Description:
    """The files that TFDS reads in a dataset's root."""

    files: Mapping[str, bytes]
    """Content of the files by name; empty if the dataset cannot be described."""
    remarks: tuple[str, ...]
    """Lines for the user about data that TFDS cannot read, and why."""


def describe(found: Found, results: Sequence[ReadShard], data_root: str) -> Description:
    """Describe the shards that were read.

    Args:
        found: TFRecords of img2dataset.
        data_root: Folder of the shards, with a final slash; empty if the description is next to them.
    """
    seen: Counter[FeatureShape] = sum((result.features for result in results), Counter())
    records = sum(result.samples + len(result.events) for result in results)
    features, left_out = _features(seen, records)
    by_split: dict[str, list[tuple[str, int]]] = {}
    num_bytes: Counter[str] = Counter()
    for shard, result in zip(found.shards, results, strict=True):
        by_split.setdefault(shard.split, []).append((shard.name, result.samples + len(result.events)))
        num_bytes[shard.split] += shard.num_bytes
    try:
        splits = {split: numbered(shards) for split, shards in by_split.items()}
    except FormatError as error:
        return Description({}, (f"TFDS cannot read it: {error}",))
    facts = DatasetInfo(
        name=_tfds_name(found.name),
        description=DESCRIPTION,
        citation="",
        licence=found.licence,
        classes=(),
        shard_samples={split: lengths for split, (_, lengths) in splits.items()},
        split_bytes=num_bytes,
    )
    info = tfds.dataset_info(facts, filepath_template="")
    for entry in info["splits"]:
        entry["filepathTemplate"] = escaped(data_root) + splits[entry["name"]][0]
    remarks = []
    if left_out:
        remarks.append(f"TFDS cannot read {', '.join(left_out)}: absent in some records, or of several kinds")
    if "webp" in features:
        remarks.append("TFDS decodes no WebP: its feature webp gives the images' bytes")
    files = {tfds.DATASET_INFO: tfds.json_bytes(info), tfds.FEATURES: tfds.json_bytes(tfds.features_dict(features))}
    return Description(files, tuple(remarks))


def _without_image(key: str, sample: TarSample, image: Member | None) -> Event:
    """Return the event of a sample without an image, or with an empty one."""
    if image is not None:
        return Event(key, "rejected", "empty", shown(f"its image has no bytes ({image.name})"))
    for suffix, member in sample.members.items():
        if suffix.rpartition(".")[2] in IMAGE_MEMBERS:
            detail = (
                f"{shown(member.name)}: a key ends at the first dot of its name, so this is a member {shown(suffix)} "
                f"of {shown(sample.base)}, expected {', '.join(IMAGE_MEMBERS[:-1])} or {IMAGE_MEMBERS[-1]}"
            )
            return Event(key, "rejected", DOTTED, detail)
    members = ", ".join(f".{suffix}" for suffix in sample.members)
    return Event(key, "rejected", NO_IMAGE, shown(f"members {members}"))


def _document(reader: ByteReader, member: Member | None) -> JsonObject:
    """Read the .json member; return an empty object if there is none, or if it is not an object."""
    if member is None:
        return {}
    data = read_small(reader, member.offset, member.num_bytes, MAX_TEXT_BYTES, member=member.name)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damaged(reader, member.offset, f"it is not JSON ({shown(str(error))})", member=member.name) from error
    return document if isinstance(document, dict) else {}


def _label(reader: ByteReader, sample: TarSample, document: JsonObject, labels: LabelReader) -> int:
    suffix, name = (labels.field, labels.field) if labels.field is not None else ("cls", "label")
    member = sample.members.get(suffix)
    value: object = document.get(name)
    if member is not None:
        value = read_small(reader, member.offset, member.num_bytes, MAX_TEXT_BYTES, member=member.name).decode(
            "utf-8", "surrogateescape"
        )
    if value is None:
        return NO_LABEL
    member = member or sample.members["json"]
    try:
        return labels.label(value, member.name)
    except SourceError as error:
        raise damaged(reader, member.offset, str(error), member=member.name) from error


def _frames(reader: ByteReader) -> Iterator[tuple[int, int]]:
    """Yield [start, stop) of every record, including its frame."""
    start = 0
    while start < reader.num_bytes:
        head = reader.read(start, FRAME_HEAD_BYTES)
        if len(head) < FRAME_HEAD_BYTES:
            raise damaged(reader, start, f"it ends after {len(head)} bytes of a record: truncated, download it again")
        length = frame_length(head)
        if length is None:
            raise damaged(reader, start, "not a TFRecord, or a compressed or damaged one; expected plain records")
        stop = start + FRAME_HEAD_BYTES + length + FRAME_TAIL_BYTES
        if stop > reader.num_bytes:
            left = reader.num_bytes - start
            raise damaged(reader, start, f"a record of {stop - start:,} bytes, only {left:,} follow: download it again")
        yield start, stop
        start = stop


class _Record:
    """One Example: its features, and errors that say where it is."""

    def __init__(self, reader: ByteReader, number: int, start: int, stop: int) -> None:
        self._reader, self._number, self._start = reader, number, start
        try:
            self._features = features_of(reader.read, start, stop)
        except FormatError as error:
            raise self._error(f"{error}; expected a tf.train.Example") from error

    def shapes(self) -> Iterator[FeatureShape]:
        for name, feature in self._features.items():
            yield FeatureShape(name, feature.kind, self._read(is_single, feature))

    def key(self) -> str:
        """Return the key from the first feature that holds one; empty if there is none."""
        for name in KEY_FEATURES:
            feature = self._features.get(name)
            if feature is None:
                continue
            value = self._text(feature)
            if value:
                return key_from(value)
        return ""

    def image(self) -> tuple[int, int]:
        """Return [start, stop) of the image's bytes."""
        name = self._first(IMAGE_FEATURES)
        feature = self._features[name] if name is not None else None
        ranges = self._read(byte_ranges, feature) if feature is not None and feature.kind == BYTES else []
        if len(ranges) != 1:
            names = ", ".join(sorted(self._features)[:20])
            what = f"{len(ranges)} values in {name}" if name is not None else "no image"
            raise self._error(f"{what}, expected one in {', '.join(IMAGE_FEATURES)}; its features are {shown(names)}")
        return ranges[0]

    def fields(self) -> Iterator[str]:
        """Yield the names of all features that have a value, except the image."""
        image = self._first(IMAGE_FEATURES)
        return (name for name, feature in self._features.items() if name != image and feature.kind)

    def label(self, labels: LabelReader) -> int:
        name = self._first((labels.field,) if labels.field is not None else LABEL_FEATURES)
        if name is None:
            return NO_LABEL
        feature = self._features[name]
        values: Sequence[object] = self._read(integers, feature) if feature.kind == INTEGERS else [self._text(feature)]
        try:
            return labels.label(values[0] if len(values) == 1 else list(values), name)
        except SourceError as error:
            raise self._error(str(error)) from error

    def integer(self, names: Sequence[str]) -> int | None:
        """Return the value of the first of these features that exists; None if it does not have exactly one value."""
        name = self._first(names)
        feature = self._features[name] if name is not None else None
        values = self._read(integers, feature) if feature is not None and feature.kind == INTEGERS else []
        return values[0] if len(values) == 1 else None

    def _first(self, names: Sequence[str]) -> str | None:
        return next((name for name in names if name in self._features), None)

    def _text(self, feature: Feature) -> str:
        """Return the value of a feature as text; empty if it is too long, or not exactly one value."""
        if feature.kind == INTEGERS:
            values = self._read(integers, feature)
            return str(values[0]) if len(values) == 1 else ""
        ranges = self._read(byte_ranges, feature) if feature.kind == BYTES else []
        if len(ranges) != 1 or ranges[0][1] - ranges[0][0] > MAX_KEY_BYTES:
            return ""
        start, stop = ranges[0]
        return self._reader.read(start, stop - start).decode("utf-8", "surrogateescape")

    def _read(self, read: Callable[[Read, Feature], T], feature: Feature) -> T:
        try:
            return read(self._reader.read, feature)
        except FormatError as error:
            raise self._error(str(error)) from error

    def _error(self, what: str) -> SourceError:
        return damaged(self._reader, self._start, f"record {self._number:,}: {what}")


def _features(seen: Counter[FeatureShape], records: int) -> tuple[dict[str, tfds.Feature], list[str]]:
    """Return the descriptions of features by name, and the names of features that cannot be described."""
    described: dict[str, tfds.Feature] = {}
    by_name: dict[str, list[FeatureShape]] = {}
    for shape in seen:
        by_name.setdefault(shape.name, []).append(shape)
    left_out = []
    for name, shapes in sorted(by_name.items()):
        kinds = {shape.kind for shape in shapes}
        kind = kinds.pop()
        if kinds or kind not in _SCALARS or sum(seen[shape] for shape in shapes) != records:
            left_out.append(name)
        elif not all(shape.is_single for shape in shapes):
            described[name] = tfds.tensor(_DTYPES[kind], (None,), "none")
        elif name in _IMAGES:
            described[name] = tfds.image(_IMAGES[name])
        else:
            described[name] = tfds.scalar("string") if name == "webp" else _SCALARS[kind]
    return described, left_out


def _tfds_name(name: str) -> str:
    """Turn a name into a valid name for TFDS."""
    tidy = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")
    return tidy if tidy[:1].isalpha() else f"data_{tidy}".rstrip("_")
