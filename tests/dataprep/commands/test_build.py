"""What a build says and refuses on the command line, and what it leaves alone."""

import json
from dataclasses import replace

import pytest

from dataprep.commands.build import place_of, plan_lines
from dataprep.dataset.features import Feature
from dataprep.sources.tables import is_table
from tests.support.builds import build_arguments, dataprep, refuses, succeeds
from tests.support.plans import small_plan


def test_rejections_above_the_limit_are_named_and_the_rerun_is_instant(originals, tmp_path):
    arguments = build_arguments("coco-dup5", originals["coco"], tmp_path / "out", "tfrecord")
    arguments[arguments.index("--max-reject-ratio") + 1] = "0"
    run = dataprep(*arguments)
    assert run.returncode == 1
    assert "train: 5 of 120 images were rejected, allowed are 0" in run.stderr
    assert "(truncated)" in run.stderr
    assert not (tmp_path / "out" / "dataset.json").exists()
    arguments[arguments.index("--max-reject-ratio") + 1] = "0.0417"
    again = json.loads(dataprep(*arguments).stdout)
    assert again["shards_built"] == 0
    assert again["splits"][0]["samples"] == 115


def test_generated_originals_are_written_to_a_disk_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["build", "imagenet-fake", "--images", "10", "--format", "tfrecord", "--output", str(tmp_path / "out")]
    run = refuses(*arguments, "--source", "gs://bucket/fake")
    assert "imagenet-fake generates its originals on a disk" in run.stderr
    assert list(tmp_path.iterdir()) == []
    built = succeeds(*arguments, "--source", f"file://{tmp_path}/originals", "--json")
    assert sum(split["samples"] for split in json.loads(built.stdout)["splits"]) > 10
    assert (tmp_path / "originals/imagenet-fake.tar").is_file()


def test_source_and_output_must_differ(originals):
    run = refuses(*build_arguments("coco-dup5", originals["coco"], originals["coco"], "tfrecord"))
    assert "--source and --output are the same" in run.stderr


def test_a_plan_is_described_by_split():
    (line,) = plan_lines(small_plan())
    assert line == "  val: 3 samples in 2 shards, about 900 B"
    annotated = replace(small_plan(), features={"box": Feature("float64", (None, 4)), "caption": Feature("text")})
    assert list(plan_lines(annotated))[1:] == ["  features: box (lists of list of 4 float64), caption (text)"]


def test_a_plan_without_classes_says_so():
    assert list(plan_lines(replace(small_plan(), classes=())))[1:] == ["  labels: none"]


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("gs://bucket/lists/train.csv", ("gs://bucket/lists", "train.csv")),
        ("gs://bucket/lists", ("gs://bucket/lists", "")),
        ("/data/x.parquet", ("/data", "x.parquet")),
        ("/x.parquet", ("/", "x.parquet")),
        ("/data", ("/data", "")),
    ],
)
def test_a_single_file_is_in_the_folder_above(source, place):
    assert place_of(source, is_table) == place


def test_a_folder_may_have_the_name_of_a_file(tmp_path):
    (tmp_path / "x.parquet").mkdir()
    assert place_of(f"{tmp_path}/x.parquet", is_table) == (f"{tmp_path}/x.parquet", "")
