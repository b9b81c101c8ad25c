"""Every flag of fine-tuning does something: another loss, another learning rate, other weights, other files."""

import dataclasses
import json

import pytest
import torch

from dataprep.errors import UsageError
from tests.support.finetuning import SMALL, finetune
from tests.support.training import trace_of
from train import finetune_mae
from train.finetune_mae import LINEAR_PROBE, Flags, command, open_training, recipe_flags
from train.models.registry import create_model

BASE = {**SMALL, "mixup": 0.0, "cutmix": 0.0, "max_steps": 3, "aa": "", "reprob": 0.0}
MIXED = {"mixup": 0.8}
BOTH = {"mixup": 0.8, "cutmix": 1.0}
CHANGES = {
    "min_crop": {"min_crop": 0.9},
    "model": {"model": "vit_tiny_patch16"},
    "finetune": {"finetune": "PRETRAINED"},
    "input_size": {"input_size": 64},
    "nb_classes": {"nb_classes": 1500},
    "global_pool": {"global_pool": False},
    "cls_token": {"cls_token": True},
    "drop_path": {"drop_path": 0.0},
    "batch_size": {"effective_batch_size": -1, "batch_size": 4},
    "effective_batch_size": {"effective_batch_size": 4},
    "accum_iter": {"effective_batch_size": -1, "batch_size": 4, "accum_iter": 2},
    "epochs": {"epochs": 2, "warmup_epochs": 0},
    "start_epoch": {"start_epoch": 1},
    "max_steps": {"max_steps": 2},
    "lr": {"lr": 1e-2},
    "blr": {"blr": 0.01},
    "min_lr": {"min_lr": 1e-3, "warmup_epochs": 0},
    "warmup_epochs": {"warmup_epochs": 2},
    "weight_decay": {"weight_decay": 5.0},
    "layer_decay": {"layer_decay": 1.0},
    "clip_grad": {"clip_grad": 1e-6},
    "smoothing": {"smoothing": 0.5},
    "mixup": MIXED,
    "cutmix": {"cutmix": 1.0},
    "cutmix_minmax": {"cutmix_minmax": (0.2, 0.8)},
    "mixup_prob": {**MIXED, "mixup_prob": 0.0},
    "mixup_switch_prob": {**BOTH, "mixup_switch_prob": 1.0},
    "mixup_mode": {**BOTH, "mixup_mode": "elem"},
    "aa": {"aa": "rand-m9-mstd0.5-inc1"},
    "color_jitter": {"color_jitter": 0.9},
    "reprob": {"reprob": 1.0},
    "remode": {"reprob": 1.0, "remode": "const"},
    "recount": {"reprob": 1.0, "recount": 4},
    "linear_probe": {"linear_probe": True, "drop_path": 0.0, "finetune": "PRETRAINED"},
    "precision": {"precision": "bfloat16"},
    "seed": {"seed": 1},
    "ckpt_interval_steps": {"ckpt_interval_steps": 1},
    "ckpt_interval_minutes": {"ckpt_interval_minutes": 1e-9},
    "keep_checkpoints": {"ckpt_interval_steps": 1, "keep_checkpoints": 2},
    "log_interval_steps": {"log_interval_steps": 2},
    "profile_steps": {"profile_steps": "1:2"},
    "num_workers": {},
    "ckpt_interval": {},
}
AGAINST = {
    "epochs": {"warmup_epochs": 0},
    "min_lr": {"warmup_epochs": 0},
    "accum_iter": {"effective_batch_size": -1, "batch_size": 4},
    "mixup_prob": MIXED,
    "mixup_switch_prob": BOTH,
    "mixup_mode": BOTH,
    "remode": {"reprob": 1.0},
    "recount": {"reprob": 1.0},
    "linear_probe": {"drop_path": 0.0, "finetune": "PRETRAINED"},
    "keep_checkpoints": {"ckpt_interval_steps": 1},
}
"""What the change is compared with, where that is not a plain run."""
ELSEWHERE = {
    "data_path", "on_error", "output_dir", "log_dir", "index_dir", "init", "resume", "region_policy", "pin_mem",
    "device",
    "use_xla", "diagnose", "eval", "dist_eval", "metrics_port", "metrics_address", "wandb",
    "framework", "compile", "tensor_parallel", "ema_decay", "no_scan", "orbax", "fsdp", "grad_ckpt",
}  # fmt: skip
"""Other tests show these: here, of the entry, and of the flags that all entries share."""
OF_OTHERS = {"num_workers", "ckpt_interval"}
"""These have tests of their own below."""


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("pretrained") / "mae.pth"
    torch.manual_seed(3)
    torch.save(create_model("mae_vit_micro_patch8", image_size=32).state_dict(), path)
    return str(path)


def traces(data: str, folder, pretrained: str, **flags) -> dict:
    """All that three steps leave behind."""
    values = {**BASE, **{name: pretrained if value == "PRETRAINED" else value for name, value in flags.items()}}
    if values.get("linear_probe"):
        values = {name: value for name, value in values.items() if name not in LINEAR_PROBE or name in flags}
    finetune(data, **{**values, "output_dir": str(folder)})
    return trace_of(folder)


@pytest.fixture(scope="module")
def plain():
    """Traces of plain runs, each made once."""
    return {}


@pytest.mark.parametrize("name", sorted(CHANGES.keys() - OF_OTHERS))
def test_each_flag_changes_losses_weights_or_files(dataset, pretrained, plain, tmp_path, name):
    against = json.dumps(AGAINST.get(name, {}))
    if against not in plain:
        plain[against] = traces(dataset, tmp_path / "plain", pretrained, **json.loads(against))
    assert traces(dataset, tmp_path / "changed", pretrained, **CHANGES[name]) != plain[against]


def test_the_same_flags_change_nothing(dataset, pretrained, tmp_path):
    assert traces(dataset, tmp_path / "a", pretrained) == traces(dataset, tmp_path / "b", pretrained)


def test_every_flag_has_a_test():
    assert {each.name for each in dataclasses.fields(Flags)} == CHANGES.keys() | ELSEWHERE


def test_num_workers_sets_the_loaders_processes(dataset):
    flags = {**SMALL, "data_path": dataset, "device": "cpu"}
    assert open_training(recipe_flags(**{**flags, "num_workers": 3})).loader.config.processes == 3
    assert recipe_flags(data_path="x").processes >= 1
    assert recipe_flags(data_path="x", aa="", reprob=0.0).processes == 0
    assert recipe_flags(data_path="x", linear_probe=True, finetune="y").processes == 0


def test_checkpoints_are_saved_after_every_so_many_epochs(dataset, tmp_path):
    flags = {**BASE, "max_steps": 0, "epochs": 4, "ckpt_interval": 2, "keep_checkpoints": 9}
    finetune(dataset, output_dir=str(tmp_path), **flags)
    steps = sorted(int(path.name[11:20]) for path in tmp_path.glob("checkpoint-*.pth"))
    assert steps == [7, 22, 30]


def test_a_probe_has_the_papers_defaults_unless_flags_override_them():
    flags = recipe_flags(data_path="x", finetune="y", linear_probe=True, epochs=3)
    assert (flags.epochs, flags.batch_size, flags.blr, flags.weight_decay, flags.aa) == (3, 512, 0.1, 0.0, "")
    assert (flags.pool, flags.warmup_epochs, flags.min_lr) == ("token", 10.0, 0.0)
    assert recipe_flags(data_path="x", finetune="y", linear_probe=True, effective_batch_size=16384).batch_size is None
    flags = recipe_flags(data_path="x")
    assert (flags.epochs, flags.batch_size, flags.blr, flags.weight_decay) == (50, None, 1e-3, 0.05)
    assert (flags.pool, flags.warmup_epochs, flags.min_lr, flags.layer_decay) == ("average", 5.0, 1e-6, 0.75)


def test_the_command_line_of_maes_fine_tuning_is_accepted(monkeypatch):
    seen = []
    monkeypatch.setattr("train.finetune_mae.open_training", lambda flags: seen.append(flags) or 0)
    monkeypatch.setattr("train.finetune_mae.run", lambda *_, **__: 0)
    line = (
        "--accum_iter 4 --batch_size 32 --model vit_base_patch16 --finetune mae.pth --epochs 100 --blr 5e-4 "
        "--layer_decay 0.65 --weight_decay 0.05 --drop_path 0.1 --mixup 0.8 --cutmix 1.0 --cutmix_minmax 0.2 0.8 "
        "--reprob 0.25 --dist_eval --data_path x --nb_classes 1000 --clip_grad 1"
    )
    command.main(line.split(), standalone_mode=False)
    assert seen[0].cutmix_minmax == (0.2, 0.8)
    assert (seen[0].blr, seen[0].batch_size, seen[0].clip_grad) == (5e-4, 32, 1.0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"linear_probe": True}, "`linear_probe` without `finetune`"),
        ({"linear_probe": True, "finetune": "y", "mixup": 0.8}, "`mixup` and `linear_probe`"),
        ({"linear_probe": True, "finetune": "y", "aa": "rand-m9"}, "`aa` and `linear_probe`"),
        (
            {"linear_probe": True, "finetune": "y", "framework": "jax", "ema_decay": 0.5},
            "`ema_decay` and `linear_probe`",
        ),
        ({"eval": True}, "`eval` without `resume`"),
        ({"smoothing": 1.0}, "`smoothing` must be"),
        ({"mixup": -1.0}, "`mixup` must be 0 or more"),
        ({"mixup_prob": 2.0}, "`mixup_prob` must be 0 to 1, got 2.0"),
        ({"mixup_mode": "half"}, "`mixup_mode` must be one of batch, pair, elem"),
        ({"cutmix_minmax": (0.8, 0.2)}, "`cutmix_minmax` must be a range"),
        ({"color_jitter": 0.4}, "`color_jitter` 0.4 with `aa` rand"),
        ({"aa": "", "color_jitter": 2.0}, "`color_jitter` must be 0 to 1"),
        ({"aa": "rand-z9"}, "`aa` rand-z9: not an augmentation of timm"),
        ({"aa": "best"}, "`aa` best: not an augmentation of timm"),
        ({"reprob": 2.0}, "`reprob` must be 0 to 1, got 2.0"),
        ({"remode": "none"}, "`remode` must be one of"),
        ({"recount": 0}, "`recount` must be 1 to 2,147,483,647, got 0"),
        ({"layer_decay": 0.0}, "`layer_decay` must be above 0"),
        ({"model": "vit_giant_patch16"}, "no encoder 'vit_giant_patch16'; expected vit_SIZE_patchN of micro"),
        ({"nb_classes": 1}, "`num_classes` 1, the data have"),
        ({"start_epoch": 1, "resume": "x.pth"}, "`start_epoch` and `resume`"),
        ({"effective_batch_size": 9, "accum_iter": 2}, "choose a multiple of 2"),
    ],
)
def test_contradicting_flags_are_refused(dataset, flags, message):
    values = {"data_path": dataset, "device": "cpu", "model": "vit_micro_patch8", "input_size": 32, "output_dir": ""}
    with pytest.raises(UsageError, match=message):
        open_training(recipe_flags(**{**values, **flags}))


@pytest.mark.parametrize(
    ("words", "warmup"),
    [
        ("--epochs 20", 2.0),
        ("--epochs 50", 5.0),
        ("--epochs 20 --warmup_epochs 5", 5.0),
        ("--linear_probe --finetune y", 10.0),
        ("--linear_probe --finetune y --epochs 30", 3.0),
    ],
)
def test_a_run_that_is_shorter_than_its_recipe_rises_for_a_tenth_of_its_epochs(monkeypatch, words, warmup):
    opened = []
    monkeypatch.setattr(finetune_mae, "open_training", opened.append)
    monkeypatch.setattr(finetune_mae, "run", lambda *_args, **_flags: 0)
    assert command.main(["--data_path", "x", *words.split()], standalone_mode=False) == 0
    assert opened[0].warmup_epochs == warmup
