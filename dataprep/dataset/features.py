"""Features: names and types of a sample's values other than image, key and label.

A manifest lists them by name, and every format stores the same values under the same names. Annotations are the values
of one sample, as canonical JSON: `{"caption":"a cat","objects":{"bbox":[[1.0,2.0,3.0,4.0]],"category":[7]}}`. No value
is null, and each has the type of its feature, so that a reader can decode a sample without seeing another.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dataprep.dataset.documents import JsonObject
from dataprep.errors import FormatError
from dataprep.messages import quoted, shortened

Kind = Literal["bool", "bytes", "float32", "float64", "int64", "records", "text"]

MAX_FEATURES = 500
"""Maximum number of features of a dataset, including the columns of records."""
MAX_RANK = 3
"""Maximum number of nested lists."""
MAX_LENGTH = 1_000_000
"""Maximum length of a list of fixed length."""
MAX_ANNOTATION_BYTES = 1 << 20
RESERVED = frozenset(
    {"class_name", "cls", "file_name", "height", "image", "jpg", "json", "key", "label", "orientation", "width"}
)
"""Names that every dataset uses already, or that have another meaning for readers of a format."""
WRITTEN_BY_BUILDS = RESERVED - {"file_name"}
"""Reserved names whose values every build writes itself."""
FILE_NAME = "file_name"
"""The one reserved feature that a build adds: the original's name, which TFDS expects in records of imagenet2012."""
BOXES = frozenset({"bbox", "bboxes", "boxes"})
"""Names, in lower case, of features and columns with boxes."""
_PLACES = BOXES | {"keypoints", "segmentation"}
_NAME = re.compile(r"(?!__)[^/\x00-\x1f\x7f\ud800-\udfff]{1,100}")
_MEMBER = re.compile(
    r"(?!__)(?=.{1,100}\Z)(?!(?:cls|jpg|json)\Z)(?!(?:.*\.)?(?:pickle|pkl|pt|pth|pyd)\Z)[a-z0-9_-]++(?:\.[a-z0-9_-]++)*+"
)
"""Pattern of the suffixes that members of features may have. The suffixes of image, label and JSON are taken,
webdataset keeps `__key__` for itself, and it would run the code that a pickle names."""
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class Feature:
    """The type of one named value."""

    kind: Kind
    """Type of a value or, in a list, of each; `records` are columns of equal length."""
    shape: tuple[int | None, ...] = ()
    """Lengths of nested lists, None for any length: () is one value, (4,) a list of four, (None, 4) lists of four."""
    columns: dict[str, Feature] = field(default_factory=dict)
    """Columns of `records`, by name; each begins with a length of None, the number of records."""
    member: str = field(default="", compare=False)
    """Suffix of the value's member in WebDataset shards, such as `txt`; empty for the JSON. Not part of the type."""


Features = Mapping[str, Feature]
Values = JsonObject
"""Values of one sample, or of a JSON document, by name."""
NO_FEATURES: Features = {}


def features_document(features: Features) -> Values:
    """Return features as JSON values, without empty shapes and absent columns."""
    return {name: _feature_document(feature) for name, feature in sorted(features.items())}


def _feature_document(feature: Feature) -> Values:
    columns = features_document(feature.columns)
    document = {"kind": feature.kind, "shape": list(feature.shape), "columns": columns, "member": feature.member}
    return {name: value for name, value in document.items() if value}


def places_in_images(features: Features) -> list[str]:
    """Return the names of features and columns that hold positions in the image, such as `objects/bbox`."""
    paths = [(name,) for name in features] + [(name, column) for name in features for column in features[name].columns]
    return sorted("/".join(path) for path in paths if path[-1].lower() in _PLACES)


def feature_faults(features: Features) -> Iterator[str]:
    """Yield the faults of features: names that are taken, shapes that no format stores, too many features."""
    if sum(1 + len(feature.columns) for feature in features.values()) > MAX_FEATURES:
        yield f"{len(features):,} features, expected at most {MAX_FEATURES} with all their columns"
        return
    for name, feature in features.items():
        if name != FILE_NAME and (fault := name_fault(name)):
            yield fault
        columns = feature.columns if feature.kind == "records" else {name: feature}
        if not columns or (feature.kind == "records") != bool(feature.columns) or (feature.columns and feature.shape):
            yield f"feature {quoted(name)} is neither a list of records with columns nor a value"
        for inner, column in columns.items():
            if not _is_sound(column, in_records=feature.kind == "records") or not _NAME.fullmatch(inner):
                yield f"feature {quoted(name)}: {quoted(inner)} of kind {column.kind} and shape {quoted(column.shape)}"
        if any(column.member for column in feature.columns.values()):
            yield f"feature {quoted(name)}: a column with a member of its own"
    yield from member_faults(features)


def member_faults(features: Features) -> Iterator[str]:
    """Yield the faults of the features' members: suffixes that are not allowed, or taken."""
    for suffix, count in Counter(each.member for each in features.values() if each.member).items():
        if fault := member_fault(suffix):
            yield fault
        elif count > 1:
            yield f"{count} features with the suffix {quoted(suffix)}, expected one"


def member_fault(suffix: str) -> str:
    """Return why no feature can have a member with this suffix; empty if one can."""
    if _MEMBER.fullmatch(suffix):
        return ""
    expected = "1 to 100 of a-z, 0-9, _ and -, with single dots between them, not cls, jpg, json, __NAME or a pickle"
    return f"the suffix {quoted(suffix)}, expected {expected}"


def name_fault(name: str) -> str:
    """Return why a feature cannot have this name; empty if it can."""
    if name in RESERVED:
        return f"the name {quoted(name)} is taken, by every sample or by readers of shards"
    if not _NAME.fullmatch(name):
        return f"the name {quoted(name)} is not allowed: expected 1 to 100 characters, no '/', no '__' in front"
    return ""


def _is_sound(feature: Feature, *, in_records: bool) -> bool:
    if feature.kind == "records" or feature.columns or len(feature.shape) > MAX_RANK:
        return False
    if in_records and feature.shape[:1] != (None,):
        return False
    if any(length is None for length in feature.shape[1:]) or (len(feature.shape) > 1 and feature.kind in _STRINGS):
        return False
    return all(length is None or 1 <= length <= MAX_LENGTH for length in feature.shape)


# Annotations: the values of one sample


def annotations_json(features: Features, values: Mapping[str, Any]) -> bytes:
    """Return the values of one sample as canonical JSON. Raises FormatError if a value is absent, unknown, or not of
    its feature's type; the caller adds the sample to the text."""
    if values.keys() != features.keys():
        odd = sorted(values.keys() ^ features.keys())
        raise FormatError(f"{quoted(odd[0])} is {'absent' if odd[0] in features else 'not a feature of the dataset'}")
    for name, feature in features.items():
        _check(name, feature, values[name])
    text = _dumps({name: to_json(features[name], values[name]) for name in features})
    if len(text) > MAX_ANNOTATION_BYTES:
        raise FormatError(f"{len(text):,} bytes of annotations, expected at most {MAX_ANNOTATION_BYTES:,}")
    return text


def annotation_values(features: Features, annotations: bytes) -> Values:
    """Return the values of annotations that `annotations_json` wrote. Raises FormatError if `annotations_json` did not
    write these bytes. The caller adds the sample's name to the message."""
    if not features:
        if annotations:
            raise FormatError("annotations without features")
        return {}
    try:
        document = json.loads(annotations)
    except (ValueError, RecursionError) as error:
        raise FormatError("annotations are not JSON") from error
    return values_of(features, document)


def values_of(features: Features, document: Any) -> Values:
    """Return the values of a JSON object, which must have a field for each feature and no other. Raises FormatError if
    a value is absent, unknown, or not of its feature's type; the caller adds the sample to the text."""
    if not isinstance(document, dict) or document.keys() != features.keys():
        names = sorted(map(str, document)) if isinstance(document, dict) else document
        raise FormatError(f"fields {quoted(names)}, expected {quoted(sorted(features))}")
    values = {}
    for name, feature in features.items():
        values[name] = from_json(feature, document[name])
        _check(name, feature, values[name])
    return values


def to_json(feature: Feature, value: Any) -> Any:
    """Return a value as a JSON value; bytes become base64."""
    if feature.kind == "records":
        return {name: to_json(column, value[name]) for name, column in feature.columns.items()}
    if feature.kind != "bytes":
        return value
    return [to_json(feature, item) for item in value] if isinstance(value, list) else base64.b64encode(value).decode()


def from_json(feature: Feature, value: Any) -> Any:
    """Return a feature's value from its JSON value; base64 is decoded. Raises FormatError for other text."""
    if feature.kind == "records" and isinstance(value, dict) and value.keys() == feature.columns.keys():
        return {name: from_json(feature.columns[name], item) for name, item in value.items()}
    if feature.kind != "bytes":
        return value
    if isinstance(value, list):
        return [from_json(feature, item) for item in value]
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise FormatError(f"{quoted(value)} is not base64") from error


def member_bytes(feature: Feature, value: Any) -> bytes:
    """Return a value as the content of its own member: text as UTF-8, bytes as they are, others as JSON."""
    if feature.shape or feature.kind not in _STRINGS:
        return _dumps(to_json(feature, value))
    return bytes(value) if feature.kind == "bytes" else str(value).encode()


def member_value(name: str, feature: Feature, data: bytes) -> Any:
    """Return a feature's value from its member's content. Raises FormatError if `member_bytes` did not write it."""
    try:
        if feature.shape or feature.kind not in _STRINGS:
            value = from_json(feature, json.loads(data))
        else:
            value = data if feature.kind == "bytes" else data.decode()
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{quoted(name)} is {shown_value(data)}, expected {described(feature)}") from error
    _check(name, feature, value)
    return value


def _dumps(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _check(name: str, feature: Feature, value: Any) -> None:
    if feature.kind != "records":
        if not _fits(feature.kind, feature.shape, value):
            raise FormatError(f"{quoted(name)} is {shown_value(value)}, expected {described(feature)}")
        return
    if not isinstance(value, dict) or value.keys() != feature.columns.keys():
        raise FormatError(f"{quoted(name)} is {shown_value(value)}, expected {described(feature)}")
    for column, inner in feature.columns.items():
        _check(f"{name}/{column}", inner, value[column])
    if len({len(items) for items in value.values()}) > 1:
        raise FormatError(f"{quoted(name)} has columns of different lengths, expected one value per record in each")


def _fits(kind: Kind, shape: tuple[int | None, ...], value: Any) -> bool:
    if not shape:
        return _FITS[kind](value)
    fits_length = isinstance(value, list) and (shape[0] is None or len(value) == shape[0])
    return fits_length and all(_fits(kind, shape[1:], item) for item in value)


def is_float32(value: float) -> bool:
    """Return whether a float of 32 bits holds a number exactly."""
    try:
        return bool(struct.unpack("<f", struct.pack("<f", value))[0] == value)
    except OverflowError:
        return False


def is_text(value: str) -> bool:
    """Return whether a text is valid UTF-8, without surrogate escapes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_STRINGS = ("bytes", "text")
_FITS: dict[Kind, Callable[[Any], bool]] = {
    "bool": lambda value: isinstance(value, bool),
    "bytes": lambda value: isinstance(value, bytes),
    "float32": lambda value: isinstance(value, float) and math.isfinite(value) and is_float32(value),
    "float64": lambda value: isinstance(value, float) and math.isfinite(value),
    "int64": lambda value: type(value) is int and value in _INT64,
    "text": lambda value: isinstance(value, str) and is_text(value),
}


def described(feature: Feature) -> str:
    """Return the type of a feature in words: `list of 4 float64`."""
    if feature.kind == "records":
        return f"records of {', '.join(sorted(feature.columns))}"
    words = "".join("lists of " if length is None else f"list of {length} " for length in feature.shape)
    return f"{words}{feature.kind}"


def described_with_place(feature: Feature) -> str:
    """Return the type of a feature in words, with the member that holds it in tars: `text, in KEY.txt`."""
    return f"{described(feature)}, in KEY.{feature.member}" if feature.member else described(feature)


def shown_value(value: Any) -> str:
    """Return a value as an error quotes it: as JSON on one line of ASCII, shortened if it is long."""
    if isinstance(value, str | bytes):
        return quoted(value[:100], 60)
    try:
        return shortened(json.dumps(value, default=repr), 60)
    except (ValueError, RecursionError):
        return type(value).__name__
