"""`dataset_info.json` and `features.json`, by which TFDS 4.9 serves a folder of TFRecord shards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

TFDS_VERSION = "1.0.0"


def dataset_info(
    *,
    name: str,
    description: str,
    citation: str,
    licence: str,
    filepath_template: str,
    shard_samples: Mapping[str, Sequence[int]],
    split_bytes: Mapping[str, int],
) -> dict[str, Any]:
    """The fields of TFDS's dataset_info.proto in its JSON form, in which an int64 is a string.

    Args:
        name: As files are named: without `-`.
        description: Of the dataset.
        citation: BibTeX.
        licence: A name or an address.
        filepath_template: How shards are named, in TFDS's own words in braces.
        shard_samples: By split, the samples of each shard, in the order of their numbers.
        split_bytes: By split, bytes of all shards.
    """
    return {
        "citation": citation,
        "description": description,
        "fileFormat": "tfrecord",
        "name": name,
        "redistributionInfo": {"license": licence},
        "splits": [
            {
                "filepathTemplate": filepath_template,
                "name": split,
                "numBytes": str(split_bytes[split]),
                "shardLengths": [str(samples) for samples in shard_samples[split]],
            }
            for split in sorted(shard_samples)
        ],
        "version": TFDS_VERSION,
    }


def features_dict(features: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The whole of `features.json`."""
    return feature("features_dict.FeaturesDict", featuresDict={"features": dict(features)})


def image(encoding: str) -> dict[str, Any]:
    """A picture of any size in three colours, `jpeg` or `png`."""
    shape = {"dimensions": ["-1", "-1", "3"]}
    return feature("image_feature.Image", image={"dtype": "uint8", "encodingFormat": encoding, "shape": shape})


def scalar(dtype: str) -> dict[str, Any]:
    """One number, `int64` or `float32`."""
    return feature("scalar.Scalar", tensor={"dtype": dtype, "encoding": "none", "shape": {}})


def text() -> dict[str, Any]:
    """A string in UTF-8."""
    return feature("text_feature.Text", text={})


def feature(class_path: str, **content: Any) -> dict[str, Any]:
    """A feature of one of TFDS's classes, e.g. `text_feature.Text`."""
    return {"pythonClassName": f"tensorflow_datasets.core.features.{class_path}", **content}


def json_bytes(content: dict[str, Any]) -> bytes:
    """The content of a metadata file."""
    return json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"
