"""Defaults of fine-tuning and of a probe, the command lines that are taken, and flags that contradict each other."""

import pytest

from dataprep.errors import UsageError
from train.finetune_mae import command, open_training, recipe_flags
from train.loops.runtime import open_runtime

MIXED = {"mixup": 0.8}
BOTH = {"mixup": 0.8, "cutmix": 1.0}


def test_a_probe_has_the_papers_defaults_unless_flags_override_them():
    flags = recipe_flags(data_path="x", finetune="y", linear_probe=True, epochs=3)
    assert (flags.epochs, flags.blr, flags.weight_decay, flags.aa) == (3, 0.1, 0.0, "")
    assert (flags.pool, flags.min_lr) == ("token", 0.0)
    flags = recipe_flags(data_path="x")
    assert (flags.epochs, flags.blr, flags.weight_decay) == (50, 1e-3, 0.05)
    assert (flags.pool, flags.min_lr, flags.layer_decay) == ("average", 1e-6, 0.75)


@pytest.mark.parametrize(
    ("flags", "images", "expected"),
    [
        ({}, 1_281_167, (64, 5.0, 1e-3 * 64 / 256)),
        ({}, 95, (16, 5.0, 1e-3 * 16 / 256)),
        ({"linear_probe": True}, 1_281_167, (512, 10.0, 0.1 * 512 / 256)),
        ({"linear_probe": True, "epochs": 9}, 95, (16, 1.0, 0.1 * 16 / 256)),
        ({"linear_probe": True, "effective_batch_size": 16384}, 95, (None, 10.0, 0.1 * 16384 / 256)),
        ({"batch_size": 32, "lr": 1.0, "warmup_epochs": 3.0}, 95, (32, 3.0, 1.0)),
    ],
)
def test_batch_rate_and_warm_up_are_the_papers_or_fit_small_data(flags, images, expected):
    fitted = recipe_flags(data_path="x", finetune="y", **flags).fitted_to(images, open_runtime("cpu"))
    assert (fitted.batch_size, fitted.warmup_epochs, fitted.lr) == pytest.approx(expected)


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
        ({"aa": "rand-z9"}, "`aa` rand-z9: not a timm augmentation"),
        ({"aa": "best"}, "`aa` best: not a timm augmentation"),
        ({"reprob": 2.0}, "`reprob` must be 0 to 1, got 2.0"),
        ({"remode": "none"}, "`remode` must be one of"),
        ({"recount": 0}, "`recount` must be 1 to 2,147,483,647, got 0"),
        ({"layer_decay": 0.0}, "`layer_decay` must be above 0"),
        ({"model": "vit_giant_patch16"}, "no encoder 'vit_giant_patch16'; expected vit_SIZE_patchN of micro"),
        ({"nb_classes": 1}, "`num_classes` is 1, but the data have"),
        ({"start_epoch": 1, "resume": "x.pth"}, "give either `start_epoch` or `resume`"),
        ({"effective_batch_size": 9, "accum_iter": 2}, "choose a multiple of 2"),
    ],
)
def test_contradicting_flags_are_refused(dataset, flags, message):
    values = {"data_path": dataset, "device": "cpu", "model": "vit_micro_patch8", "input_size": 32, "output_dir": ""}
    with pytest.raises(UsageError, match=message):
        open_training(recipe_flags(**{**values, **flags}))
