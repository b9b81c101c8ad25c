"""The keys of the ResNet in JAX: those of resnet_jax with their meaning, and none that does nothing."""

import dataclasses
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UsageError
from tests.support.training_jax import config_of
from train.train_resnet_jax import PRESETS, REFUSED, command, find_tfds

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


@pytest.mark.parametrize("key", REFUSED)
def test_keys_without_a_meaning_are_refused_with_the_reason(key):
    with pytest.raises(UsageError, match=f"--config.{key.replace('_', '-')}: .*; leave it out"):
        command.main(["--workdir=x", f"--config.{key}=1"], standalone_mode=False)


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
