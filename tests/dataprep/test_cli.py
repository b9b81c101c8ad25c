import json
import subprocess
import sys
from pathlib import Path

import pytest

from dataprep.cli import COMMANDS
from tests.support.builds import build, build_arguments, dataprep

HEAVY = (
    "torch",
    "tensorflow",
    "apache_beam",
    "pyarrow",
    "PIL",
    "google.cloud.storage",
    "obstore",
    "numpy",
    "rich",
    "scipy",
)


def test_help_imports_nothing_heavy():
    """What makes `dataprep --help` take 0.1 s; the time itself is in benchmarks/."""
    code = "import sys; from dataprep.cli import group; group(['--help'], standalone_mode=False); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.splitlines()[-1].split())
    assert "dataprep.cli" in loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_examples(name):
    run = dataprep(name, "--help")
    assert run.returncode == 0
    assert f"dataprep {name} " in run.stdout.split("Examples:")[1]
    if "COMMAND [ARGS]" in run.stdout:  # a group: what it tells is told by its commands
        run = dataprep(name, "plan", "--help")
    assert "--json" in run.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_imports_torch_tensorflow_or_beam(name):
    code = f"import sys, dataprep.commands.{name.replace('-', '_')}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"torch", "tensorflow", "apache_beam"}.isdisjoint(run.stdout.split())


def test_build_starts_its_server_before_anything_heavy_is_imported():
    code = "import sys, dataprep.commands.build; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "dataprep.pool" in run.stdout.split()
    assert {*HEAVY, "pandas"}.isdisjoint(run.stdout.split())


def test_no_process_of_a_build_imports_pandas(originals, tmp_path):
    """It would take as long as the rest of the start; pyarrow does so in many a call."""
    (tmp_path / "path/pandas").mkdir(parents=True)
    mark = tmp_path / "imported"
    (tmp_path / "path/pandas/__init__.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    build("coco-dup5", originals["coco"], tmp_path / "out", "tfrecord", PYTHONPATH=str(tmp_path / "path"))
    assert not mark.exists()


USAGE = {
    "unknown dataset": (["build", "coco"], "is not one of"),
    "no source": (["build", "imagenet", "--output", "o", "--format", "tfrecord"], "imagenet needs --source"),
    "unknown split": (
        ["build", "imagenet", "--source", "s", "--output", "o", "--format", "tfrecord", "--split", "test"],
        "has no split 'test'; it has train, val",
    ),
    "bad size": (
        ["build", "imagenet", "--source", "s", "--output", "o", "--format", "tfrecord", "--shard-bytes", "lots"],
        "got 'lots', expected a size such as 256MiB",
    ),
    "not repeated": (
        ["build", "imagenet", "--source", "s", "--output", "o", "--format", "tfrecord", "--repeat", "physical"],
        "imagenet train+val is not repeated",
    ),
    "links in a bucket": (
        [*"build coco-dup5 --source s --output gs://bucket/o --format imagefolder --repeat physical".split()],
        "a bucket has no links",
    ),
    "beam options for the local pool": (
        [*"build imagenet --source s --output o --format tfrecord -- --region=x".split()],
        "got Beam options --region=x with --runner local",
    ),
    "a runner that loses data": (
        [*"build imagenet --source s --output o --format tfrecord --runner DaskRunner".split()],
        "--runner DaskRunner is refused: it drops data silently",
    ),
    "an unknown runner": (
        [*"build imagenet --source s --output o --format tfrecord --runner Quick".split()],
        "unknown; expected local or one of FnApiRunner",
    ),
    "a misspelt Beam option": (
        [*"build imagenet --source s --output o --format tfrecord --runner FnApiRunner -- --regoin=x".split()],
        "not options of Beam: --regoin=x",
    ),
    "images of a dataset with originals": (
        [*"build imagenet --source s --output o --format tfrecord --images 5".split()],
        "imagenet has as many images as its originals",
    ),
    "no originals": (
        [*"build imagenet --source nowhere --output o --format tfrecord".split()],
        "ILSVRC2012_img_train.tar",
    ),
    "an unknown place": (
        [*"build imagenet --source s3://x/y --output o --format tfrecord".split()],
        "s3:// is not known",
    ),
    "check none and resize": (
        [*"build imagenet --source s --output o --format tfrecord --check none --resize 256".split()],
        "--check none reads no image",
    ),
}


@pytest.mark.parametrize("case", USAGE)
def test_wrong_usage_is_one_line_and_exit_code_2(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, message = USAGE[case]
    run = dataprep(*arguments, PYTHONPATH=str(Path(__file__).parents[2]))
    assert run.returncode == 2, run.stderr
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""
    assert list(tmp_path.iterdir()) == []


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


def test_fail_on_the_first_bad_image(originals, tmp_path):
    run = dataprep(*build_arguments("coco-dup5", originals["coco"], tmp_path / "out", "tfrecord", "--on-bad", "fail"))
    assert run.returncode == 1
    assert "expected a valid JPEG (--on-bad fail)" in run.stderr


def test_a_dry_run_writes_nothing(originals, tmp_path):
    arguments = build_arguments("coco-dup5", originals["coco"], tmp_path / "out", "tfrecord", "--dry-run")
    plan = json.loads(dataprep(*arguments).stdout)
    assert sum(plan["splits"][0]["shard_samples"]) == 120
    arguments.remove("--json")
    text = dataprep(*arguments).stdout
    assert "train: 120 samples in 1 shards" in text
    assert "an epoch makes 5 passes, 1 stored" in text
    assert not (tmp_path / "out").exists()


def test_another_dataset_is_neither_mixed_nor_replaced_unasked(originals, tmp_path):
    output = tmp_path / "out"
    build("coco-dup5", originals["coco"], output, "tfrecord")
    other = build_arguments("coco-dup5", originals["coco"], output, "webdataset")
    refused = dataprep(*other)
    assert refused.returncode == 2
    assert "another dataset stands there (coco-dup5, tfrecord" in refused.stderr
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


def test_results_go_to_stdout_and_words_to_stderr(originals, tmp_path):
    run = dataprep(*build_arguments("coco-dup5", originals["coco"], tmp_path / "out", "tfrecord"))
    assert json.loads(run.stdout)["name"] == "coco-dup5"
    assert run.stderr == ""
