"""Descriptions that other tools wrote, or somebody damaged."""

import json

import pytest

from dataprep.adopt import AdoptRequest, adopt
from dataprep.commands.adopt import AdoptProgress
from dataprep.errors import SourceError
from tests.support.finished import build_here


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (
            "features.json",
            {"numClasses": "1000000000000"},
            r"not as TFDS writes it: \$\.featuresDict.*\.numClasses: expected int <= 1000000, got .1000000000000",
        ),
        ("features.json", {"numClasses": "many"}, "features.json: not as TFDS writes it"),
        ("dataset_info.json", {"splits": None}, "dataset_info.json: not as TFDS writes it"),
        ("dataset_info.json", {"splits": [{"name": 3}]}, "dataset_info.json: not as TFDS writes it"),
        ("dataset_info.json", {"redistributionInfo": []}, "dataset_info.json: not as TFDS writes it"),
        ("dataset_info.json", {"name": None}, "dataset_info.json: not as TFDS writes it"),
    ],
)
def test_a_damaged_description_of_tfds_is_named(originals, tmp_path, file, change, message):
    dataset = tmp_path / "dataset"
    build_here("imagenet", originals["imagenet"], dataset, "tfrecord")
    for name in ("dataset.json", "label.labels.txt"):
        (dataset / name).unlink()
    document = json.loads((dataset / file).read_bytes())
    target = document["featuresDict"]["features"]["label"]["classLabel"] if file == "features.json" else document
    target.update(change)
    (dataset / file).write_text(json.dumps(document))
    with pytest.raises(SourceError, match=message):
        adopt(AdoptRequest(url=str(dataset), index_url=str(tmp_path / "index")), AdoptProgress(quiet=True))
