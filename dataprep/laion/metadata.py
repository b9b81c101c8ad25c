"""`dataset_info.json` and `features.json`, by which TFDS serves TFRecord shards: written from counts, without a pass
over the data.

The features are those of CLIPA's reader: `jpg`, `txt`, and a feature a column. Shards are named by their number alone,
so that shards can be added to a finished dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dataprep.formats.tfrecord import TFDS_VERSION, _feature, _json
from dataprep.laion.shard import ShardSchema
from dataprep.sources.laion import CITATION, DESCRIPTION, LICENCE

FILEPATH_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}"


def metadata_files(
    schema: ShardSchema, shard_samples: Mapping[str, Sequence[int]], split_bytes: Mapping[str, int]
) -> dict[str, bytes]:
    """Name to content of the files in the dataset's root.

    Args:
        schema: Of the shards.
        shard_samples: By split, the samples of each shard, in the order of their numbers.
        split_bytes: By split, bytes of all shards.
    """
    info = {
        "citation": CITATION,
        "description": DESCRIPTION,
        "fileFormat": "tfrecord",
        "name": "laion",
        "redistributionInfo": {"license": LICENCE},
        "splits": [
            {
                "filepathTemplate": FILEPATH_TEMPLATE,
                "name": split,
                "numBytes": str(split_bytes[split]),
                "shardLengths": [str(samples) for samples in shard_samples[split]],
            }
            for split in sorted(shard_samples)
        ],
        "version": TFDS_VERSION,
    }
    return {"dataset_info.json": _json(info), "features.json": _json(_features(schema))}


def _features(schema: ShardSchema) -> dict[str, Any]:
    text = _feature("text_feature.Text", text={})
    kinds = {"string": text, "int": _scalar("int64"), "float": _scalar("float32")}
    encoding = "png" if schema.image_name == "png" else "jpeg"
    shape = {"dimensions": ["-1", "-1", "3"]}
    features = {column.name: kinds[column.kind] for column in schema.columns}
    features["txt"] = text
    features[schema.image_name] = _feature(
        "image_feature.Image", image={"dtype": "uint8", "encodingFormat": encoding, "shape": shape}
    )
    return _feature("features_dict.FeaturesDict", featuresDict={"features": features})


def _scalar(dtype: str) -> dict[str, Any]:
    return _feature("scalar.Scalar", tensor={"dtype": dtype, "encoding": "none", "shape": {}})
