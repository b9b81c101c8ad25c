"""WebDataset: a shard is a POSIX tar in which `key.jpg`, `key.cls` and `key.json` follow each other.

The reader renders what the writer would have written and compares the bytes, so that both share the same few lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from json.encoder import encode_basestring_ascii
from typing import BinaryIO

from dataprep.dataset.features import (
    MAX_ANNOTATION_BYTES,
    NO_FEATURES,
    Features,
    Values,
    annotation_values,
    annotations_json,
    values_of,
)
from dataprep.dataset.records import NO_LABEL, Placement, Sample
from dataprep.errors import FormatError
from dataprep.formats.base import (
    MAX_FIELD_BYTES,
    MAX_IMAGE_BYTES,
    CheckedStream,
    DatasetInfo,
    ShardFormat,
    StoredSample,
    check_sample,
    is_key,
    sample_fault,
)
from dataprep.formats.tars import BLOCK_BYTES, EXTENDED, FIELDS, NAME_BYTES, header, members_around

_ZERO_BLOCK = bytes(BLOCK_BYTES)

# The path of a file whose name ustar cannot hold.
_EXTENDED_RECORD = re.compile(rb"\d{2,3} path=([^\n]{1,300})\.jpg\n\0*")

_OCTAL_SIZE = re.compile(rb"[0-7]{11}\0")
_LABEL = re.compile(rb"0|[1-9]\d{0,9}")
_SIDES = re.compile(rb'.*"height":(\d{1,5}),(?:"label":\d{1,10},)?"orientation":(\d),"width":(\d{1,5})\}', re.DOTALL)


class WebDatasetFormat(ShardFormat):
    """Tars that webdataset, Hugging Face datasets and plain `tar` read.

    A key becomes the members `key.jpg` (the image), with classes `key.cls` (the label in decimal), and
    `key.json` with height, width and orientation, with classes label and class_name, and with features their values. A
    side of 0 was not checked.
    """

    name = "webdataset"

    def shard_file(self, dataset: str, split: str, index: int, total: int) -> str:
        """Return a name such as `train/coco-dup5-train-00003-of-00256.tar`."""
        digits = max(5, len(str(total)))
        return f"{split}/{dataset}-{split}-{index:0{digits}d}-of-{total:0{digits}d}.tar"

    def open_writer(self, stream: BinaryIO, *, has_classes: bool, features: Features = NO_FEATURES) -> WebDatasetWriter:
        """Return a writer at the start of an empty stream."""
        return WebDatasetWriter(stream, has_classes=has_classes, features=features)

    def read_shard(
        self, stream: BinaryIO, *, classes: tuple[str, ...], features: Features = NO_FEATURES
    ) -> Iterator[StoredSample]:
        """Yield the samples of one shard in order.

        Raises:
            FormatError: The bytes are not what the writer would have written for any samples. A tar keeps no
                checksum of its members' contents: another image, or another height, passes.
        """
        source = CheckedStream(stream)
        while (block := source.take(BLOCK_BYTES)) != _ZERO_BLOCK:
            yield _read_sample(source, block, classes, features)
        if source.take(BLOCK_BYTES) != _ZERO_BLOCK:
            raise source.error("other bytes", "a second zero block", at=source.offset - BLOCK_BYTES)
        if source.take_unless_at_end(1):
            raise source.error("more bytes", "the end of the file", at=source.offset - 1)

    def metadata_files(self, info: DatasetInfo) -> dict[str, bytes]:
        """Return no files: a tar needs no further metadata."""
        return {}


class WebDatasetWriter:
    """Appends samples to a tar. A sample costs 7 us on top of the write."""

    def __init__(self, stream: BinaryIO, *, has_classes: bool, features: Features = NO_FEATURES) -> None:
        self._stream = stream
        self._has_classes = has_classes
        self._features = features
        self._offset = 0

    def write(self, sample: Sample) -> Placement:
        """Append one sample.

        Raises:
            FormatError: The sample is not one that a shard can hold.
        """
        check_sample(sample, has_classes=self._has_classes)
        label = {b".cls": b"%d" % sample.label} if self._has_classes else {}
        image_bytes, fields = len(sample.image), {**label, b".json": _json_of(sample, self._features)}
        head, tail = members_around(sample.key.encode(), b".jpg", image_bytes, fields)
        # Three writes: joining 110 kB of image with its header costs 3 us more.
        self._stream.write(head)
        self._stream.write(sample.image)
        self._stream.write(tail)
        offset = self._offset
        self._offset += len(head) + image_bytes + len(tail)
        return Placement(offset, self._offset - offset, offset + len(head), image_bytes)

    def close(self) -> None:
        """Write the two zero blocks that end a tar."""
        self._stream.write(_ZERO_BLOCK * 2)


def _json_of(sample: Sample, features: Features) -> bytes:
    """Write all fields, sorted and none null: Hugging Face datasets infers a schema from the first samples."""
    if features:
        return _annotated_json(sample, features)
    height, orientation, width = sample.height, sample.orientation, sample.width
    if not sample.class_name:
        return b'{"height":%d,"orientation":%d,"width":%d}' % (height, orientation, width)
    class_name = encode_basestring_ascii(sample.class_name).encode()
    text = b'{"class_name":%b,"height":%d,"label":%d,"orientation":%d,"width":%d}'
    return text % (class_name, height, sample.label, orientation, width)


def _annotated_json(sample: Sample, features: Features) -> bytes:
    """Return all fields of an annotated sample as JSON. Raises FormatError if they do not have the features' types."""
    fields: Values = {"height": sample.height, "orientation": sample.orientation, "width": sample.width}
    if sample.class_name:
        fields |= {"class_name": sample.class_name, "label": sample.label}
    annotation_values(features, sample.annotations)
    document = json.loads(sample.annotations) | fields
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _read_annotations(text: bytes, features: Features, has_classes: bool) -> tuple[tuple[int, int, int], bytes]:
    """Return height, orientation and width, and the annotations; zeros and no annotations if they are malformed."""
    try:
        document = json.loads(text)
        sides = tuple(document.pop(name) for name in ("height", "orientation", "width"))
        for name in ("class_name", "label") if has_classes else ():
            del document[name]
        annotations = annotations_json(features, values_of(features, document))
    except (FormatError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return (0, 0, 0), b""
    return (sides if all(type(side) is int for side in sides) else (0, 0, 0)), annotations


def _read_sample(source: CheckedStream, block: bytes, classes: tuple[str, ...], features: Features) -> StoredSample:
    """Read one sample whose first header block has been read."""
    start = source.offset - BLOCK_BYTES
    if block[156:157] == EXTENDED:
        block += source.take(2 * BLOCK_BYTES)
    key = _key_of(source, block, start)
    image_offset = source.offset
    image = _read_member(source, block, key, b".jpg", MAX_IMAGE_BYTES)
    label, class_name = NO_LABEL, ""
    if classes:
        digits = _read_next_member(source, key, b".cls")
        if not _LABEL.fullmatch(digits) or int(digits) >= len(classes):
            got = f"{digits[:20]!r} as the label of {key.decode()}"
            raise source.error(got, f"0 to {len(classes) - 1}", at=start)
        label = int(digits)
        class_name = classes[label]
    text = _read_next_member(source, key, b".json", MAX_FIELD_BYTES + (MAX_ANNOTATION_BYTES if features else 0))
    annotations = b""
    if features:
        (height, orientation, width), annotations = _read_annotations(text, features, bool(classes))
    else:
        sides = _SIDES.fullmatch(text)
        height, orientation, width = (int(digits) for digits in sides.groups()) if sides else (0, 0, 0)
    sample = Sample(key.decode(), image, label, class_name, height, width, orientation, annotations)
    unfit = bool(features and not annotations) or sample_fault(sample, has_classes=bool(classes)) is not None
    if unfit or text != _json_of(sample, features):
        got = f"{text[:200]!r} as {key.decode()}.json"
        raise source.error(got, "the fields that are written there", at=start)
    return StoredSample(sample, Placement(start, source.offset - start, image_offset, len(image)))


def _key_of(source: CheckedStream, head: bytes, start: int) -> bytes:
    """Return the key that the headers of an image's member name."""
    if len(head) == BLOCK_BYTES:
        prefix, name = head[345:500].rstrip(b"\0"), head[:NAME_BYTES].rstrip(b"\0")
        path = prefix + b"/" + name if prefix else name
        key, suffix = path[:-4], path[-4:]
    else:
        record = _EXTENDED_RECORD.fullmatch(head, BLOCK_BYTES, 2 * BLOCK_BYTES)
        key, suffix = (record[1], b".jpg") if record else (b"", b"")
    if suffix != b".jpg" or not is_key(key.decode("ascii", "replace")):
        name = head[:NAME_BYTES].rstrip(b"\0")
        raise source.error(f"a header of {name!r}", "the header of a sample's .jpg", at=start)
    return key


def _read_next_member(source: CheckedStream, key: bytes, suffix: bytes, limit_bytes: int = MAX_FIELD_BYTES) -> bytes:
    head = source.take(len(header(key, suffix, 0)))
    return _read_member(source, head, key, suffix, limit_bytes)


def _read_member(source: CheckedStream, head: bytes, key: bytes, suffix: bytes, limit_bytes: int) -> bytes:
    """Take the data and the padding of a member whose headers are read already, and return the data."""
    start = source.offset - len(head)
    size = head[-BLOCK_BYTES:][124:136]
    num_bytes = int(size[:-1], 8) if _OCTAL_SIZE.fullmatch(size) else 0
    expected = header(key, suffix, num_bytes)
    if head != expected:
        at = next(i for i, (got, due) in enumerate(zip(head, expected, strict=False)) if got != due)
        field = next(name for name, end in FIELDS if at % BLOCK_BYTES < end)
        got = f"another {field} in the header"
        raise source.error(got, f"the one of {(key + suffix).decode()}", at=start + at)
    if num_bytes > limit_bytes:
        name = (key + suffix).decode()
        raise source.error(f"{name} of {num_bytes:,} bytes", f"at most {limit_bytes:,}", at=start)
    data = source.take(num_bytes)
    padding = source.take(-num_bytes % BLOCK_BYTES)
    if padding.strip(b"\0"):
        raise source.error("other bytes", "zeros up to the next block", at=source.offset - len(padding))
    return data
