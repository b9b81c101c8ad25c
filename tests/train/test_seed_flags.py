"""Every flag of the seed systems' training programs: taken with its default, or refused with the reason.

That what is taken changes something, the tests of each entry's flags show.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import click
import pytest

from train import finetune_mae, pretrain_mae, train_resnet, train_resnet_jax, train_vit
from train.finetune_mae import recipe_flags
from train.loops.runtime import open_runtime
from train.train_resnet_jax import REFUSED as REFUSED_KEYS
from train.train_resnet_jax import config_of

REFUSED = object()
IMAGENET = 1_281_167
"""Images of an epoch, for which the defaults are the seeds'."""
OURS: dict[str, str] = {
    "num_workers": "one a core, as many as there are",
    "dataset.num_workers": "one a core, as many as there are",
    "data_path": "required",
    "output_dir": "an example's",
    "pin_mem": "on, where there is CUDA",
    "num_classes": "as many as the data have classes",
}
"""Flags whose default is another one, and why."""
LONG_SEQ_MAE = {
    "batch_size": 64,
    "effective_batch_size": -1,
    "accum_iter": 1,
    "epochs": 400,
    "ckpt_interval": 20,
    "model": "mae_vit_large_patch16",
    "norm_pix_loss": False,
    "no_k_bias_in_vit": False,
    "input_size": 224,
    "patch_size": -1,
    "min_crop": 0.2,
    "max_crop": 1.0,
    "use_byol_crop": False,
    "mask_ratio": 0.75,
    "mask_downsampling": 1,
    "decoder_downsampling": 1,
    "pred_downsampling": 1,
    "weight_decay": 0.05,
    "lr": None,
    "blr": 1e-3,
    "min_lr": 0,
    "warmup_epochs": 40,
    "data_path": None,
    "output_dir": None,
    "log_dir": None,
    "resume": "",
    "start_epoch": 0,
    "num_workers": 10,
    "pin_mem": True,
    "device": None,
    "seed": 0,
    "use_xla": False,
    **dict.fromkeys(("world_size", "local_rank", "dist_on_itp", "dist_url"), REFUSED),
}
VIT_10B = {
    "data_dir": "/datasets/imagenet-1k",
    "fake_data": False,
    "num_workers": 4,
    "ckpt_dir": "/tmp/vit_fsdp",
    "resume_epoch": 0,
    "ckpt_epoch_interval": 10,
    "test_epoch_interval": 10,
    "log_step_interval": 20,
    "image_size": 224,
    "patch_size": 14,
    "embed_dim": 5120,
    "num_heads": 32,
    "num_blocks": 32,
    "mlp_ratio": 4,
    "pos_dropout": 0,
    "att_dropout": 0,
    "mlp_dropout": 0,
    "num_classes": 1000,
    "batch_size": 1024,
    "num_epochs": 300,
    "lr": 1e-3,
    "weight_decay": 0.1,
    "clip_grad_norm": 1.0,
    "warmup_steps": 10000,
    "no_grad_ckpt": False,
    "run_without_fsdp": False,
    **dict.fromkeys(
        ("no_reshard_after_forward", "flatten_parameters", "shard_on_cpu", "mark_step_after_forward"), REFUSED
    ),
}
GCSPYTORCHIMAGENET = {
    "model": "resnet50",
    "datadir": "/tmp/imagenet",
    "logdir": None,
    "batch_size": 128,
    "test_set_batch_size": 64,
    "num_epochs": 18,
    "momentum": 0.9,
    "wd": 1e-4,
    "lr": None,
    "lr_scheduler_type": None,
    "lr_scheduler_divide_every_n_epochs": None,
    "lr_scheduler_divisor": None,
    "num_warmup_epochs": None,
    "target_accuracy": 0,
    "num_workers": 4,
    "log_steps": 20,
    "metrics_debug": False,
    "fake_data": False,
    **dict.fromkeys(
        (
            "num_cores", "dataset", "drop_last", "tidy", "async_closures", "debug", "profiler_port", "wds_traindir",
            "wds_testdir", "trainsize", "testsize", "save_model", "load_chkpt_file", "load_chkpt_dir", "model_bucket",
        ),
        REFUSED,
    ),
}  # fmt: skip
SEEDS: dict[str, tuple[ModuleType, dict[str, Any]]] = {
    "long_seq_mae": (pretrain_mae, LONG_SEQ_MAE),
    "vit_10b_fsdp_example": (train_vit, VIT_10B),
    "gcspytorchimagenet": (train_resnet, GCSPYTORCHIMAGENET),
}
RESNET_JAX = {
    "model": "ResNet50",
    "dataset.name": "",
    "dataset.root": "",
    "dataset.num_workers": 4,
    "dataset.prefetch_factor": 2,
    "dataset.cache": False,
    "dataset.use_tfds": False,
    "dataset.pin_memory": REFUSED,
    "shuffle_buffer_size": REFUSED,
    "learning_rate": 0.1,
    "warmup_epochs": 5,
    "momentum": 0.9,
    "batch_size": 128,
    "num_epochs": 100,
    "half_precision": False,
    "log_per_step": 100,
    "log_per_epoch": -1,
    "eval_per_epoch": 1,
    "steps_per_eval": -1,
    "checkpoint_per_epoch": 20,
    "seed": 0,
}


def options(command: click.Command) -> dict[str, click.Option]:
    """By all their spellings."""
    return {spelling: each for each in command.params for spelling in each.opts if isinstance(each, click.Option)}


@pytest.mark.parametrize(("seed", "name"), [(seed, name) for seed, (_, flags) in SEEDS.items() for name in flags])
def test_each_flag_of_the_original_programs_has_its_default_or_is_refused(seed, name):
    module, flags = SEEDS[seed]
    option = options(module.command)[f"--{name.replace('_', '-')}"]
    refused = flags[name] is REFUSED
    assert option.hidden == refused
    assert refused == (option.name in module.REFUSED)
    if not refused and name not in OURS:
        fitted = module.command.kind(data_path="x").fitted_to(IMAGENET, open_runtime("cpu"))
        found = getattr(fitted, option.name) if option.default is None and flags[name] is not None else option.default
        assert found == flags[name]


@pytest.mark.parametrize("name", RESNET_JAX)
def test_each_key_of_resnet_jax_has_its_default_or_is_refused(name):
    option = options(train_resnet_jax.command)[f"--config.{name.replace('_', '-')}"]
    refused = RESNET_JAX[name] is REFUSED
    assert option.hidden == refused == (name in REFUSED_KEYS)
    if not refused and name not in OURS:
        fitted = config_of(workdir="x").fitted_to(IMAGENET, num_devices=8, tells=False)
        assert fitted.description()[name] == RESNET_JAX[name]


def test_the_resnet_in_jax_has_workdir_config_and_debug():
    assert {"--workdir", "--config", "--debug"} <= options(train_resnet_jax.command).keys()


OPENED: dict[str, tuple[ModuleType, Callable[..., Any], dict[str, Any]]] = {
    "pretrain_mae": (
        pretrain_mae,
        pretrain_mae.PretrainMAE,
        {"model": "mae_vit_micro_patch8", "input_size": 32, "batch_size": 8, "warmup_epochs": 0},
    ),
    "finetune_mae": (
        finetune_mae,
        recipe_flags,
        {"model": "vit_micro_patch8", "input_size": 32, "batch_size": 8, "num_workers": 0},
    ),
    "train_vit": (
        train_vit,
        train_vit.TrainViT,
        {"image_size": 16, "patch_size": 8, "embed_dim": 32, "num_heads": 2, "batch_size": 8, "warmup_steps": 0},
    ),
    "train_resnet": (train_resnet, train_resnet.TrainResNet, {"model": "tiny_cnn", "image_size": 32, "batch_size": 8}),
}
"""Entries with flags that make them small."""


@pytest.mark.parametrize("entry", OPENED)
def test_the_index_of_plain_data_is_kept_where_it_is_asked_for(entry, photographs, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    module, flags, values = OPENED[entry]
    common = {"data_path": photographs, "index_dir": str(tmp_path / "index"), "device": "cpu", "output_dir": ""}
    training = module.open_training(flags(**common, **values))
    assert training.loader.dataset.url == str(tmp_path / "index")
    assert not (tmp_path / "cache").exists()
