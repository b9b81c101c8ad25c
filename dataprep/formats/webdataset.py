"""WebDataset: a shard is a POSIX tar in which `key.jpg`, `key.cls`, `key.json` and the members of features such as
`key.txt` follow each other.

The reader renders what the writer would have written and compares the bytes, so that both share the same few lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from json.encoder import encode_basestring_ascii
from typing import BinaryIO

from dataprep.dataset.features import (
    MAX_ANNOTATION_BYTES,
    NO_FEATURES,
    Feature,
    Features,
    Values,
    annotation_values,
    annotations_json,
    from_json,
    member_bytes,
    member_fault,
    member_faults,
    member_value,
    to_json,
)
from dataprep.dataset.records import NO_LABEL, Placement, Sample
from dataprep.errors import FormatError, UsageError
from dataprep.formats import base
from dataprep.formats.tars import BLOCK_BYTES, EXTENDED, FIELDS, NAME_BYTES, header, members_around
from dataprep.messages import not_one_of

_ZERO_BLOCK = bytes(BLOCK_BYTES)

# The path of a file whose name ustar cannot hold.
_EXTENDED_RECORD = re.compile(rb"\d{2,3} path=([^\n]{1,300})\.jpg\n\0*")

_CAPTIONS = ("caption", "text", "txt")
"""Texts that may have the member `txt`, which img2dataset and open_clip read; the first that exists gets it."""
_OCTAL_SIZE = re.compile(rb"[0-7]{11}\0")
_LABEL = re.compile(rb"0|[1-9]\d{0,9}")
_SIDES = re.compile(rb'.*"height":(\d{1,5}),(?:"label":\d{1,10},)?"orientation":(\d),"width":(\d{1,5})\}', re.DOTALL)


class WebDatasetFormat(base.ShardFormat):
    """Tars that webdataset, Hugging Face datasets and plain `tar` read.

    A key becomes the members `key.jpg` (the image), with classes `key.cls` (the label in decimal), `key.json` with
    height, width and orientation, with classes label and class_name, and the members of features that have their own.
    The JSON has the values of the other features. A side of 0 was not checked.
    """

    name = "webdataset"

    def shard_file(self, dataset: str, split: str, index: int, total: int) -> str:
        """Return a name such as `train/coco-dup5-train-00003-of-00256.tar`."""
        digits = max(5, len(str(total)))
        return f"{split}/{dataset}-{split}-{index:0{digits}d}-of-{total:0{digits}d}.tar"

    def placed(self, features: Features, members: Mapping[str, str]) -> Features:
        """Return the features with the suffixes of their members: those that were chosen or that the source knows, else
        `txt` for a caption, and its name for bytes. A feature without one, or with `json`, is in the JSON. Raises
        UsageError if a feature does not exist, or a suffix is taken or not allowed."""
        for name in members:
            if name not in features:
                raise UsageError(not_one_of("`members`", name, sorted(features)))
        found = {name: each.member for name, each in features.items() if each.member}
        found |= {name: "" if suffix == "json" else suffix for name, suffix in members.items()}
        for name, feature in sorted(features.items()):
            suffix = _usual_member(name, feature)
            if suffix not in found.values():
                found.setdefault(name, suffix)
        placed = {name: replace(each, member=found.get(name, "")) for name, each in features.items()}
        for fault in member_faults(placed):
            raise UsageError(f"`members`: {fault}")
        return placed

    def open_writer(self, stream: BinaryIO, *, has_classes: bool, features: Features = NO_FEATURES) -> base.ShardWriter:
        around = partial(_around_image, features)
        return base.ShardWriter(stream, around, has_classes=has_classes, end=_ZERO_BLOCK * 2)

    def read_shard(
        self, stream: BinaryIO, *, classes: tuple[str, ...], features: Features = NO_FEATURES
    ) -> Iterator[base.StoredSample]:
        """Yield the samples of one shard in order. Raises FormatError for bytes that the writer never writes. A changed
        image or height is not noticed, because a tar has no checksum of its members' contents."""
        source = base.CheckedStream(stream)
        while (block := source.take(BLOCK_BYTES)) != _ZERO_BLOCK:
            yield _read_sample(source, block, classes, features)
        if source.take(BLOCK_BYTES) != _ZERO_BLOCK:
            raise source.error("other bytes", "a second zero block", at=source.offset - BLOCK_BYTES)
        if source.take_unless_at_end(1):
            raise source.error("more bytes", "the end of the file", at=source.offset - 1)

    def metadata_files(self, info: base.DatasetInfo) -> dict[str, bytes]:
        """Return no files: a tar needs no further metadata."""
        return {}


def _usual_member(name: str, feature: Feature) -> str:
    """Return the suffix of a feature's member by default; empty if its value is in the JSON."""
    if feature.shape or feature.kind not in ("bytes", "text"):
        return ""
    if feature.kind == "text":
        return "txt" if name.lower() in _CAPTIONS else ""
    suffix = re.sub(r"[^a-z0-9_.-]", "_", name.lower())
    return "" if member_fault(suffix) else suffix


def _around_image(features: Features, sample: Sample) -> tuple[bytes, bytes]:
    """Return the bytes of a sample's members before and after its image."""
    members = _members_of(sample, features, annotation_values(features, sample.annotations))
    return members_around(sample.key.encode(), b".jpg", len(sample.image), members)


@lru_cache(maxsize=4096)  # of a class whose pictures have the same size, as thumbnails have
def _plain_members(class_name: str, label: int, height: int, orientation: int, width: int) -> dict[bytes, bytes]:
    """Return the members of a sample without features, with all fields in the JSON, sorted and none null: Hugging Face
    datasets infers a schema from the first samples."""
    if not class_name:
        return {b".json": b'{"height":%d,"orientation":%d,"width":%d}' % (height, orientation, width)}
    text = b'{"class_name":%b,"height":%d,"label":%d,"orientation":%d,"width":%d}'
    json_name = encode_basestring_ascii(class_name).encode()
    return {b".cls": b"%d" % label, b".json": text % (json_name, height, label, orientation, width)}


def _members_of(sample: Sample, features: Features, values: Values) -> dict[bytes, bytes]:
    """Return the contents of the members that follow the image, by suffix; they must not be changed."""
    plain = _plain_members(sample.class_name, sample.label, sample.height, sample.orientation, sample.width)
    if not features:
        return plain
    members = dict(plain)
    in_json = {name: to_json(each, values[name]) for name, each in features.items() if not each.member}
    if in_json:
        document = json.loads(plain[b".json"]) | in_json
        members[b".json"] = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    for name, feature in _with_members(features):
        members[b"." + feature.member.encode()] = member_bytes(feature, values[name])
    return members


def _with_members(features: Features) -> list[tuple[str, Feature]]:
    """Return the features with their own members, in the order of the members."""
    return sorted((item for item in features.items() if item[1].member), key=lambda item: item[1].member)


def _read_json(text: bytes, features: Features) -> tuple[tuple[int, int, int], Values]:
    """Return height, orientation and width, and the values of features without members; zeros if they are malformed."""
    try:
        document = json.loads(text)
        sides = tuple(document[name] for name in ("height", "orientation", "width"))
        values = {name: from_json(each, document[name]) for name, each in features.items() if not each.member}
    except (FormatError, ValueError, KeyError, TypeError, RecursionError):
        return (0, 0, 0), {}
    return (sides if all(type(side) is int for side in sides) else (0, 0, 0)), values


def _read_sample(
    source: base.CheckedStream, block: bytes, classes: tuple[str, ...], features: Features
) -> base.StoredSample:
    """Read one sample whose first header block has been read."""
    start = source.offset - BLOCK_BYTES
    if block[156:157] == EXTENDED:
        block += source.take(2 * BLOCK_BYTES)
    key = _key_of(source, block, start)
    image_offset = source.offset
    image = _read_member(source, block, key, b".jpg", base.MAX_IMAGE_BYTES)
    label, class_name, found = NO_LABEL, "", {}
    if classes:
        digits = found[b".cls"] = _read_next_member(source, key, b".cls")
        if not _LABEL.fullmatch(digits) or int(digits) >= len(classes):
            got = f"{digits[:20]!r} as the label of {key.decode()}"
            raise source.error(got, f"0 to {len(classes) - 1}", at=start)
        label = int(digits)
        class_name = classes[label]
    left_bytes = MAX_ANNOTATION_BYTES if features else 0
    text = found[b".json"] = _read_next_member(source, key, b".json", base.MAX_FIELD_BYTES + left_bytes)
    if features:
        (height, orientation, width), values = _read_json(text, features)
    else:
        sides, values = _SIDES.fullmatch(text), {}
        height, orientation, width = (int(digits) for digits in sides.groups()) if sides else (0, 0, 0)
    for name, feature in _with_members(features):
        suffix = b"." + feature.member.encode()
        data = found[suffix] = _read_next_member(source, key, suffix, left_bytes)
        left_bytes -= len(data)
        try:
            values[name] = member_value(name, feature, data)
        except FormatError as error:
            raise _unlike_written(source, key + suffix, data, start) from error
    sample = Sample(key.decode(), image, label, class_name, height, width, orientation)
    try:
        sample = sample._replace(annotations=annotations_json(features, values)) if features else sample
        due = {} if base.sample_fault(sample, has_classes=bool(classes)) else _members_of(sample, features, values)
    except FormatError:
        due = {}
    for suffix in found if found != due else ():
        if found[suffix] != due.get(suffix) and suffix != b".cls":
            raise _unlike_written(source, key + suffix, found[suffix], start)
    return base.StoredSample(sample, Placement(start, source.offset - start, image_offset, len(image)))


def _unlike_written(source: base.CheckedStream, name: bytes, data: bytes, start: int) -> FormatError:
    return source.error(f"{data[:200]!r} as {name.decode()}", "the fields that are written there", at=start)


def _key_of(source: base.CheckedStream, head: bytes, start: int) -> bytes:
    """Return the key that the headers of an image's member name."""
    if len(head) == BLOCK_BYTES:
        prefix, name = head[345:500].rstrip(b"\0"), head[:NAME_BYTES].rstrip(b"\0")
        path = prefix + b"/" + name if prefix else name
        key, suffix = path[:-4], path[-4:]
    else:
        record = _EXTENDED_RECORD.fullmatch(head, BLOCK_BYTES, 2 * BLOCK_BYTES)
        key, suffix = (record[1], b".jpg") if record else (b"", b"")
    if suffix != b".jpg" or not base.is_key(key.decode("ascii", "replace")):
        name = head[:NAME_BYTES].rstrip(b"\0")
        raise source.error(f"a header of {name!r}", "the header of a sample's .jpg", at=start)
    return key


def _read_next_member(
    source: base.CheckedStream, key: bytes, suffix: bytes, limit_bytes: int = base.MAX_FIELD_BYTES
) -> bytes:
    head = source.take(BLOCK_BYTES)
    if head[156:157] == EXTENDED:
        head += source.take(2 * BLOCK_BYTES)
    return _read_member(source, head, key, suffix, limit_bytes)


def _read_member(source: base.CheckedStream, head: bytes, key: bytes, suffix: bytes, limit_bytes: int) -> bytes:
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
