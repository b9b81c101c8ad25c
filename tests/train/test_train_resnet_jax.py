"""The ResNet in JAX: exact, resumable after any end, in one process and in two. JAX runs in processes of its own."""

import json
import re
import shutil
import signal
import struct

import pytest

from dataprep.demo.make import write_demo
from dataprep.errors import UsageError
from tests.support.finished import build_here
from tests.support.training import start
from tests.support.training_jax import (
    SMALL,
    arguments,
    cluster,
    config_of,
    ended,
    environment,
    launch,
    numbers,
    series,
    train,
)
from train.train_resnet_jax import command

ENDS = (7, 15, 22)
"""Steps after which the three epochs end."""


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    write_demo("imagenet", folder, images=60, odd=False)
    return folder


@pytest.fixture(scope="module")
def plain(originals, tmp_path_factory):
    """What other tools would have written: a dataset without our manifest and index."""

    def build(fmt, *parts):
        ours = build_here("imagenet", originals, tmp_path_factory.mktemp("ours") / fmt, fmt)
        theirs = tmp_path_factory.mktemp("theirs")
        shutil.copytree(
            ours, theirs.joinpath(*parts), ignore=shutil.ignore_patterns("dataset.json", "index"), dirs_exist_ok=True
        )
        return theirs

    return build


@pytest.fixture(scope="module")
def found(dataset, plain, tmp_path_factory):
    """Facts about many runs in one process, and where they wrote."""
    images, tfds = plain("imagefolder"), plain("tfrecord", "imagenet_fake", "1.0.0")
    folder = tmp_path_factory.mktemp("cases")
    variables = {**environment(), "XDG_CACHE_HOME": str(folder / "cache")}
    program = ("tests.support.training_jax_cases", dataset, str(images), str(tfds), str(folder))
    with start(*program, **variables) as process:
        output, errors = process.communicate(timeout=800)
    assert process.returncode == 0, errors[-3000:]
    return json.loads(output.splitlines()[-1]) | {"folder": folder, "said": errors}


@pytest.fixture(scope="module")
def runs(found):
    return found["runs"]


@pytest.fixture(scope="module")
def expected(found):
    """Numbers of an uninterrupted run."""
    numbers_of_all = numbers(found["folder"] / "whole")
    assert list(numbers_of_all[0]) == list(range(1, ENDS[-1] + 1))
    return numbers_of_all


def steps(run, name):
    return [int(step) for step in run[name]]


def test_a_run_stopped_within_an_epoch_resumes_with_the_same_losses(found, runs, expected):
    assert [runs[name]["step"] for name in ("part", "rest", "over")] == [10, 22, 22]
    assert numbers(found["folder"] / "part") == expected
    assert runs["over"]["saved"] == []


def in_two_processes(devices, *flags):
    return [launch(*flags, **environment(devices=devices), **each) for each in cluster(2)]


@pytest.mark.long
def test_two_processes_of_two_devices_have_the_losses_of_four_devices_of_one(dataset, expected, tmp_path):
    flags = arguments(tmp_path / "two", dataset_root=dataset, **SMALL)
    pair = in_two_processes(2, *flags, "--config.profile_steps=2:4")
    train(*arguments(tmp_path / "four", dataset_root=dataset, **SMALL), **environment(devices=4))
    for process in pair:
        ended(process)
    two, four = numbers(tmp_path / "two"), numbers(tmp_path / "four")
    for name, *values in zip(("loss", "accuracy", "lr", "val_loss", "val_accuracy"), two, four, expected, strict=True):
        for other in values[1:]:
            assert values[0] == pytest.approx(other, abs=1e-5), name
    assert len(list((tmp_path / "two").glob("checkpoint-*.npz"))) == 1
    traces = [list((tmp_path / "two" / each).glob("plugins/profile/*/*.xplane.pb")) for each in ("", "rank-01")]
    assert [len(each) for each in traces] == [1, 1]


@pytest.mark.long
@pytest.mark.parametrize(("number", "ranks"), [(signal.SIGTERM, [1]), (signal.SIGINT, [1]), (signal.SIGINT, [0, 1])])
def test_a_signal_to_one_or_both_of_two_processes_stops_both_after_the_same_step(dataset, tmp_path, number, ranks):
    flags = arguments(tmp_path, dataset_root=dataset, **{**SMALL, "num_epochs": 500})
    pair = first, second = in_two_processes(1, *flags)
    for _ in range(3):
        first.stdout.readline()
    for rank in ranks:
        pair[rank].send_signal(number)
    assert "the same command continues it" in ended(first, 143)
    ended(second, 143)
    (saved,) = tmp_path.glob("checkpoint-*.npz")
    assert f"checkpoint-{len(series(tmp_path, 'loss')):09d}-" in saved.name


def test_data_of_other_tools_train_by_the_command_line_of_resnet_jax(found, expected):
    assert found["errors"]["images"] == found["errors"]["tfds"] == ""
    assert list(found["losses"]["images"]) == list(found["losses"]["tfds"]) == ["1", "2"]
    assert (found["folder"] / "index" / "dataset.json").exists()


def test_debug_compiles_nothing(found):
    assert found["debug"] == [True, True, False]


def test_debug_and_diagnose_exclude_each_other():
    with pytest.raises(UsageError, match=r"--debug and --diagnose: .*; give one of them"):
        command.main(["--workdir=x", "--debug", "--diagnose"], standalone_mode=False)


def test_the_entry_imports_no_torch(found):
    assert not found["torch"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other model", "; its run had --config.model _ResNet1; use the same --config.model, or another --workdir"),
        ("other seed", "the state is of another sequence"),
        ("no such model", "no model 'ResNet51'; did you mean"),
        ("batch", "are too few for a batch of 1,000 in 3 epochs; choose a smaller --config.batch-size"),
    ],
)
def test_contradicting_flags_are_refused(found, name, message):
    assert message in found["errors"][name]


def test_tensorboard_shows_epochs_times_1000(found):
    shown = scalar_steps(found["folder"] / "whole")
    over_epochs = scalar_steps(found["folder"] / "whole" / "epochs")
    assert shown["train/loss"] == list(range(1, 23))
    assert over_epochs["ep_train/loss"] == [round(1000 * 8 * step / 60) for step in range(1, 23)]
    assert shown["val/accuracy"] == list(ENDS)
    assert over_epochs["ep_val/accuracy"] == [round(1000 * 8 * step / 60) for step in ENDS]


def scalar_steps(folder):
    """The x-axis of each tag."""
    (path,) = folder.glob("events.out.tfevents.*")
    data, found = path.read_bytes(), {}
    while data:
        (size,) = struct.unpack_from("<Q", data)
        event, data = data[12 : 12 + size], data[16 + size :]
        low, high = event[10], event[11]  # after the time: a number of up to two bytes, seven bits each
        step = low if low < 0x80 else low & 0x7F | high << 7
        for tag in re.findall(rb"\x0a[\x01-\x1f]([ -~]+)\x15", event):
            found.setdefault(tag.decode(), []).append(step)
    return found


GRAPH_KEYS = ("model", "image_size", "half_precision", "momentum", "weight_decay")


@pytest.mark.parametrize("key", GRAPH_KEYS)
def test_each_key_of_the_graph_changes_what_is_compiled(found, key):
    assert found["graphs"][key] != found["graphs"][""]


FILE_KEYS = {
    "log_per_step": lambda runs: steps(runs["rarely"], "loss") == [4, 7, 8, 12, 15, 16, 20, 22],
    "log_per_epoch": lambda runs: {7, 15} <= set(steps(runs["rarely"], "loss")),
    "eval_per_epoch": lambda runs: (
        [steps(runs[name], "val_images") for name in ("whole", "rarely", "often")] == [list(ENDS), [15, 22], []]
    ),
    "steps_per_eval": lambda runs: (
        [set(runs[name]["val_images"].values()) for name in ("whole", "small batches", "few batches")]
        == [{3}, {3}, {2}]
    ),
    "checkpoint_per_epoch": lambda runs: runs["often"]["saved"] == [4, 7, 8, 12, 15, 16, 20, 22],
    "checkpoint_per_step": lambda runs: {4, 8, 12, 16, 20} <= set(runs["often"]["saved"]),
    "checkpoint_per_minute": lambda runs: runs["always"]["saved"] == list(range(1, 9)),
    "keep_checkpoints": lambda runs: [runs[name]["kept"] for name in ("whole", "often", "always")] == [1, 2, 3],
    "profile_steps": lambda runs: [runs[name]["profiles"] for name in ("whole", "always")] == [0, 1],
    "batch_ramp": lambda runs: runs["growing"]["step"] == 4 + (60 - 4 * 4) // 8,
    "max_steps": lambda runs: runs["always"]["step"] == 8,
    "prefetch": lambda runs: [runs[name]["ahead"] for name in ("whole", "rarely")] == [2, 0],
    "seed": lambda runs: runs["seed"]["loss"]["1"] != runs["whole"]["loss"]["1"],
}
"""Keys, and how they show in what a run writes."""


@pytest.mark.parametrize("key", FILE_KEYS)
def test_each_key_changes_what_a_run_does_or_writes(runs, key):
    assert FILE_KEYS[key](runs)


def test_every_key_has_a_test():
    from tests.train.test_train_resnet_jax_flags import LOADER, SCHEDULE

    elsewhere = {
        "allow_other_decoder",
        "dataset_root",
        "dataset_name",
        "dataset_use_tfds",
        "dataset_index_dir",
        "init",
        "wandb",
    } | {"dataset_billing_project"}
    tested = {*GRAPH_KEYS, *FILE_KEYS, *LOADER, *SCHEDULE, *elsewhere}
    assert {name.replace("dataset_", "dataset.") for name in tested} == config_of().description().keys()
