"""`dataset_info.json` and `features.json` over TFRecords that img2dataset wrote: with them TFDS serves the files as
they are, under their own names.

TFDS numbers shards from 0 and pads their numbers to one width. A number that is not there is a shard of no samples,
which TFDS does not open. A feature must be of one kind in all records: img2dataset writes an absent number as an empty
text, so what is absent somewhere cannot be described, and the rest can.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dataprep.adopt.example import BYTES, FLOATS, INTEGERS
from dataprep.adopt.img2dataset import SHARD
from dataprep.errors import FormatError
from dataprep.formats.tfds import dataset_info, feature, features_dict, image, json_bytes, scalar, text
from dataprep.records import SplitManifest

if TYPE_CHECKING:
    from dataprep.adopt.find import Found
    from dataprep.adopt.shards import ReadShard

DATASET_INFO, FEATURES = "dataset_info.json", "features.json"
DESCRIPTION = "Images that img2dataset fetched, with their captions, described by dataprep adopt."
"""By which a description is known as ours."""
MAX_SHARDS = 1_000_000
"""Numbers that a description goes through."""
_IMAGES = {"jpg": "jpeg", "png": "png"}
"""By the feature's name, what TFDS calls the format; it decodes no WebP."""
_MIN_DIGITS = 5
_SCALARS = {BYTES: text(), FLOATS: scalar("float32"), INTEGERS: scalar("int64")}
_DTYPES = {BYTES: "string", FLOATS: "float32", INTEGERS: "int64"}


class FeatureShape(NamedTuple):
    """What one feature of one record looks like."""

    name: str
    kind: int
    """As in dataprep/adopt/example.py."""
    is_single: bool


@dataclass(frozen=True, slots=True)
class Description:
    """What TFDS reads in a dataset's root."""

    files: Mapping[str, bytes]
    """Empty where it cannot be described."""
    remarks: tuple[str, ...]
    """For people: what TFDS will not see, and why."""


def describe(found: Found, results: Sequence[ReadShard], data_root: str) -> Description:
    """Describe what was read.

    Args:
        found: TFRecords of img2dataset.
        results: A shard each.
        data_root: Folder of the shards, with a slash at its end; empty where the description lies beside them.
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
        splits = {split: _numbered(shards) for split, shards in by_split.items()}
    except FormatError as error:
        return Description({}, (f"TFDS cannot read it: {error}",))
    info = dataset_info(
        name=_tfds_name(found.name),
        description=DESCRIPTION,
        citation="",
        licence=found.licence,
        filepath_template="",
        shard_samples={split: numbered.lengths for split, numbered in splits.items()},
        split_bytes=num_bytes,
    )
    for entry in info["splits"]:
        entry["filepathTemplate"] = _escaped(data_root) + splits[entry["name"]].template
    remarks = []
    if left_out:
        remarks.append(f"TFDS will not see {', '.join(left_out)}: absent in some records, or of several kinds")
    if "webp" in features:
        remarks.append("TFDS decodes no WebP: its feature webp gives the images' bytes")
    files = {DATASET_INFO: json_bytes(info), FEATURES: json_bytes(features_dict(features))}
    return Description(files, tuple(remarks))


def grown(data: bytes, split: SplitManifest) -> bytes:
    """A `dataset_info.json` of `describe` after shards were added to a split; the same again for what it gave.

    Raises:
        FormatError: It is none, or the names do not go on.
    """
    try:
        info = json.loads(data)
        entry = next(entry for entry in info["splits"] if entry["name"] == split.name)
        old = [int(length) for length in entry["shardLengths"]]
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise FormatError(f"{DATASET_INFO}: not as adopted ({error}); dataprep adopt --overwrite writes it") from error
    shards = []
    for shard in split.shards:
        number = _number(shard["file"])
        shards.append((shard["file"], old[number] if number < len(old) else int(shard["samples"])))
    numbered = _numbered(shards)
    entry["filepathTemplate"] = numbered.template
    entry["shardLengths"] = [str(length) for length in numbered.lengths]
    entry["numBytes"] = str(split.num_bytes)
    return json_bytes(info)


def texts_in(data: bytes) -> frozenset[str]:
    """The names of texts in a `features.json`. Raises FormatError."""
    try:
        features = json.loads(data)["featuresDict"]["features"]
        return frozenset(name for name, content in features.items() if "text" in content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{FEATURES}: not as adopted ({error}); dataprep adopt --overwrite writes it") from error


def is_ours(data: bytes) -> bool:
    """Whether a `dataset_info.json` is one of `describe`."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("description") == DESCRIPTION


class _Numbered(NamedTuple):
    template: str
    lengths: list[int]
    """By a shard's number."""


def _numbered(shards: Iterable[tuple[str, int]]) -> _Numbered:
    """The names of shards as TFDS makes them. Raises FormatError where it would make others."""
    lengths: dict[int, int] = {}
    names = []
    for name, length in shards:
        names.append(name)
        lengths[_number(name)] = length
    last = max(lengths)
    if last >= MAX_SHARDS:
        raise FormatError(f"shard number {last:,}, expected less than {MAX_SHARDS:,}")
    width = max(_MIN_DIGITS, len(str(last + 1)))
    first = SHARD.fullmatch(names[0])
    folder, digits = (first[1], first[2]) if first else ("", "")
    expected = {f"{folder}{number:0{len(digits)}d}.tfrecord" for number in lengths}
    if len(digits) < width or set(names) != expected:
        odd = min(set(names) - expected, default=names[0])
        raise FormatError(f"{odd}, expected numbers of one width, {width} digits or more")
    template = f"{_escaped(folder)}{'0' * (len(digits) - width)}{{SHARD_INDEX}}.{{FILEFORMAT}}"
    return _Numbered(template, [lengths.get(number, 0) for number in range(last + 1)])


def _number(name: str) -> int:
    match = SHARD.fullmatch(name)
    if match is None or not name.endswith(".tfrecord"):
        raise FormatError(f"{name}, expected names such as 00000.tfrecord")
    return int(match[2])


def _features(seen: Counter[FeatureShape], records: int) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Descriptions by name, and the names of what has none."""
    described: dict[str, dict[str, Any]] = {}
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
            described[name] = _list_of(_DTYPES[kind])
        elif name in _IMAGES:
            described[name] = image(_IMAGES[name])
        else:
            described[name] = scalar("string") if name == "webp" else _SCALARS[kind]
    return described, left_out


def _list_of(dtype: str) -> dict[str, Any]:
    content = {"dtype": dtype, "encoding": "none", "shape": {"dimensions": ["-1"]}}
    return feature("tensor_feature.Tensor", tensor=content)


def _tfds_name(name: str) -> str:
    """What TFDS takes for a dataset's name."""
    tidy = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")
    return tidy if tidy[:1].isalpha() else f"data_{tidy}".rstrip("_")


def _escaped(text: str) -> str:
    """As a template has it that braces mean something to."""
    return text.replace("{", "{{").replace("}", "}}")
