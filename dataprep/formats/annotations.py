"""Annotations in tf.train.Example messages, and their description for TFDS.

A feature of the dataset is one feature of the Example; a column of records is called `objects/bbox`. The values of a
feature are stored one after the other, whatever its shape. An Example cannot hold floats of 64 bits, so float64 values
are the bytes of a little-endian array, which TFDS decodes (`encoding: bytes`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from dataprep.dataset.features import Feature, Features, Kind, Values
from dataprep.errors import FormatError
from dataprep.formats import example, tfds
from dataprep.formats.wire import Read

# Writing


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


# Reading


def example_values(features: Features, read: Read, found: Mapping[str, example.Feature]) -> Values:
    """Return the annotations of an Example, given the positions of its features.

    Raises:
        FormatError: A feature is absent, or of another kind or length.
    """
    values: Values = {}
    for name, feature in features.items():
        if feature.kind == "records":
            values[name] = {
                column: _value(f"{name}/{column}", inner, read, found) for column, inner in feature.columns.items()
            }
        else:
            values[name] = _value(name, feature, read, found)
    return values


def _value(path: str, feature: Feature, read: Read, found: Mapping[str, example.Feature]) -> Any:
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


def _integers(read: Read, stored: example.Feature) -> list[Any]:
    return list(example.integers(read, stored))


def _booleans(read: Read, stored: example.Feature) -> list[Any]:
    return [bool(value) for value in example.integers(read, stored)]


def _doubles(read: Read, stored: example.Feature) -> list[Any]:
    data = b"".join(_strings(read, stored))
    if len(data) % 8:
        raise FormatError(f"{len(data):,} bytes of float64, expected 8 for each")
    return list(struct.unpack(f"<{len(data) // 8}d", data))


def _strings(read: Read, stored: example.Feature) -> list[Any]:
    return [read(start, stop - start) for start, stop in example.byte_ranges(read, stored)]


def _texts(read: Read, stored: example.Feature) -> list[Any]:
    try:
        return [data.decode() for data in _strings(read, stored)]
    except UnicodeDecodeError as error:
        raise FormatError("text that is not UTF-8") from error


_DECODERS: dict[Kind, tuple[int, Callable[[Read, example.Feature], list[Any]]]] = {
    "bool": (example.INTEGERS, _booleans),
    "bytes": (example.BYTES, _strings),
    "float32": (example.FLOATS, lambda read, stored: list(example.floats(read, stored))),
    "float64": (example.BYTES, _doubles),
    "int64": (example.INTEGERS, _integers),
    "text": (example.BYTES, _texts),
}


# TFDS


def tfds_features(features: Features) -> Iterator[tuple[str, tfds.Feature]]:
    """Yield the entries of features.json that describe annotations; records become a dictionary of columns."""
    for name, feature in sorted(features.items()):
        if feature.kind == "records":
            yield name, tfds.features_dict({column: _tfds_feature(inner) for column, inner in feature.columns.items()})
        else:
            yield name, _tfds_feature(feature)


def _tfds_feature(feature: Feature) -> tfds.Feature:
    if feature.kind in ("bytes", "text"):
        return tfds.sequence(tfds.text(), feature.shape[0]) if feature.shape else tfds.text()
    encoding = "bytes" if feature.kind == "float64" else "none"
    if not feature.shape and encoding == "none":
        return tfds.scalar(feature.kind)
    return tfds.tensor(feature.kind, feature.shape, encoding)
