"""Every flag of the seed systems' training programs: taken with its default, or refused with the reason.

That what is taken changes something, the tests of each entry's flags show.
"""

import json
import os
import shlex
import shutil
import string
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from dataprep.demo.make import write_demo
from tests.support.finished import build_here
from tests.support.markdown import blocks, commands
from tests.support.training import start
from tests.support.words import replaced
from train import pretrain_mae, train_resnet, train_resnet_jax, train_vit
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


DOCUMENT = "docs/training.md"
ENTRIES = {"dataprep-pretrain-mae": pretrain_mae.command, "dataprep-train-resnet": train_resnet.command}
KINDS = ("tfrecord", "imagefolder", "shards")
SIZES = {
    "dataprep-pretrain-mae": "--model mae_vit_micro_patch8 --input-size 32 --effective-batch-size 8 --epochs 1 "
    "--warmup-epochs 0 --num-workers 2",
    "dataprep-train-resnet": "--model tiny_cnn --image-size 32 --batch-size 8 --test-set-batch-size 8 --num-epochs 1 "
    "--log-steps 1 --num-workers 2",
}
"""What is said in place of what the document says."""
VARIABLES = {"SAVE_DIR": "out", "LOGDIR": "out", "NUM_EPOCHS": "2", "BATCH_SIZE": "256", "NUM_WORKERS": "8"} | {
    "TEST_BATCH_SIZE": "64"
}


def seed_command(entry: str, data: str) -> list[str]:
    """The arguments that the document shows for an entry, with variables in them, as the seeds' scripts have."""
    (found,) = [
        command.text
        for block in blocks(DOCUMENT)
        if block.info == "sh"
        for command in commands(block)
        if command.text.startswith(f"{entry} ") and "$" in command.text
    ]
    values = {**VARIABLES, "DATA_DIR": data, "IMAGE_DIR": data}
    words = shlex.split(string.Template(found).substitute(values))[1:]
    return [str(word) for word in replaced(words, *shlex.split(SIZES[entry]))]


@pytest.fixture(scope="module")
def kinds(dataset, tmp_path_factory) -> dict[str, str]:
    """The same photographs: a folder of class folders, a TFDS directory, our shards."""
    root = tmp_path_factory.mktemp("kinds")
    write_demo("imagenet", root / "originals", images=70, odd=False)
    found = {"shards": dataset}
    for fmt in ("imagefolder", "tfrecord"):
        built = build_here("imagenet", root / "originals", root / f"{fmt}-ours", fmt)
        found[fmt] = str(shutil.copytree(built, root / fmt, ignore=shutil.ignore_patterns("dataset.json", "index")))
    return found


@pytest.mark.parametrize(
    ("entry", "read"),
    [("dataprep-train-resnet", KINDS), pytest.param("dataprep-pretrain-mae", KINDS, marks=pytest.mark.long)],
)
def test_the_documented_command_line_runs_on_every_kind_of_data(kinds, tmp_path, entry, read):
    given = json.dumps({kind: seed_command(entry, kinds[kind]) for kind in read})
    cache = str(tmp_path / "cache")
    with start("tests.train.test_seed_flags", entry, str(tmp_path), given, XDG_CACHE_HOME=cache) as process:
        _, errors = process.communicate(timeout=800)
    assert process.returncode == 0, errors[-3000:]
    for kind in read:
        lines = [json.loads(line) for line in (tmp_path / kind / "out/log.txt").read_text().splitlines()]
        *lines, end = lines
        assert end["ended"], kind
        assert lines[-1]["epoch"] == pytest.approx(1, abs=0.3), kind
        assert list((tmp_path / kind).glob("*/checkpoint-*.pth")), kind
        if entry == "dataprep-train-resnet":
            assert {"val_accuracy"} <= lines[-1].keys(), kind


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_documented_command_line_is_understood(entry):
    ENTRIES[entry].make_context(entry, seed_command(entry, "data"))


def run(entry: str, folder: Path, arguments_of: dict[str, list[str]]) -> None:
    """Each in a folder of its own; the compiler meets the same graphs again."""
    for kind, arguments in arguments_of.items():
        (folder / kind).mkdir()
        os.chdir(folder / kind)
        ENTRIES[entry].main(arguments, standalone_mode=False)


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
