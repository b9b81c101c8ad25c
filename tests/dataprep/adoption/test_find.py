"""Descriptions that other tools wrote, or somebody damaged."""

import json

import pytest

from dataprep.adoption import AdoptRequest, adopt
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


@pytest.mark.parametrize("file", ["features.json", "dataset_info.json", "label.labels.txt"])
def test_a_description_larger_than_any_is_not_read(originals, tmp_path, file):
    dataset = tmp_path / "dataset"
    build_here("imagenet", originals["imagenet"], dataset, "tfrecord")
    (dataset / "dataset.json").unlink()
    if file == "features.json":
        (dataset / "label.labels.txt").unlink()
    with (dataset / file).open("wb") as description:
        description.truncate(1 << 40)
    with pytest.raises(SourceError, match=f"{file}: 1,099,511,627,776 bytes, expected at most 67,108,864; fetch it"):
        adopt(AdoptRequest(url=str(dataset), index_url=str(tmp_path / "index")), AdoptProgress(quiet=True))
