"""The ResNet in JAX: exact, resumable after any end, in one process and in two. JAX runs in processes of its own."""

import dataclasses
import json
import re
import shutil
import signal
import struct
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

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
from train.train_resnet_jax import PRESETS, command, find_tfds

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


DATA = {"dataset_root": "/data"}


def test_the_name_of_a_configuration_file_chooses_a_preset():
    for path in ("configs/default.py", "default", "/home/me/resnet_jax/configs/default.py"):
        assert config_of(config=path) == replace(config_of(), config=path)
    tpu = config_of(config="configs/tpu.py", batch_size=64)
    assert (tpu.batch_size, tpu.half_precision, tpu.dataset_cache) == (64, True, True)


def test_no_configuration_file_is_run(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UsageError, match=r"files are not run; choose one of configs/default.py, configs/tpu.py"):
        config_of(config=str(path))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.modle=ResNet50"], "No such option '--config.modle'. (Did you mean one of: '--config.model'"),
        (["--config.dataset.roots=/data"], "'--config.dataset.root'?)"),
        (["--config.batch_size=many"], "'many' is not a valid integer"),
        (["--config.half_precision=perhaps"], "'perhaps' is not a valid boolean"),
        (["--config.dataset.region_policy=maybe"], "'maybe' is not one of"),
        (["more"], "Got unexpected extra argument (more)"),
    ],
)
def test_misspelt_keys_and_values_of_another_type_are_refused(arguments, message):
    found = CliRunner().invoke(command, ["--workdir", "x", *arguments])
    assert found.exit_code == 2
    assert message in " ".join(found.output.split())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be 1 to 2,147,483,647, got 0"),
        ({"log_per_step": 0}, "`log_per_step` must be 1 to 2,147,483,647, or -1, got 0"),
        ({"log_per_step": -1}, "`log_per_step` or `log_per_epoch` must be 1 or more"),
        ({"steps_per_eval": 0}, "`steps_per_eval` must be 1 to 2,147,483,647, or -1, got 0"),
        ({"checkpoint_per_minute": 0.0}, "`checkpoint_per_minute` must be above 0, or -1"),
        ({"num_epochs": 4, "warmup_epochs": 5}, "`warmup_epochs` must be 0 to `num_epochs`, which is 4, got 5"),
        ({"momentum": 1.0}, "`momentum` must be 0 or more and below 1, got 1.0"),
        ({"prefetch": -1}, "`prefetch` must be 0 to 2,147,483,647, got -1"),
        ({"max_steps": -1}, "`max_steps` must be 0 to 2,147,483,647, got -1"),
        ({"profile_steps": "5"}, "`profile_steps` 5: expected A:B"),
    ],
)
def test_values_out_of_range_are_refused(keys, message):
    with pytest.raises(UsageError, match=message):
        config_of(**keys)


def test_the_data_path_follows_from_root_name_and_tfds_data_dir(tmp_path):
    assert config_of(**DATA).data_path({}) == "/data"
    with pytest.raises(UsageError, match="`dataset_root` is missing"):
        config_of().data_path({"TFDS_DATA_DIR": "/tfds"})
    with pytest.raises(UsageError, match="give `dataset_use_tfds` True as well"):
        config_of(**DATA, dataset_name="imagenet_fake").data_path({})
    newest = tmp_path / "imagenet_fake" / "10.0.0"
    for version in ("9.0.0", "10.0.0", "notes"):
        folder = tmp_path / "imagenet_fake" / version
        folder.mkdir(parents=True)
        (folder / "dataset_info.json").write_text("{}")
    for root in (tmp_path, tmp_path / "imagenet_fake", newest):
        keys = {"dataset_root": str(root), "dataset_name": "imagenet_fake", "dataset_use_tfds": True}
        assert config_of(**keys).data_path({}) == str(newest)
    older = str(newest.with_name("9.0.0"))
    assert find_tfds(older, "") == older
    keys = {"dataset_name": "imagenet_fake", "dataset_use_tfds": True}
    assert config_of(**keys).data_path({"TFDS_DATA_DIR": f"{tmp_path}/"}) == str(newest)
    with pytest.raises(UsageError, match=r"has neither dataset_info.json nor a version of the dataset below it"):
        find_tfds(str(tmp_path), "")


def fitted(**keys):
    """The configuration of a run on ImageNet."""
    return config_of(**keys).fitted_to(1_281_167, num_devices=1, tells=False)


SCHEDULE = {"learning_rate": 0.2, "warmup_epochs": 2.0, "num_epochs": 50, "batch_size": 64}


@pytest.mark.parametrize("key", SCHEDULE)
def test_each_key_of_the_schedule_changes_the_learning_rate(key):
    changed = fitted(**{key: SCHEDULE[key]}).schedule()
    assert [changed.at(epoch) for epoch in (1, 30)] != [fitted().schedule().at(epoch) for epoch in (1, 30)]


def test_small_data_get_a_smaller_batch_and_a_short_run_a_shorter_warm_up():
    found = config_of(num_epochs=3).fitted_to(95, num_devices=1, tells=False)
    assert (found.batch_size, found.warmup_epochs) == (16, pytest.approx(0.15))


LOADER = {
    "batch_size": (64, {"batch_size": 64}),
    "image_size": (96, {"image_size": 96}),
    "seed": (1, {"seed": 1}),
    "dataset_min_crop": (0.5, {"scale": (0.5, 1.0)}),
    "dataset_num_workers": (7, {"threads": 7}),
    "dataset_prefetch_factor": (5, {"prefetch_batches": 5}),
    "dataset_on_error": ("skip", {"on_error": "skip"}),
    "dataset_region_policy": ("off", {"region_policy": "off"}),
    "metrics_port": (9464, {"metrics_port": 9464}),
    "metrics_address": ("0.0.0.0", {"metrics_address": "0.0.0.0"}),
    "dataset_cache": (True, {"cache_dir": "/cache/dataprep/images"}),
}


@pytest.mark.parametrize("key", LOADER)
def test_each_key_of_the_loader_changes_its_own_setting(key, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    value, expected = LOADER[key]
    configs = (config_of(**keys).loader_config() for keys in ({}, {key: value}))
    before, after = (
        {field.name: getattr(config, field.name) for field in dataclasses.fields(config)} for config in configs
    )
    assert {name for name in after if after[name] != before[name]} == expected.keys()
    assert expected.items() <= after.items()


def test_the_learning_rate_is_proportional_to_the_batch_and_rises_for_five_epochs():
    schedule = fitted(config="tpu").schedule()
    assert schedule.at(2.5) == pytest.approx(0.1 * 1024 / 256 / 2)
    assert schedule.at(5) == pytest.approx(0.4)
    assert schedule.at(52.5) == pytest.approx(0.2)
    assert schedule.at(100) == pytest.approx(0)


@given(st.sampled_from(sorted(PRESETS)), st.integers(1, 10**6))
def test_a_key_overrides_its_preset(name, batch_size):
    found = config_of(config=name, batch_size=batch_size)
    assert replace(found, batch_size=config_of(config=name).batch_size) == config_of(config=name)
    assert found.description()["batch_size"] == batch_size
