"""What a build says and refuses on the command line, and what it leaves alone."""

import json
from dataclasses import replace

import click
import pytest

from dataprep.builder.images import ImagePolicy
from dataprep.commands.build import BuildFolder, command, place_of, plan_lines
from dataprep.dataset.features import Feature
from dataprep.sources.tables import is_table
from tests.support.builds import build_arguments, build_warm, dataprep
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


def test_on_bad_fail_ends_the_build_at_the_first_bad_image(originals, tmp_path):
    run = dataprep(*build_arguments("coco-dup5", originals["coco"], tmp_path / "out", "tfrecord", "--on-bad", "fail"))
    assert run.returncode == 1
    assert "expected a valid JPEG (--on-bad fail)" in run.stderr


def test_generated_originals_are_written_to_a_disk_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["build", "imagenet-fake", "--images", "10", "--format", "tfrecord", "--output", str(tmp_path / "out")]
    run = dataprep(*arguments, "--source", "gs://bucket/fake")
    assert run.returncode == 2
    assert "imagenet-fake generates its originals on a disk" in run.stderr
    assert list(tmp_path.iterdir()) == []
    assert dataprep(*arguments, "--source", f"file://{tmp_path}/originals").returncode == 0
    assert (tmp_path / "originals/imagenet-fake.tar").is_file()


def test_a_dry_run_writes_nothing(originals, tmp_path):
    arguments = build_arguments("coco-dup5", originals["coco"], tmp_path / "out", "tfrecord", "--dry-run")
    plan = json.loads(dataprep(*arguments).stdout)
    assert sum(plan["splits"][0]["shard_samples"]) == 120
    arguments.remove("--json")
    text = dataprep(*arguments).stdout
    assert "train: 120 samples in 1 shard," in text
    assert "an epoch makes 5 passes, 1 stored" in text
    assert not (tmp_path / "out").exists()


def test_another_dataset_is_replaced_only_with_overwrite(originals, tmp_path):
    output = tmp_path / "out"
    build_warm("coco-dup5", originals["coco"], output, "tfrecord")
    other = build_arguments("coco-dup5", originals["coco"], output, "webdataset")
    refused = dataprep(*other)
    assert refused.returncode == 2
    assert "another dataset exists there already (coco-dup5, tfrecord" in refused.stderr
    (output / "notes.txt").write_text("mine")
    assert dataprep(*other, "--overwrite").returncode == 0
    assert (output / "notes.txt").read_text() == "mine"
    assert not list(output.glob("*tfrecord*"))


def test_a_folder_of_other_files_is_refused(originals, tmp_path):
    (tmp_path / "thesis.tex").write_text("do not lose me")
    run = dataprep(*build_arguments("coco-dup5", originals["coco"], tmp_path, "tfrecord", "--overwrite"))
    assert run.returncode == 2
    assert "is not empty and holds no dataset of ours (found thesis.tex)" in run.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_source_and_output_must_differ(originals):
    run = dataprep(*build_arguments("coco-dup5", originals["coco"], originals["coco"], "tfrecord"))
    assert run.returncode == 2
    assert "--source and --output are the same" in run.stderr


def test_a_missing_bucket_is_named(gcs, originals):
    run = dataprep(*build_arguments("coco-dup5", originals["coco"], "gs://no-such-bucket-here/x", "tfrecord"))
    assert run.returncode == 2
    assert "no-such-bucket-here" in run.stderr
    assert "Traceback" not in run.stderr


def test_imagenet_fake_has_a_thousand_classes_and_as_many_images_as_asked(tmp_path):
    run = dataprep(
        *"build imagenet-fake --images 2100 --format webdataset --check header --json --output".split(),
        tmp_path / "out",
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
    manifest = json.loads(run.stdout)
    assert [split["samples"] for split in manifest["splits"]] == [2100, 81]
    assert len(manifest["classes"]) == 1000
    assert set(manifest["splits"][0]["class_counts"]) == {2, 3}


def test_results_go_to_stdout_and_messages_to_stderr(originals, tmp_path):
    run = dataprep(*build_arguments("coco-dup5", originals["coco"], tmp_path / "out", "tfrecord"))
    assert json.loads(run.stdout)["name"] == "coco-dup5"
    assert run.stderr == ""


SHARED = {
    "--format",
    "--split",
    "--shard-bytes",
    "--num-shards",
    "--seed",
    "--resize",
    "--quality",
    "--check",
    "--jpeg",
}


def test_every_build_of_pictures_has_the_shared_options():
    context = click.Context(command)
    for name in ("coco-dup5", "imagenet", "imagenet-21k", "imagenet-fake", "folder"):
        options = {option for parameter in command.get_command(context, name).params for option in parameter.opts}
        assert options >= SHARED | {"--on-bad", "--apply-exif", "--max-reject-ratio"}


def test_the_policy_of_a_request_has_its_options():
    asked = BuildFolder(source="a", output="b", format="webdataset", check="none", on_bad="reject", quality=90)
    assert asked.policy() == ImagePolicy(check="none", on_bad="reject", quality=90)


def test_a_plan_is_described_by_split():
    (line,) = plan_lines(small_plan())
    assert line == "  val: 3 samples in 2 shards, about 900 B; an epoch makes 1 pass, 1 stored"
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
