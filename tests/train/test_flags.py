"""Every flag of every program does something: another loss, another learning rate, other weights, other files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.support import finetuning
from tests.support.forked_transforms import forked_transforms  # noqa: F401
from tests.support.training import SMALL, TINY_VIT, trace_of
from train import finetune_mae, pretrain_mae, train_resnet, train_vit
from train.models.registry import create_model

pytestmark = pytest.mark.usefixtures("forked_transforms")
RUN = {
    "min_crop": {"min_crop": 0.9},
    "max_steps": {"max_steps": 2},
    "precision": {"precision": "bfloat16"},
    "seed": {"seed": 1},
    "ckpt_interval_steps": {"ckpt_interval_steps": 1},
    "ckpt_interval_minutes": {"ckpt_interval_minutes": 1e-9},
    "keep_checkpoints": {"ckpt_interval_steps": 1, "keep_checkpoints": 2},
    "log_interval_steps": {"log_interval_steps": 2},
    "profile_steps": {"profile_steps": "1:2"},
    "weight_decay": {"weight_decay": 5.0},
    "lr": {"lr": 1e-2},
    "batch_ramp": {"batch_size": None, "batch_ramp": "4:8@2steps"},
}
"""Flags of all programs."""
RECIPE = RUN | {
    "batch_ramp": {"effective_batch_size": -1, "batch_ramp": "4:8@2steps"},
    "batch_size": {"effective_batch_size": -1, "batch_size": 4},
    "effective_batch_size": {"effective_batch_size": 4},
    "accum_iter": {"effective_batch_size": -1, "batch_size": 4, "accum_iter": 2},
    "epochs": {"epochs": 2, "warmup_epochs": 0},
    "start_epoch": {"start_epoch": 1},
    "blr": {"blr": 0.01},
    "min_lr": {"min_lr": 1e-3, "warmup_epochs": 0},
    "warmup_epochs": {"warmup_epochs": 2},
}
"""Flags of the two programs for masked autoencoders."""
PACKS = {"pack_tokens": 40, "pack_images": 4}
PACKED = {
    "pack_tokens": PACKS | {"pack_tokens": 48},
    "pack_images": PACKS | {"pack_images": 2},
    "pack_min_tokens": PACKS | {"pack_min_tokens": 7},
    "pack_max_tokens": PACKS | {"pack_max_tokens": 11},
    "pack_positions": PACKS | {"pack_positions": "absolute"},
}
AGAINST_RUN = {"keep_checkpoints": {"ckpt_interval_steps": 1}}
AGAINST_RECIPE = AGAINST_RUN | {
    "epochs": {"warmup_epochs": 0},
    "min_lr": {"warmup_epochs": 0},
    "accum_iter": {"effective_batch_size": -1, "batch_size": 4},
}
MIXED = {"mixup": 0.8}
BOTH = {"mixup": 0.8, "cutmix": 1.0}
STEPPED = {"lr_scheduler_type": train_resnet.STEPS}


class Program(NamedTuple):
    """Flags of a plain run of a program, and by each other flag those that show it."""

    entry: Any
    plain: dict[str, Any]
    changes: dict[str, dict[str, Any]]
    against: dict[str, dict[str, Any]]
    """What a change is compared with, where that is not the plain run."""
    elsewhere: str = ""
    """Flags of the program alone that other tests show."""


PROGRAMS = {
    "pretrain_mae": Program(
        pretrain_mae,
        SMALL,
        RECIPE
        | PACKED
        | {
            "model": {"model": "mae_vit_tiny_patch16"},
            "input_size": {"input_size": 64},
            "patch_size": {"patch_size": 4},
            "decoder_embed_dim": {"decoder_embed_dim": 16},
            "decoder_depth": {"decoder_depth": 2},
            "no_k_bias_in_vit": {"no_k_bias_in_vit": True},
            "norm_pix_loss": {"norm_pix_loss": True},
            "mask_ratio": {"mask_ratio": 0.5},
            "mask_downsampling": {"mask_downsampling": 2},
            "decoder_downsampling": {"decoder_downsampling": 2},
            "pred_downsampling": {"decoder_downsampling": 2, "pred_downsampling": 2},
            "max_crop": {"max_crop": 0.3},
            "use_byol_crop": {"use_byol_crop": True},
        },
        AGAINST_RECIPE | dict.fromkeys(PACKED, PACKS) | {"pred_downsampling": {"decoder_downsampling": 2}},
        "fsdp grad_ckpt",
    ),
    "finetune_mae": Program(
        finetune_mae,
        finetuning.SMALL | {"mixup": 0.0, "cutmix": 0.0, "aa": "", "reprob": 0.0},
        RECIPE
        | {
            "model": {"model": "vit_tiny_patch16"},
            "finetune": {"finetune": "PRETRAINED"},
            "input_size": {"input_size": 64},
            "nb_classes": {"nb_classes": 1500},
            "global_pool": {"global_pool": False},
            "cls_token": {"cls_token": True},
            "drop_path": {"drop_path": 0.0},
            "layer_decay": {"layer_decay": 1.0},
            "clip_grad": {"clip_grad": 1e-6},
            "smoothing": {"smoothing": 0.5},
            "mixup": MIXED,
            "cutmix": {"cutmix": 1.0},
            "cutmix_minmax": {"cutmix_minmax": (0.2, 0.8)},
            "mixup_prob": MIXED | {"mixup_prob": 0.0},
            "mixup_switch_prob": BOTH | {"mixup_switch_prob": 1.0},
            "mixup_mode": BOTH | {"mixup_mode": "elem"},
            "aa": {"aa": "rand-m9-mstd0.5-inc1"},
            "color_jitter": {"color_jitter": 0.9},
            "reprob": {"reprob": 1.0},
            "remode": {"reprob": 1.0, "remode": "const"},
            "recount": {"reprob": 1.0, "recount": 4},
            "linear_probe": {"linear_probe": True, "drop_path": 0.0, "finetune": "PRETRAINED"},
        },
        AGAINST_RECIPE
        | {
            "mixup_prob": MIXED,
            "mixup_switch_prob": BOTH,
            "mixup_mode": BOTH,
            "remode": {"reprob": 1.0},
            "recount": {"reprob": 1.0},
            "linear_probe": {"drop_path": 0.0, "finetune": "PRETRAINED"},
        },
        "fsdp grad_ckpt eval dist_eval",
    ),
    "train_vit": Program(
        train_vit,
        TINY_VIT | {"epochs": 2, "warmup_steps": 3, "log_interval_steps": 1, "num_workers": 2},
        RUN
        | PACKED
        | {
            "fake_data": {"fake_data": True},
            "image_size": {"image_size": 24},
            "patch_size": {"patch_size": 4},
            "embed_dim": {"embed_dim": 48},
            "num_heads": {"num_heads": 4},
            "num_blocks": {"num_blocks": 1},
            "mlp_ratio": {"mlp_ratio": 2.0},
            "pos_dropout": {"pos_dropout": 0.5},
            "att_dropout": {"att_dropout": 0.5},
            "mlp_dropout": {"mlp_dropout": 0.5},
            "num_classes": {"num_classes": 1001},
            "batch_size": {"batch_size": 4},
            "accum_iter": {"accum_iter": 2},
            "epochs": {"epochs": 3, "max_steps": 0},
            "clip_grad_norm": {"clip_grad_norm": 1e-3},
            "warmup_steps": {"warmup_steps": 2},
        },
        AGAINST_RUN | dict.fromkeys(PACKED, PACKS) | {"epochs": {"max_steps": 0}},
        "no_grad_ckpt test_epoch_interval resume_epoch plan plan_devices json run_without_fsdp",
    ),
    "train_resnet": Program(
        train_resnet,
        {"model": "tiny_cnn", "image_size": 32, "batch_size": 8, "epochs": 2, "lr": 0.02, "log_interval_steps": 1},
        RUN
        | {
            "fake_data": {"fake_data": True, "num_classes": 3},
            "model": {"model": "shufflenet_v2_x0_5"},
            "num_classes": {"num_classes": 7},
            "image_size": {"image_size": 48},
            "batch_size": {"batch_size": 4},
            "accum_iter": {"batch_size": 4, "accum_iter": 2},
            "epochs": {"epochs": 1, "max_steps": 0},
            "lr_scheduler_type": STEPPED,
            "lr_scheduler_divide_every_n_epochs": STEPPED | {"lr_scheduler_divide_every_n_epochs": 0.1},
            "lr_scheduler_divisor": STEPPED | {"lr_scheduler_divide_every_n_epochs": 0.1, "lr_scheduler_divisor": 2},
            "num_warmup_epochs": STEPPED | {"num_warmup_epochs": 0},
            "momentum": {"momentum": 0.5},
            "ckpt_interval": {"epochs": 4, "max_steps": 0, "ckpt_interval": 2, "keep_checkpoints": 9},
        },
        AGAINST_RUN
        | {
            "fake_data": {"num_classes": 3},
            "accum_iter": {"batch_size": 4},
            "epochs": {"max_steps": 0},
            "lr_scheduler_divide_every_n_epochs": STEPPED,
            "lr_scheduler_divisor": STEPPED | {"lr_scheduler_divide_every_n_epochs": 0.1},
            "num_warmup_epochs": STEPPED,
            "ckpt_interval": {"epochs": 4, "max_steps": 0, "keep_checkpoints": 9},
        },
        "test_set_batch_size target_accuracy metrics_debug",
    ),
}
OF_ALL = (
    "data_path output_dir log_dir index_dir init resume num_workers ckpt_interval on_error region_policy "
    "billing_project pin_mem device use_xla diagnose metrics_port metrics_address wandb framework compile "
    "tensor_parallel ema_decay no_scan orbax allow_other_decoder"
)
"""Flags whose meaning tests of their own show."""


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("pretrained") / "mae.pth"
    torch.manual_seed(3)
    torch.save(create_model("mae_vit_micro_patch8", image_size=32).state_dict(), path)
    return str(path)


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """Traces of the runs that changes are compared with, each made once."""
    return {}


def traces(program: Program, data: str, folder: Path, pretrained: str, **flags: Any) -> dict[str, Any]:
    """Return all that three steps leave behind."""
    values = {"data_path": data, "device": "cpu", "output_dir": str(folder), "max_steps": 3, **program.plain, **flags}
    values = {name: pretrained if value == "PRETRAINED" else value for name, value in values.items()}
    if values.get("linear_probe"):
        values = {
            name: value for name, value in values.items() if name not in finetune_mae.LINEAR_PROBE or name in flags
        }
    make = getattr(program.entry, "recipe_flags", program.entry.command.kind)
    program.entry.open_training(make(**values)).run()
    return trace_of(folder)


@pytest.mark.parametrize(
    ("name", "flag"), [(name, flag) for name, program in PROGRAMS.items() for flag in program.changes]
)
def test_each_flag_changes_losses_weights_or_files(dataset, pretrained, plain, tmp_path, name, flag):
    program = PROGRAMS[name]
    against = program.against.get(flag, {})
    known = f"{name} {json.dumps(against)}"
    if known not in plain:
        plain[known] = traces(program, dataset, tmp_path / "plain", pretrained, **against)
    assert traces(program, dataset, tmp_path / "changed", pretrained, **program.changes[flag]) != plain[known]


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_every_flag_has_a_test(program):
    fields = {each.name for each in dataclasses.fields(program.entry.command.kind)}
    assert fields - set(OF_ALL.split()) - set(program.elsewhere.split()) == program.changes.keys() - {"ckpt_interval"}
