"""`dataset_info.json` and `features.json`, the files from which TFDS 4.9 knows how to read a folder of TFRecord
shards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dataprep.formats.base import DatasetInfo

DATASET_INFO, FEATURES = "dataset_info.json", "features.json"
MAX_DESCRIPTION_BYTES = 64 << 20
"""Maximum size of a file that describes a TFDS directory; one with 5 million shard lengths is smaller."""
TFDS_VERSION = "1.0.0"


def dataset_info(info: DatasetInfo, *, filepath_template: str) -> dict[str, Any]:
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


def features_dict(features: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the whole of `features.json`."""
    return feature("features_dict.FeaturesDict", featuresDict={"features": dict(features)})


def image(encoding: str) -> dict[str, Any]:
    """Describe a picture of any size in three colours, `jpeg` or `png`."""
    shape = {"dimensions": ["-1", "-1", "3"]}
    return feature("image_feature.Image", image={"dtype": "uint8", "encodingFormat": encoding, "shape": shape})


def scalar(dtype: str) -> dict[str, Any]:
    """Describe one number, `int64` or `float32`."""
    return feature("scalar.Scalar", tensor={"dtype": dtype, "encoding": "none", "shape": {}})


def text() -> dict[str, Any]:
    """Describe a string in UTF-8."""
    return feature("text_feature.Text", text={})


def feature(class_path: str, **content: Any) -> dict[str, Any]:
    """Describe a feature of one of TFDS's classes, e.g. `text_feature.Text`."""
    return {"pythonClassName": f"tensorflow_datasets.core.features.{class_path}", **content}


def json_bytes(content: dict[str, Any]) -> bytes:
    """Return the bytes of a metadata file."""
    return json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"
