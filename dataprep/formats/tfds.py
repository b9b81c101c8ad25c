"""`dataset_info.json` and `features.json`, the files from which TFDS 4.9 knows how to read a folder of TFRecord
shards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dataprep.formats.base import DatasetInfo

DATASET_INFO, FEATURES = "dataset_info.json", "features.json"
MAX_DESCRIPTION_BYTES = 64 << 20
"""Size of a file that describes a TFDS directory, at most; one with 5 million shard lengths stays below."""
TFDS_VERSION = "1.0.0"


Description = dict[str, Any]
"""A message of TFDS in its JSON form."""


def dataset_info(info: DatasetInfo, *, filepath_template: str) -> Description:
    """Return the fields of TFDS's dataset_info.proto in its JSON form, in which an int64 is a string.

    Args:
        info: Facts about the dataset; its name must be a valid name for TFDS, without `-`.
        filepath_template: Template of shard names, with TFDS's placeholders in braces.
    """
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
        "version": TFDS_VERSION,
    }


def features_dict(features: Mapping[str, Description]) -> Description:
    """Return the whole of `features.json`."""
    return feature("features_dict.FeaturesDict", featuresDict={"features": dict(features)})


def image(encoding: str) -> Description:
    """Describe a picture of any size in three colours, `jpeg` or `png`."""
    shape = {"dimensions": ["-1", "-1", "3"]}
    return feature("image_feature.Image", image={"dtype": "uint8", "encodingFormat": encoding, "shape": shape})


def scalar(dtype: str) -> Description:
    """Describe one number, `int64` or `float32`."""
    return feature("scalar.Scalar", tensor={"dtype": dtype, "encoding": "none", "shape": {}})


def tensor(dtype: str, shape: Sequence[int | None], encoding: str) -> Description:
    """Describe an array of numbers, of any length where the shape has None; `bytes` are those of its values."""
    dimensions = {"dimensions": ["-1" if length is None else str(length) for length in shape]} if shape else {}
    return feature("tensor_feature.Tensor", tensor={"dtype": dtype, "encoding": encoding, "shape": dimensions})


def sequence(inner: Description, length: int | None) -> Description:
    """Describe a list of a feature, of any length where it is None."""
    content = {"feature": inner, "length": "-1" if length is None else str(length)}
    return feature("sequence_feature.Sequence", sequence=content)


def text() -> Description:
    """Describe a string in UTF-8."""
    return feature("text_feature.Text", text={})


def feature(class_path: str, **content: Any) -> Description:
    """Describe a feature of one of TFDS's classes, e.g. `text_feature.Text`."""
    return {"pythonClassName": f"tensorflow_datasets.core.features.{class_path}", **content}


def json_bytes(content: Description) -> bytes:
    """Return the bytes of a metadata file."""
    return json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"
