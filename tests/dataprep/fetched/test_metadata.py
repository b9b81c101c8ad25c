"""The files by which TFDS reads fetched shards: its own reading of them, and the features that columns become."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dataprep.fetched.encode import EncodeOptions
from dataprep.fetched.metadata import metadata_files
from dataprep.fetched.names import built_names
from dataprep.fetched.shard import ShardSchema
from dataprep.sources.laion import LAION
from dataprep.sources.tables import Column
from tests.dataprep.fetched.laion_tables import ROWS, collect_rows

_TFDS = """
import json, sys
import tensorflow_datasets as tfds
builder = tfds.builder_from_directory(sys.argv[1])
found = []
for sample in builder.as_dataset(split="train", shuffle_files=False).as_numpy_iterator():
    image = sample.pop("jpg")
    values = {name: v.decode() if isinstance(v, bytes) else v.item() for name, v in sample.items()}
    found.append(values | {"shape": list(image.shape)})
print(json.dumps([builder.info.splits["train"].num_examples, found]))
"""


@pytest.mark.long
def test_tfds_reads_fetched_shards(tmp_path):
    """Two shards whose names hold their numbers alone, and metadata from counts."""
    found = collect_rows(tmp_path, encode=EncodeOptions(image_size=50))
    data, places = found.write("tfrecord")
    for index in range(2):
        (tmp_path / built_names("laion", "tfrecord", "train", 5).samples_file(index)).write_bytes(data)
    counts = {"train": [len(places)] * 2}
    for name, content in metadata_files(LAION, found.schema, counts, {"train": 2 * len(data)}).items():
        (tmp_path / name).write_bytes(content)
    read = subprocess.run([sys.executable, "-W", "ignore", "-c", _TFDS, str(tmp_path)], capture_output=True, text=True)
    assert read.returncode == 0, read.stderr[-2000:]
    count, samples = json.loads(read.stdout.splitlines()[-1])
    assert count == len(samples) == 6
    assert [sample["key"] for sample in samples[:3]] == ["000000000", "000000002", "000000003"]
    assert samples[0]["txt"] == samples[0]["caption"] == ROWS[0]["TEXT"]
    assert (samples[0]["SAMPLE_ID"], samples[0]["similarity"], samples[1]["similarity"]) == (10**17, 0.3125, -1.0)
    assert [sample["shape"] for sample in samples[:3]] == [[50, 67, 3], [67, 50, 3], [9, 9, 3]]


@pytest.mark.parametrize(("image_name", "encoding"), [("jpg", "jpeg"), ("png", "png")])
def test_features_are_the_columns_the_caption_and_the_image(image_name, encoding):
    carried = (Column("weight", "float"), Column("number", "int"), Column("note", "string"))
    schema = ShardSchema(image_name=image_name, carried=carried, duplicates=False)
    files = metadata_files(LAION, schema, {"train": [3, 0]}, {"train": 5})
    features = json.loads(files["features.json"])["featuresDict"]["features"]
    assert set(features) == {column.name for column in schema.columns} | {"txt", image_name}
    assert features[image_name]["image"]["encodingFormat"] == encoding
    assert features["weight"]["tensor"]["dtype"] == "float32"
    assert features["number"]["tensor"]["dtype"] == "int64"
    assert features["note"] == features["txt"]
    (split,) = json.loads(files["dataset_info.json"])["splits"]
    assert (split["shardLengths"], split["numBytes"]) == (["3", "0"], "5")
