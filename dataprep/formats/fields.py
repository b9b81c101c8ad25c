"""Fields that are stored with an image, such as a caption, read from the bytes of one record."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from dataprep.dataset.features import NO_FEATURES, Features, Values, from_json, member_value
from dataprep.errors import FormatError, SourceError, UsageError
from dataprep.formats import example
from dataprep.formats.tars import BLOCK_BYTES, Member, split_name, tar_members
from dataprep.formats.tfrecord import example_values
from dataprep.messages import not_one_of, printable

CAPTIONS = ("caption", "txt")
"""Two names of the same field: the webdataset member has the suffix `txt`, and users ask for `caption`."""

Record = bytes | bytearray | memoryview


def read_fields(format_name: str, record: Record, names: Sequence[str], features: Features = NO_FEATURES) -> Values:
    """Return the values of some fields of one sample. Raises FormatError if a field does not exist (the message lists
    those that do), or the record is damaged, and UsageError if the format has no fields.

    Args:
        format_name: Format of the dataset, `webdataset` or `tfrecord`.
        record: The sample's bytes in its shard, headers included: `record_offset` and `record_bytes` of the index.
        names: For webdataset, suffixes of members (text becomes str, other bytes stay), else keys of the .json member.
            For TFRecord, features (text becomes str; one number, or a list of several). If only one of `caption` and
            `txt` exists, either name finds it.
        features: Features of the dataset's manifest: their names come first, and their values have the same types in
            every format.
    """
    if format_name not in _READERS:
        raise UsageError(_no_fields(format_name, names))
    return _READERS[format_name](record, names, features)


def field_names(format_name: str, record: Record) -> list[str]:
    """Return the names that `read_fields` finds in a record. Raises FormatError if the record is damaged."""
    if format_name == "tfrecord":
        return list(_example_in(record)[1])
    reader = _TarRecord(record)
    members = _members(reader)
    return [*members, *_document(reader, members.get("json"))]


def member_suffixes(format_name: str, record: Record) -> frozenset[str]:
    """Return the suffixes of a record's members; none for TFRecord. Raises FormatError for a damaged record."""
    return frozenset(_members(_TarRecord(record)) if format_name == "webdataset" else ())


def read_all_fields(format_name: str, record: Record, image_at: int, leave_out: Container[str]) -> Values:
    """Return the values of all fields of one sample, as `read_fields` does, except the image, which begins at
    `image_at` and may be zeros here, and fields without a value. Raises FormatError if the record is damaged."""
    if format_name == "tfrecord":
        return _read_whole_example(record, image_at, leave_out)
    reader = _TarRecord(record)
    members = _members(reader)
    document = _document(reader, members.get("json"))
    values = {name: value for name, value in document.items() if value is not None and name not in leave_out}
    for suffix, member in members.items():
        if member.offset != image_at and suffix != "json" and suffix not in leave_out:
            values[suffix] = _text(reader.content(member))
    if values.get("txt") == "" and document.get("caption", "") is None:
        values["caption"] = ""  # img2dataset writes a caption that its table lacks as null, and as an empty text
    return values


def check_fields(format_name: str, names: Sequence[str], features: Features = NO_FEATURES) -> None:
    """Raise UsageError if datasets of this format store no fields, or an image folder lacks one of these features."""
    if format_name in _READERS:
        return
    if not features:
        raise UsageError(_no_fields(format_name, names))
    for name in names:
        if name not in features:
            raise UsageError(not_one_of("field", name, sorted(features)))


def check_record_fields(
    format_name: str, record: Record, names: Sequence[str], features: Features = NO_FEATURES
) -> None:
    """Raise UsageError if a sample has no field of one of these names; the message lists those that it has. Raises
    FormatError if the record is damaged."""
    stored = field_names(format_name, record)
    if not stored:
        raise FormatError("record: empty, expected an image at least; build it again")
    existing = dict.fromkeys([*features, *stored])
    for name in names:
        if _known(name, existing) is None:
            raise UsageError(printable(not_one_of("field", name, existing)))


def _no_fields(format_name: str, names: Sequence[str]) -> str:
    return f"fields {', '.join(names)}: {format_name} holds only images; expected {' or '.join(_READERS)}"


def _read_tar(record: Record, names: Sequence[str], features: Features) -> Values:
    reader = _TarRecord(record)
    members = _members(reader)
    document: Values | None = None
    values: Values = {}
    for name in names:
        feature = _known(name, features)
        suffix = _known(name, members) if feature is None else features[feature].member
        if suffix and suffix in members:
            data = reader.content(members[suffix])
            values[name] = _text(data) if feature is None else member_value(name, features[feature], data)
            continue
        if document is None:
            document = _document(reader, members.get("json"))
        found = feature or _known(name, document)
        if suffix:
            raise FormatError(f"record: no member .{suffix}, which has the field {name!a}; expected it after the image")
        if found is None or found not in document:
            raise _missing(name, [f".{suffix}" for suffix in members], document)
        values[name] = document[found] if feature is None else from_json(features[feature], document[found])
    return values


def _members(reader: _TarRecord) -> dict[str, Member]:
    """Return the members of a record by their suffixes. Raises FormatError for a damaged tar."""
    try:
        return {split_name(member.name)[1]: member for member in tar_members(reader) if not member.is_directory}
    except SourceError as error:
        raise FormatError(str(error)) from error


class _TarRecord:
    """A sample's part of a tar, read as if it were a whole tar: two zero blocks are appended as the end marker."""

    archive = "record"

    def __init__(self, record: Record) -> None:
        self._record = memoryview(record)
        self.num_bytes = len(record) + 2 * BLOCK_BYTES

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return the bytes at an offset; fewer than requested only where the end marker ends."""
        data = bytes(self._record[offset : offset + num_bytes])
        return data + bytes(max(0, min(num_bytes, self.num_bytes - offset) - len(data)))

    def content(self, member: Member) -> bytes:
        return bytes(self._record[member.offset : member.offset + member.num_bytes])


def _document(reader: _TarRecord, member: Member | None) -> Values:
    if member is None:
        return {}
    try:
        document = json.loads(reader.content(member))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"record: {member.name!a} is not JSON ({error}); expected an object") from error
    return document if isinstance(document, dict) else {}


def _example_in(record: Record) -> tuple[example.Read, dict[str, example.Feature]]:
    """Return what reads the bytes of a framed Example, and the places of its features. Raises FormatError."""
    data = memoryview(record)

    def read(offset: int, num_bytes: int) -> bytes:
        return bytes(data[offset : offset + num_bytes])

    return read, example.features_of(read, example.FRAME_HEAD_BYTES, len(data) - example.FRAME_TAIL_BYTES)


def _read_example(record: Record, names: Sequence[str], features: Features) -> Values:
    try:
        read, stored = _example_in(record)
        values: Values = {}
        for name in names:
            feature = _known(name, features)
            if feature is not None:
                values |= {name: example_values({feature: features[feature]}, read, stored)[feature]}
                continue
            found = _known(name, stored)
            if found is None:
                raise _missing(name, [], stored)
            values[name] = _value(read, stored[found])
    except FormatError as error:
        raise FormatError(f"record: {error}") from error
    return values


def _read_whole_example(record: Record, image_at: int, leave_out: Container[str]) -> Values:
    def is_image(feature: example.Feature) -> bool:
        return feature.kind == example.BYTES and image_at in (start for start, _ in example.byte_ranges(read, feature))

    try:
        read, stored = _example_in(record)
        return {
            name: _value(read, feature)
            for name, feature in stored.items()
            if feature.kind and name not in leave_out and not is_image(feature)
        }
    except FormatError as error:
        raise FormatError(f"record: {error}") from error


def _value(read: Callable[[int, int], bytes], feature: example.Feature) -> Any:
    """Return the only value of a feature, or a list if there are none or several."""
    values: list[Any] = []
    if feature.kind == example.BYTES:
        values += [_text(read(start, stop - start)) for start, stop in example.byte_ranges(read, feature)]
    elif feature.kind:
        values += (example.floats if feature.kind == example.FLOATS else example.integers)(read, feature)
    return values[0] if len(values) == 1 else values


def _known(name: str, existing: Container[str]) -> str | None:
    candidates = (name, *CAPTIONS) if name in CAPTIONS else (name,)
    return next((candidate for candidate in candidates if candidate in existing), None)


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _missing(name: str, members: Sequence[str], keys: Iterable[str]) -> FormatError:
    existing = ", ".join([*members, *keys])[:300]
    return FormatError(f"field {name!a} does not exist; choose one of these: {existing or '(none)'}")


_READERS: dict[str, Callable[[Record, Sequence[str], Features], Values]] = {
    "webdataset": _read_tar,
    "tfrecord": _read_example,
}
