"""`dataset_info.json` and `features.json`, with which TFDS 4.9 reads a folder of TFRecord shards."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from dataprep.dataset.documents import JsonObject
from dataprep.errors import UsageError
from dataprep.formats.base import TFDS_VERSION, DatasetInfo
from dataprep.messages import quoted

DATASET_INFO, FEATURES = "dataset_info.json", "features.json"
_NAME, _VERSION = re.compile("[a-z][a-z0-9_]{0,99}"), re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){2}")
MAX_DESCRIPTION_BYTES = 64 << 20
"""Maximum size of a file that describes a TFDS directory; one with 5 million shard lengths is smaller."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TfdsNames:
    """Names under which TFDS finds a dataset, where they are not the dataset's own."""

    name: str | None = None
    """Name of the dataset, such as imagenet2012; its records have the feature `file_name`, which TFDS expects."""
    version: str = TFDS_VERSION
    val: str = "val"

    def __post_init__(self) -> None:
        for field, value in (("tfds_name", self.name), ("val_name", self.val)):
            if value is not None and not _NAME.fullmatch(value):
                raise UsageError(f"`{field}`: got {quoted(value)}, expected lower-case letters, digits and underscores")
        if not _VERSION.fullmatch(self.version):
            raise UsageError(f"`tfds_version`: got {quoted(self.version)}, expected a version such as 5.1.0")

    def split(self, name: str) -> str:
        return self.val if name == "val" else name


OWN_NAMES = TfdsNames()


Feature: TypeAlias = JsonObject
"""One feature of a record, or several by name: `pythonClassName`, and details under the name of their kind."""


def dataset_info(info: DatasetInfo, *, filepath_template: str) -> JsonObject:
    """Return the fields of TFDS's dataset_info.proto in its JSON form, in which an int64 is a string. The dataset's
    name must be valid for TFDS, without `-`; the template of shard names has TFDS's placeholders in braces."""
    return {
        "citation": info.citation,
        "description": info.description,
        "fileFormat": "tfrecord",
        "name": info.name,
        "redistributionInfo": {"license": info.licence},
        "splits": [
            {
                "filepathTemplate": filepath_template,
                "name": split,
                "numBytes": str(info.split_bytes[split]),
                "shardLengths": [str(samples) for samples in info.shard_samples[split]],
            }
            for split in sorted(info.shard_samples)
        ],
        "version": info.version,
    }


def features_dict(features: Mapping[str, Feature]) -> Feature:
    """Return the content of `features.json`."""
    return feature("features_dict.FeaturesDict", featuresDict={"features": dict(features)})


def image(encoding: str) -> Feature:
    """Describe a picture of any size in three colours, `jpeg` or `png`."""
    shape = {"dimensions": ["-1", "-1", "3"]}
    return feature("image_feature.Image", image={"dtype": "uint8", "encodingFormat": encoding, "shape": shape})


def scalar(dtype: str) -> Feature:
    """Describe one number, `int64` or `float32`."""
    return feature("scalar.Scalar", tensor={"dtype": dtype, "encoding": "none", "shape": {}})


def tensor(dtype: str, shape: tuple[int | None, ...], encoding: str) -> Feature:
    """Describe an array of numbers; None in the shape means any length. The encoding `bytes` means raw bytes."""
    dimensions = {"dimensions": ["-1" if length is None else str(length) for length in shape]} if shape else {}
    return feature("tensor_feature.Tensor", tensor={"dtype": dtype, "encoding": encoding, "shape": dimensions})


def sequence(inner: Feature, length: int | None) -> Feature:
    """Describe a list of a feature; a length of None means any length."""
    content = {"feature": inner, "length": "-1" if length is None else str(length)}
    return feature("sequence_feature.Sequence", sequence=content)


def text() -> Feature:
    """Describe a string in UTF-8."""
    return feature("text_feature.Text", text={})


def feature(class_path: str, **content: Any) -> Feature:
    """Describe a feature of one of TFDS's classes, e.g. `text_feature.Text`."""
    return {"pythonClassName": f"tensorflow_datasets.core.features.{class_path}", **content}


def json_bytes(content: JsonObject) -> bytes:
    """Return the bytes of a metadata file."""
    return json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"
