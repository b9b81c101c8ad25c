"""A dataset as Python callers see it, in a terminal and in a notebook."""

import pytest

import dataprep
from dataprep.dataset.features import Feature
from dataprep.dataset.opened import Dataset, Planned
from dataprep.errors import UsageError
from tests.support.finished import build_here


def test_an_opened_dataset_shows_what_its_manifest_says(originals, tmp_path):
    build_here("coco-dup5", originals["coco"], tmp_path / "out", "tfrecord")
    dataset = dataprep.open(str(tmp_path / "out"))
    train = dataset.splits["train"]
    assert not dataset.is_planned
    assert (dataset.name, dataset.format, dataset.samples) == ("coco-dup5", "tfrecord", train.samples)
    assert f"train: {train.samples} samples in {train.shards} shard" in str(dataset)
    assert f"<td>train</td><td>{train.samples}</td>" in dataset._repr_html_()


def test_a_planned_dataset_says_that_nothing_is_built():
    planned = Planned(
        name="<pets>", format="webdataset", splits={"train": (1200, 3)}, features={"caption": Feature("text")}
    )
    dataset = Dataset(url="out", known=planned)
    assert str(dataset).splitlines() == [
        "<pets> (webdataset): 1,200 samples; planned, nothing is built",
        "  train: 1,200 samples in 3 shards",
        "  features: caption (text)",
    ]
    assert "<b>&lt;pets&gt;</b>" in dataset._repr_html_()


def test_control_characters_of_names_reach_no_terminal():
    planned = Planned(name="pets", format="tfrecord", splits={"train": (1, 1)}, classes=("\x1b]0;owned\x07", "dog"))
    assert "\x1b" not in str(Dataset(url="out", known=planned))


def test_a_place_without_a_dataset_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no dataset there"):
        dataprep.open(str(tmp_path))
