"""TFRecord: a shard is a run of framed tf.train.Example messages; two JSON files let TFDS serve the dataset.

As in protobuf's deterministic serialisation, the entries of the feature map are sorted by name. A feature of the
dataset is one feature of the Example; a column of records is called `objects/bbox`. The values of a feature are stored
one after the other, whatever its shape. An Example cannot hold floats of 64 bits, so float64 values are the bytes of a
little-endian array, which TFDS decodes (`encoding: bytes`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from typing import Any, BinaryIO

from dataprep.dataset.documents import JsonObject
from dataprep.dataset.features import (
    MAX_ANNOTATION_BYTES,
    NO_FEATURES,
    Feature,
    Features,
    Kind,
    Values,
    annotation_values,
    annotations_json,
)
from dataprep.dataset.records import NO_LABEL, Placement, Sample
from dataprep.errors import FormatError
from dataprep.formats import base, example, tfds

_MAX_RECORD_BYTES = base.MAX_IMAGE_BYTES + base.MAX_FIELD_BYTES
_ANNOTATION_FACTOR = 8
"""Maximum number of bytes in a record for each byte of annotations as JSON: `-1,` becomes an integer of ten bytes."""
_VARINT = rb"[\x80-\xff]{0,4}[\x00-\x7f]"
_BEFORE_IMAGE = re.compile(
    rb"\x0a%(v)b\x0a.\x0a\x06height\x12.\x1a.\x0a.(%(v)b)\x0a%(v)b\x0a\x05image\x12%(v)b\x0a%(v)b\x0a(%(v)b)"
    % {b"v": _VARINT},
    re.DOTALL,
)
_AFTER_IMAGE = re.compile(
    rb"\x0a%(v)b\x0a\x03key\x12%(v)b\x0a%(v)b\x0a%(v)b([\x20-\x7e]{1,200})"
    rb"(?:\x0a.\x0a\x05label\x12.\x1a.\x0a.(%(v)b))?"
    rb"\x0a.\x0a\x0borientation\x12.\x1a.\x0a.(%(v)b)"
    rb"\x0a.\x0a\x05width\x12.\x1a.\x0a.(%(v)b)" % {b"v": _VARINT},
    re.DOTALL,
)
_BEFORE_IMAGE_BYTES = 80  # more than the longest match


class TFRecordFormat(base.ShardFormat):
    """Records that `tf.data.TFRecordDataset` reads, in a directory that `tfds.builder_from_directory` serves.

    Features: image and key (bytes), height, width and orientation (int64), with classes label (int64), and the
        dataset's own features.
    """

    name = "tfrecord"

    def shard_file(self, dataset: str, split: str, index: int, total: int) -> str:
        """Return a name such as `coco_dup5-train.tfrecord-00003-of-00256`."""
        digits = max(5, len(str(total)))  # as in TFDS
        return f"{tfds_name(dataset)}-{split}.tfrecord-{index:0{digits}d}-of-{total:0{digits}d}"

    def open_writer(self, stream: BinaryIO, *, has_classes: bool, features: Features = NO_FEATURES) -> base.ShardWriter:
        return base.ShardWriter(stream, partial(_framed, features), has_classes=has_classes)

    def read_shard(
        self, stream: BinaryIO, *, classes: tuple[str, ...], features: Features = NO_FEATURES
    ) -> Iterator[base.StoredSample]:
        """Yield the samples of one shard in order. Raises FormatError if a checksum does not match, or a record is not
        one that the writer would have written. A shard cut between two records is read as a shorter one: the format
        does not mark its end."""
        source = base.CheckedStream(stream)
        while head := source.take_unless_at_end(example.FRAME_HEAD_BYTES):
            yield _read_record(source, head, classes, features)

    def metadata_files(self, info: base.DatasetInfo) -> dict[str, bytes]:
        """Return `dataset_info.json`, `features.json`, and with classes `label.labels.txt`, as TFDS 4.9 reads them.
        Raises FormatError if a class name cannot be a line of the text file, or occurs twice."""
        files = {
            "dataset_info.json": tfds.json_bytes(_dataset_info(info)),
            "features.json": tfds.json_bytes(_features(len(info.classes), info.features)),
        }
        if info.classes:
            for class_name in info.classes:
                base.check_class_folder(class_name)
            if len(set(info.classes)) != len(info.classes):
                raise FormatError("a class name occurs twice, expected each once; rename it in the source")
            files["label.labels.txt"] = "".join(f"{name}\n" for name in info.classes).encode()
        return files


def tfds_name(dataset: str) -> str:
    """Return the name of a dataset as TFDS writes it, with underscores."""
    return dataset.replace("-", "_")


def example_entries(features: Features, values: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Return the entries of an Example's map, by name."""
    entries = {}
    for name, feature in features.items():
        columns = feature.columns if feature.kind == "records" else {"": feature}
        for column, inner in columns.items():
            path = f"{name}/{column}" if column else name
            value = values[name][column] if column else values[name]
            entries[path.encode()] = example.map_entry(path.encode(), _feature_of(inner, value))
    return entries


def example_values(features: Features, read: example.Read, found: Mapping[str, example.Feature]) -> Values:
    """Return the annotations of an Example, given the positions of its features. Raises FormatError if a feature is
    absent, or of another kind or length."""
    values: Values = {}
    for name, feature in features.items():
        if feature.kind == "records":
            values[name] = {
                column: _value(f"{name}/{column}", inner, read, found) for column, inner in feature.columns.items()
            }
        else:
            values[name] = _value(name, feature, read, found)
    return values


def tfds_features(features: Features) -> Iterator[tuple[str, tfds.Feature]]:
    """Yield the entries of features.json that describe annotations; records become a dictionary of columns."""
    for name, feature in sorted(features.items()):
        if feature.kind == "records":
            yield name, tfds.features_dict({column: _tfds_feature(inner) for column, inner in feature.columns.items()})
        else:
            yield name, _tfds_feature(feature)


def _framed(features: Features, sample: Sample) -> tuple[bytes, bytes]:
    """Return the bytes of a record before and after its image: 24 us for 110 kB, 15 of them for the checksum."""
    if features:
        before, tail = _around_annotated_image(sample, features)
    else:
        tail = _after_image(sample)
        before = _before_image(sample.height, len(sample.image), len(tail))
    return example.frame_around(before, sample.image, tail)


def _around_annotated_image(sample: Sample, features: Features) -> tuple[bytes, bytes]:
    """Return an annotated Example's bytes in two parts: before the image and after it. Raises FormatError if an
    annotation does not have its feature's type."""
    entries = example_entries(features, annotation_values(features, sample.annotations))
    numbers = {b"height": sample.height, b"orientation": sample.orientation, b"width": sample.width}
    if sample.label != NO_LABEL:
        numbers[b"label"] = sample.label
    entries |= {name: _int_entry(name, value) for name, value in numbers.items()}
    entries[b"key"] = example.map_entry(b"key", example.bytes_feature(sample.key.encode()))
    names = sorted(entries)
    before, after = (b"".join(entries[name] for name in names if (name < b"image") == first) for first in (True, False))
    return example.example_before(before, b"image", len(sample.image), len(after)), after


def _before_image(height: int, image_bytes: int, tail_bytes: int) -> bytes:
    """Write an Example up to the image: the map entry of height, then the start of the image's entry."""
    return example.example_before(_int_entry(b"height", height), b"image", image_bytes, tail_bytes)


def _after_image(sample: Sample) -> bytes:
    """Write the part of an Example after the image: the map entries of key, label, orientation and width."""
    key = example.map_entry(b"key", example.bytes_feature(sample.key.encode()))
    label = b"" if sample.label == NO_LABEL else _int_entry(b"label", sample.label)
    orientation, width = _int_entry(b"orientation", sample.orientation), _int_entry(b"width", sample.width)
    return key + label + orientation + width


@lru_cache(maxsize=8192)  # sides, orientations and labels repeat: 0.1 us instead of 1.5
def _int_entry(name: bytes, value: int) -> bytes:
    return example.map_entry(name, example.integer_list([value]))


def _int_of(digits: bytes) -> int:
    return sum((digit & 0x7F) << 7 * position for position, digit in enumerate(digits))


def _read_record(
    source: base.CheckedStream, head: bytes, classes: tuple[str, ...], features: Features
) -> base.StoredSample:
    """Read one record whose head, the length and its checksum, has been read."""
    start = source.offset - example.FRAME_HEAD_BYTES
    length = example.frame_length(head)
    if length is None:
        raise source.error("another checksum", "the checksum of the record's length", at=start)
    most_bytes = _MAX_RECORD_BYTES + (_ANNOTATION_FACTOR * MAX_ANNOTATION_BYTES if features else 0)
    if length > most_bytes:
        raise source.error(f"a record of {length:,} bytes", f"at most {most_bytes:,}", at=start)
    data = source.take(length)
    if source.take(example.FRAME_TAIL_BYTES) != example.checksum(data):
        raise source.error("another checksum", "the checksum of the record's data", at=start + example.FRAME_HEAD_BYTES)
    decoded = _decode_annotated(data, classes, features) if features else _decode(data, classes)
    if decoded is None:
        label = " label," if classes else ""
        more = "".join(f", {name}" for name in features)[:200]
        expected = f"a tf.train.Example of height, image, key,{label} orientation, width{more}"
        raise source.error("another message", expected, at=start + example.FRAME_HEAD_BYTES)
    sample, image_start = decoded
    placement = Placement(
        start, source.offset - start, start + example.FRAME_HEAD_BYTES + image_start, len(sample.image)
    )
    return base.StoredSample(sample, placement)


def _decode(data: bytes, classes: tuple[str, ...]) -> tuple[Sample, int] | None:
    """Return the sample and the offset of its image, or None if the writer would not have written this record."""
    before = _BEFORE_IMAGE.match(data, 0, _BEFORE_IMAGE_BYTES)
    if before is None:
        return None
    height, image_bytes = map(_int_of, before.groups())
    image_end = before.end() + image_bytes
    after = _AFTER_IMAGE.fullmatch(data, image_end)
    if after is None:
        return None
    key, label_varint, orientation, width = after.groups()
    label = NO_LABEL if label_varint is None else _int_of(label_varint)
    if label >= len(classes):
        return None
    sample = Sample(
        key=key.decode(),
        image=data[before.end() : image_end],
        label=label,
        class_name=classes[label] if label != NO_LABEL else "",
        height=height,
        width=_int_of(width),
        orientation=_int_of(orientation),
    )
    if base.sample_fault(sample, has_classes=bool(classes)) is not None:
        return None
    tail = _after_image(sample)
    if data[: before.end()] != _before_image(height, image_bytes, len(tail)) or data[image_end:] != tail:
        return None
    return sample, before.end()


def _decode_annotated(data: bytes, classes: tuple[str, ...], features: Features) -> tuple[Sample, int] | None:
    """Return what `_decode` returns, for a record with annotations."""

    def read(offset: int, num_bytes: int) -> bytes:
        return data[offset : offset + num_bytes]

    try:
        found = example.features_of(read, 0, len(data))
        numbers = {
            name: example.integers(read, found.pop(name))[0]
            for name in ("height", "orientation", "width", *(("label",) if classes else ()))
        }
        (image_start, image_stop), *_ = example.byte_ranges(read, found.pop("image"))
        (key_start, key_stop), *_ = example.byte_ranges(read, found.pop("key"))
        annotations = annotations_json(features, example_values(features, read, found))
        sample = Sample(
            key=data[key_start:key_stop].decode(),
            image=data[image_start:image_stop],
            label=numbers.get("label", NO_LABEL),
            class_name=classes[numbers["label"]] if classes else "",
            height=numbers["height"],
            width=numbers["width"],
            orientation=numbers["orientation"],
            annotations=annotations,
        )
        if base.sample_fault(sample, has_classes=bool(classes)) is not None:
            return None
        before, after = _around_annotated_image(sample, features)
    except (FormatError, KeyError, IndexError, ValueError):
        return None
    whole = len(before) == image_start and data[:image_start] == before and data[image_stop:] == after
    return (sample, image_start) if whole else None


def _dataset_info(info: base.DatasetInfo) -> JsonObject:
    named = replace(info, name=tfds_name(info.name))
    content = tfds.dataset_info(named, filepath_template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}")
    for split in content["splits"]:
        if total := info.built_shards.get(split["name"]):
            split["filepathTemplate"] = f"{{DATASET}}-{{SPLIT}}.{{FILEFORMAT}}-{{SHARD_INDEX}}-of-{total:05d}"
    if info.classes:
        content["supervisedKeys"] = {"tuple": {"items": [{"featureKey": "image"}, {"featureKey": "label"}]}}
    return content


def _features(num_classes: int, annotations: Features) -> tfds.Feature:
    features = {
        **dict(tfds_features(annotations)),
        "height": tfds.scalar("int64"),
        "image": tfds.image("jpeg"),
        "key": tfds.text(),
        "orientation": tfds.scalar("int64"),
        "width": tfds.scalar("int64"),
    }
    if num_classes:
        class_label = {"numClasses": str(num_classes)}
        features["label"] = tfds.feature("class_label_feature.ClassLabel", classLabel=class_label)
    return tfds.features_dict(features)


def _feature_of(feature: Feature, value: Any) -> bytes:
    items = list(_flattened(value, len(feature.shape)))
    if feature.kind in ("bool", "int64"):
        return example.integer_list(int(item) for item in items)
    if feature.kind == "float32":
        return example.float_list(items)
    if feature.kind == "float64":
        return example.bytes_list([struct.pack(f"<{len(items)}d", *items)])
    return example.bytes_list(item.encode() if isinstance(item, str) else item for item in items)


def _flattened(value: Any, depth: int) -> Iterable[Any]:
    if not depth:
        return [value]
    return value if depth == 1 else chain.from_iterable(_flattened(inner, depth - 1) for inner in value)


def _value(path: str, feature: Feature, read: example.Read, found: Mapping[str, example.Feature]) -> Any:
    stored = found.get(path)
    kind, decode = _DECODERS[feature.kind]
    if stored is None or stored.kind not in (0, kind):  # 0: an empty list, whose kind protobuf may omit
        raise FormatError(f"the feature {path!a} is {'absent' if stored is None else 'of another kind'}")
    items = decode(read, stored)
    for length in feature.shape[:0:-1]:  # the first length follows from the others
        if length is None or len(items) % length:
            raise FormatError(f"the feature {path!a} has {len(items):,} values, expected lists of {length}")
        items = [items[start : start + length] for start in range(0, len(items), length)]
    if feature.shape:
        return items
    if len(items) != 1:
        raise FormatError(f"the feature {path!a} has {len(items):,} values, expected one")
    return items[0]


def _doubles(read: example.Read, stored: example.Feature) -> list[Any]:
    data = b"".join(_strings(read, stored))
    if len(data) % 8:
        raise FormatError(f"{len(data):,} bytes of float64, expected 8 for each")
    return list(struct.unpack(f"<{len(data) // 8}d", data))


def _strings(read: example.Read, stored: example.Feature) -> list[Any]:
    return [read(start, stop - start) for start, stop in example.byte_ranges(read, stored)]


def _texts(read: example.Read, stored: example.Feature) -> list[Any]:
    try:
        return [data.decode() for data in _strings(read, stored)]
    except UnicodeDecodeError as error:
        raise FormatError("text that is not UTF-8") from error


_DECODERS: dict[Kind, tuple[int, Callable[[example.Read, example.Feature], list[Any]]]] = {
    "bool": (example.INTEGERS, lambda read, stored: list(map(bool, example.integers(read, stored)))),
    "bytes": (example.BYTES, _strings),
    "float32": (example.FLOATS, lambda read, stored: list(example.floats(read, stored))),
    "float64": (example.BYTES, _doubles),
    "int64": (example.INTEGERS, lambda read, stored: list(example.integers(read, stored))),
    "text": (example.BYTES, _texts),
}


def _tfds_feature(feature: Feature) -> tfds.Feature:
    if feature.kind in ("bytes", "text"):
        return tfds.sequence(tfds.text(), feature.shape[0]) if feature.shape else tfds.text()
    encoding = "bytes" if feature.kind == "float64" else "none"
    if not feature.shape and encoding == "none":
        return tfds.scalar(feature.kind)
    return tfds.tensor(feature.kind, feature.shape, encoding)
