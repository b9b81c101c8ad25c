"""`dataset_info.json` and `features.json`, by which TFDS serves TFRecord shards: written from counts, without a pass
over the data.

The features are those of CLIPA's reader: `jpg`, `txt`, and a feature a column. Shards are named by their number alone,
so that shards can be added to a finished dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dataprep.formats.tfds import dataset_info, features_dict, image, json_bytes, scalar, text
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
    info = dataset_info(
        name="laion",
        description=DESCRIPTION,
        citation=CITATION,
        licence=LICENCE,
        filepath_template=FILEPATH_TEMPLATE,
        shard_samples=shard_samples,
        split_bytes=split_bytes,
    )
    return {"dataset_info.json": json_bytes(info), "features.json": json_bytes(_features(schema))}


def _features(schema: ShardSchema) -> dict[str, Any]:
    kinds = {"string": text(), "int": scalar("int64"), "float": scalar("float32")}
    features = {column.name: kinds[column.kind] for column in schema.columns}
    features["txt"] = text()
    features[schema.image_name] = image("png" if schema.image_name == "png" else "jpeg")
    return features_dict(features)
