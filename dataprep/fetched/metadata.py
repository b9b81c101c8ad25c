"""Writes `dataset_info.json` and `features.json` for TFRecord shards from counts, without a pass over the data.

The features are those of CLIPA's reader: `jpg`, `txt`, and one for each column. Shards are named by their number only,
so that shards can be added to a finished dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dataprep.fetched.shard import ShardSchema
from dataprep.formats.base import DatasetInfo
from dataprep.formats.tfds import Feature, dataset_info, features_dict, image, json_bytes, scalar, text
from dataprep.formats.tfrecord import tfds_name
from dataprep.sources.base import Dataset

FILEPATH_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}"


def metadata_files(
    dataset: Dataset,
    schema: ShardSchema,
    shard_samples: Mapping[str, Sequence[int]],
    split_bytes: Mapping[str, int],
) -> dict[str, bytes]:
    """Return the files in the dataset's root, name to content.

    Args:
        dataset: Facts about the dataset.
        schema: Columns of the shards.
        shard_samples: By split, the samples of each shard, in the order of their numbers.
        split_bytes: By split, bytes of all shards.
    """
    facts = DatasetInfo(
        name=tfds_name(dataset.name),
        description=dataset.description,
        citation=dataset.citation,
        licence=dataset.licence,
        classes=(),
        shard_samples=shard_samples,
        split_bytes=split_bytes,
    )
    info = dataset_info(facts, filepath_template=FILEPATH_TEMPLATE)
    return {"dataset_info.json": json_bytes(info), "features.json": json_bytes(_features(schema))}


def _features(schema: ShardSchema) -> Feature:
    kinds = {"string": text(), "int": scalar("int64"), "float": scalar("float32")}
    features = {column.name: kinds[column.kind] for column in schema.columns}
    features["txt"] = text()
    features[schema.image_name] = image("png" if schema.image_name == "png" else "jpeg")
    return features_dict(features)
