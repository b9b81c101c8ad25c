"""The Python functions: the same requests as the commands, typed, documented, with progress and clear errors."""

import inspect
import logging
import subprocess
import sys
from functools import partial

import pytest

import dataprep
from tests.support.builds import dataprep as command
from tests.support.builds import digests
from tests.support.own_data import write_pets

OF_REQUESTS = [name for name in dataprep.__all__ if getattr(dataprep, name).__module__ == "dataprep"]


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pets")
    write_pets(folder)
    return str(folder)


@pytest.fixture(scope="module")
def shards(pets, tmp_path_factory):
    output = str(tmp_path_factory.mktemp("built") / "shards")
    dataprep.build_folder(source=pets, output=output, format="webdataset", workers=1)
    return output


@pytest.mark.parametrize("name", OF_REQUESTS)
def test_help_says_the_meaning_of_every_argument(name):
    function = getattr(dataprep, name)
    arguments, documented = inspect.signature(function).parameters, inspect.getdoc(function)
    assert [each for each in arguments if f"\n    {each}: " not in documented] == []
    assert arguments.keys().isdisjoint({"complete", "detach", "rejected"})  # of the command line only


def test_public_names_exist_and_are_listed():
    assert {*dataprep.__all__} <= {*dir(dataprep)}
    assert all(getattr(dataprep, name) is not None for name in dataprep.__all__)


def test_functions_and_commands_write_the_same_bytes(pets, shards, tmp_path):
    run = command("build", "folder", "--source", pets, "--output", tmp_path / "out", "--format", "webdataset")
    assert run.returncode == 0, run.stderr
    assert digests(tmp_path / "out") == digests(shards)


def test_a_callback_gets_the_progress_and_the_logger_the_messages(pets, tmp_path, caplog):
    steps = []
    with caplog.at_level(logging.INFO, "dataprep"):
        dataset = dataprep.build_folder(
            source=pets, output=tmp_path / "out", format="tfrecord", workers=1, progress=steps.append
        )
    last = [step for step in steps if step.step == "building"][-1]
    assert last.done == last.total == dataset.samples
    assert "writing index and manifest" in {step.step for step in steps}
    assert any("classes, one per folder" in record.message for record in caplog.records)


def test_a_dry_run_returns_the_planned_dataset_and_leaves_nothing(pets, shards, tmp_path):
    planned = dataprep.build_folder(source=pets, output=tmp_path / "out", format="webdataset", dry_run=True)
    built = dataprep.open(shards)
    assert planned.is_planned
    assert (planned.samples, planned.classes) == (built.samples, built.classes)
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_is_verified_converted_described_and_loaded(shards, tmp_path):
    report = dataprep.verify(shards, deep=True, workers=1)
    assert report.ok
    assert "complete" in report._repr_html_()
    small = dataprep.convert(shards, output=tmp_path / "small", format="tfrecord", resize=32, workers=1)
    assert small.samples == dataprep.open(shards).samples
    assert {*dataprep.card(shards, dry_run=True)} == {"README.md", "croissant.json", "_info.json"}
    with dataprep.open_loader(small.url, batch_size=2, image_size=16) as loader:
        assert next(iter(loader)).images.shape == (2, 16, 16, 3)


def test_build_takes_the_names_of_the_command(pets, tmp_path):
    built = dataprep.build("folder", source=pets, output=tmp_path / "out", format="webdataset", workers=1)
    assert built.samples > 0
    with pytest.raises(dataprep.DataprepError, match=r"'foldr' is not one of .*; did you mean folder"):
        dataprep.build("foldr", source=pets, output=tmp_path / "out", format="webdataset")


def test_a_dataset_is_summarised(shards, tmp_path):
    summary = dataprep.inspect(shards, html=tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 10_000
    assert summary.samples == dataprep.open(shards).samples
    assert list(summary.rejected()) == []
    for shown in (str(summary), summary._repr_html_()):
        assert "train" in shown and f"{summary.splits[0].samples:,}" in shown


def test_a_copy_is_planned_and_made(shards, tmp_path):
    planned = dataprep.replicate(shards, to=tmp_path / "copy", dry_run=True)
    assert (planned.replicas, list(tmp_path.iterdir())) == (None, [])
    steps = []
    dataprep.replicate(shards, to=str(tmp_path / "copy"), progress=lambda progress: steps.append(progress.step))
    assert steps and digests(tmp_path / "copy").items() >= digests(shards).items()


def test_the_cost_of_reading_is_calculated_from_given_facts():
    found = dataprep.check_region(
        "gs://bucket", bucket_location="us-central1", zone="europe-west4-a", dataset_bytes="138GiB", epochs=90
    )
    assert (found.verdict, found.reader) == ("paid", "europe-west4-a")
    assert found.reports[0].training.total > 90 * found.reports[0].one_pass.transfer > 0
    near = dataprep.check_region(["gs://first", "gs://second"], bucket_location="europe-west4", zone="europe-west4-a")
    assert (near.verdict, len(near.reports)) == ("free", 2)


def test_the_input_of_a_training_is_planned():
    found = dataprep.plan_input(accelerator="v4-32", images_per_s=32_000)
    assert (found.plan.verdict, found.pod.hosts) == ("fed", 4)


FOLDER = partial(dataprep.build_folder, format="webdataset")
BUILD = partial(FOLDER, source="a", output="b")
WRONG = {
    "an unknown argument": (
        lambda: FOLDER(sorce="a", output="b"), "build_folder has no argument 'sorce'; did you mean source?"
    ),
    "a missing argument": (lambda: FOLDER(source="a"), "build_folder needs `output`"),
    "another choice": (
        lambda: dataprep.convert("a", output="b", format="webdatset"),
        "`format` must be one of imagefolder, tfrecord, webdataset, got 'webdatset'; did you mean webdataset?",
    ),
    "another type": (lambda: dataprep.verify("a", workers="two"), "`workers` must be a whole number, got 'two'"),
    "a number out of its range": (lambda: dataprep.adopt("a", workers=0), "`workers` must be 1 or more, got 0"),
    "a flag that is text": (
        lambda: dataprep.card("a", overwrite="yes"), "`overwrite` must be True or False, got 'yes'"
    ),
    "too many positions": (lambda: dataprep.verify("a", True), "verify takes 1 positional argument, got 2"),
    "a size": (lambda: BUILD(shard_bytes="2 XB"), "`shard_bytes`: got '2 XB', expected a size such as 256MiB"),
    "a URL of a copy given twice": (
        lambda: dataprep.replicate("a", to=["gs://nbtest/b"] * 2), "`to` gs://nbtest/b: given twice; give it once"
    ),
    "options that exclude each other": (
        lambda: dataprep.check_region("gs://a", bucket_location="EU", replicas=True),
        "`replicas` reads the dataset's list of copies; leave `bucket_location` out",
    ),
    "a missing rate": (lambda: dataprep.plan_input(accelerator="v4-32"), "plan_input needs `images_per_s`"),
    "no dataset": (lambda: dataprep.inspect("/nowhere"), "/nowhere"),
    "pairs": (lambda: BUILD(default="a=1"), "`default` must be a mapping of names to texts, got 'a=1'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_gives_one_clear_error(case):
    call, message = WRONG[case]
    with pytest.raises(dataprep.DataprepError) as error:
        call()
    assert str(error.value).startswith(message)


SCRIPT = """
import dataprep
built = dataprep.build_folder(source={source!r}, output={output!r}, format="webdataset", workers=2, num_shards=2)
print(built.samples)
"""


def test_a_script_needs_no_guard_around_its_main_part(pets, tmp_path):
    """Workers do not import the script again."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(source=pets, output=str(tmp_path / "out")))
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stdout.count("\n")) == (0, 1), run.stderr
