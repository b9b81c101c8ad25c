"""Describes TFRecords of img2dataset in `dataset_info.json` and `features.json`, so that TFDS can read them.

TFDS needs a feature to be of one kind in all records. img2dataset writes an absent number as an empty text, so a
feature that is absent in some records cannot be described; all others can.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dataprep.errors import FormatError
from dataprep.formats.base import DatasetInfo
from dataprep.formats.example import BYTES, FLOATS, INTEGERS
from dataprep.formats.img2dataset_tfds import DESCRIPTION, escaped, numbered
from dataprep.formats.tfds import (
    DATASET_INFO,
    FEATURES,
    Feature,
    Tensor,
    dataset_info,
    feature,
    features_dict,
    image,
    json_bytes,
    scalar,
    text,
)

if TYPE_CHECKING:
    from dataprep.adoption.find import Found
    from dataprep.adoption.shards import ReadShard

_IMAGES = {"jpg": "jpeg", "png": "png"}
"""TFDS's name of the image format, by the feature's name; TFDS decodes no WebP."""
_SCALARS = {BYTES: text(), FLOATS: scalar("float32"), INTEGERS: scalar("int64")}
_DTYPES = {BYTES: "string", FLOATS: "float32", INTEGERS: "int64"}


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
        results: The content of each shard.
        data_root: Folder of the shards, with a final slash; empty if the description lies beside them.
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
        shard_samples={split: names.lengths for split, names in splits.items()},
        split_bytes=num_bytes,
    )
    info = dataset_info(facts, filepath_template="")
    for entry in info["splits"]:
        entry["filepathTemplate"] = escaped(data_root) + splits[entry["name"]].template
    remarks = []
    if left_out:
        remarks.append(f"TFDS cannot read {', '.join(left_out)}: absent in some records, or of several kinds")
    if "webp" in features:
        remarks.append("TFDS decodes no WebP: its feature webp gives the images' bytes")
    files = {DATASET_INFO: json_bytes(info), FEATURES: json_bytes(features_dict(features))}
    return Description(files, tuple(remarks))


def _features(seen: Counter[FeatureShape], records: int) -> tuple[dict[str, Feature], list[str]]:
    """Return the descriptions of features by name, and the names of features that cannot be described."""
    described: dict[str, Feature] = {}
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


def _list_of(dtype: str) -> Feature:
    content: Tensor = {"dtype": dtype, "encoding": "none", "shape": {"dimensions": ["-1"]}}
    return feature("tensor_feature.Tensor", tensor=content)


def _tfds_name(name: str) -> str:
    """Turn a name into a valid name for TFDS."""
    tidy = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")
    return tidy if tidy[:1].isalpha() else f"data_{tidy}".rstrip("_")
