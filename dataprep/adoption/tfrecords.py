"""Reads the samples of a TFRecord file: framed tf.train.Example messages, written by TFDS, img2dataset or others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from dataprep.adoption.labels import LabelReader
from dataprep.adoption.rows import key_from, key_in_shard, side_from
from dataprep.adoption.tfds import FeatureShape
from dataprep.dataset.index import IndexRow
from dataprep.dataset.records import NO_LABEL, Event
from dataprep.errors import FormatError, SourceError
from dataprep.formats.example import BYTES, INTEGERS, Feature, byte_ranges, features_of, integers, is_single
from dataprep.formats.tars import ByteReader, damaged
from dataprep.formats.wire import FRAME_HEAD_BYTES, FRAME_TAIL_BYTES, frame_length
from dataprep.messages import shown
from dataprep.storage.checksums import crc32c_of

IMAGE_FEATURES = ("image", "jpg", "jpeg", "png", "webp", "image/encoded")
LABEL_FEATURES = ("label", "cls", "image/class/label")
KEY_FEATURES = ("key", "__key__", "file_name", "filename", "image/filename", "image_id", "image/id", "id")
"""Names of the features that may hold image, label and key; the first one that a record has is used."""
SIDE_FEATURES = {"height": ("height", "image/height"), "width": ("width", "image/width")}
MAX_KEY_BYTES = 4096


def tfrecord_rows(
    reader: ByteReader,
    *,
    shard: str,
    labels: LabelReader,
    fields: Counter[str],
    digest: bool,
    seen: Counter[FeatureShape] | None = None,
) -> Iterator[IndexRow | Event]:
    """Yield a row for each record, and an Event for each whose image has no bytes.

    Args:
        reader: The file.
        shard: Name of the file, which becomes part of the keys of records without one.
        labels: Reads the labels; its field is a feature, by default one of LABEL_FEATURES.
        fields: Receives the number of samples that have each feature other than the image.
        digest: Read every image for its CRC32C.
        seen: Receives the number of records by shape of each feature; None to skip counting.

    Raises:
        SourceError: A frame's length does not match its checksum, the file is truncated, a message is no Example, or
            its image is not one value of bytes.
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


def _frames(reader: ByteReader) -> Iterator[tuple[int, int]]:
    """Yield [start, stop) of every record, including its frame."""
    start = 0
    while start < reader.num_bytes:
        head = reader.read(start, FRAME_HEAD_BYTES)
        if len(head) < FRAME_HEAD_BYTES:
            raise damaged(reader, start, f"it ends after {len(head)} bytes of a record: truncated, fetch it again")
        length = frame_length(head)
        if length is None:
            raise damaged(reader, start, "no TFRecord, or a compressed or damaged one; expected plain records")
        stop = start + FRAME_HEAD_BYTES + length + FRAME_TAIL_BYTES
        if stop > reader.num_bytes:
            left = reader.num_bytes - start
            raise damaged(reader, start, f"a record of {stop - start:,} bytes, only {left:,} follow: fetch it again")
        yield start, stop
        start = stop


class _Record:
    """One Example: its features, and errors that say where it lies."""

    def __init__(self, reader: ByteReader, number: int, start: int, stop: int) -> None:
        self._reader, self._number, self._start = reader, number, start
        try:
            self._features = features_of(reader.read, start, stop)
        except FormatError as error:
            raise self._error(f"{error}; expected a tf.train.Example") from error

    def shapes(self) -> Iterator[FeatureShape]:
        """Yield the shapes of all features."""
        for name, feature in self._features.items():
            yield FeatureShape(name, feature.kind, self._is_single(feature))

    def key(self) -> str:
        """Return the key from the first feature that has one; empty if none has."""
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
        ranges = self._ranges(feature) if feature is not None and feature.kind == BYTES else []
        if len(ranges) != 1:
            names = ", ".join(sorted(self._features)[:20])
            what = f"{len(ranges)} values in {name}" if name is not None else "no image"
            raise self._error(f"{what}, expected one in {', '.join(IMAGE_FEATURES)}; its features are {shown(names)}")
        return ranges[0]

    def fields(self) -> Iterator[str]:
        """Yield the names of all features that have a value, but for the image."""
        image = self._first(IMAGE_FEATURES)
        return (name for name, feature in self._features.items() if name != image and feature.kind)

    def label(self, labels: LabelReader) -> int:
        name = self._first((labels.field,) if labels.field is not None else LABEL_FEATURES)
        if name is None:
            return NO_LABEL
        feature = self._features[name]
        values: Sequence[object] = self._integers(feature) if feature.kind == INTEGERS else [self._text(feature)]
        try:
            return labels.label(values[0] if len(values) == 1 else list(values), name)
        except SourceError as error:
            raise self._error(str(error)) from error

    def integer(self, names: Sequence[str]) -> int | None:
        """Return the only value of the first existing one of these features; None if it has not exactly one value."""
        name = self._first(names)
        feature = self._features[name] if name is not None else None
        values = self._integers(feature) if feature is not None and feature.kind == INTEGERS else []
        return values[0] if len(values) == 1 else None

    def _first(self, names: Sequence[str]) -> str | None:
        return next((name for name in names if name in self._features), None)

    def _text(self, feature: Feature) -> str:
        """Return the only value of a feature as text; empty if it has not exactly one value, or one that is too
        long."""
        if feature.kind == INTEGERS:
            values = self._integers(feature)
            return str(values[0]) if len(values) == 1 else ""
        ranges = self._ranges(feature) if feature.kind == BYTES else []
        if len(ranges) != 1 or ranges[0][1] - ranges[0][0] > MAX_KEY_BYTES:
            return ""
        start, stop = ranges[0]
        return self._reader.read(start, stop - start).decode("utf-8", "surrogateescape")

    def _integers(self, feature: Feature) -> list[int]:
        try:
            return integers(self._reader.read, feature)
        except FormatError as error:
            raise self._error(str(error)) from error

    def _is_single(self, feature: Feature) -> bool:
        try:
            return is_single(self._reader.read, feature)
        except FormatError as error:
            raise self._error(str(error)) from error

    def _ranges(self, feature: Feature) -> list[tuple[int, int]]:
        try:
            return byte_ranges(self._reader.read, feature)
        except FormatError as error:
            raise self._error(str(error)) from error

    def _error(self, what: str) -> SourceError:
        return damaged(self._reader, self._start, f"record {self._number:,}: {what}")
