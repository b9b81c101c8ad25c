"""Flags of the ViT whose meaning is more than another loss, and flags that are refused."""

import json
from typing import Any

import pytest

from dataprep.errors import UsageError
from tests.support.training import TINY_VIT, losses
from train.train_vit import REFUSED, TrainViT, command, open_training

SMALL: dict[str, Any] = {
    **TINY_VIT,
    "epochs": 2,
    "warmup_steps": 3,
    "log_interval_steps": 1,
    "num_workers": 2,
    "max_steps": 3,
}


def train(dataset, **flags: Any) -> int:
    """In this process; the exit code."""
    return open_training(TrainViT(**{"data_path": dataset, "device": "cpu", "output_dir": "", **SMALL, **flags})).run()


def test_blocks_are_recomputed_for_the_gradient_unless_no_grad_ckpt_is_given(dataset, tmp_path):
    calls = {}
    for kept in (False, True):
        training = open_training(
            TrainViT(data_path=dataset, device="cpu", **SMALL, no_grad_ckpt=kept, output_dir=str(tmp_path / str(kept)))
        )
        counted = calls.setdefault(kept, [])
        training.backend.model.blocks[0].attn.register_forward_hook(lambda *_, counted=counted: counted.append(1))
        training.run()
    assert [len(calls[kept]) for kept in (False, True)] == [2 * SMALL["max_steps"], SMALL["max_steps"]]
    assert losses(tmp_path / "False") == losses(tmp_path / "True")


def test_checkpoints_and_evaluations_come_after_every_so_many_epochs(dataset, tmp_path):
    flags = {"epochs": 5, "max_steps": 0, "ckpt_interval": 2, "test_epoch_interval": 3, "keep_checkpoints": 9}
    train(dataset, output_dir=str(tmp_path), **flags)
    steps = sorted(int(path.name[11:20]) for path in tmp_path.glob("checkpoint-*.pth"))
    assert steps == [15, 30, 37]  # after 2, 4, 5 epochs of 60 images in batches of 8
    lines = [json.loads(line) for line in (tmp_path / "log.txt").read_text().splitlines()]
    assert [line["step"] for line in lines if "val_loss" in line] == [22, 37]  # after 3 and 5 epochs


def test_resume_epoch_takes_the_checkpoint_after_that_epoch(dataset, tmp_path, capsys):
    flags = {"epochs": 2, "max_steps": 0, "ckpt_interval": 1, "log_interval_steps": 1, "device": "cpu"}
    train(dataset, output_dir=str(tmp_path), **flags)
    capsys.readouterr()
    names = {"epochs": "num_epochs", "log_interval_steps": "log_step_interval", "ckpt_interval": "ckpt_epoch_interval"}
    values = {names.get(name, name): value for name, value in {**SMALL, **flags}.items()}
    arguments = [part for name, value in values.items() for part in (f"--{name}", str(value))]
    arguments += ["--data_dir", dataset, "--ckpt_dir", str(tmp_path)]
    assert command.main([*arguments, "--resume_epoch", "1"], standalone_mode=False) == 0
    assert "resumed after step 7" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"--resume-epoch 9: .* has no checkpoint after step 67"):
        command.main([*arguments, "--resume_epoch", "9"], standalone_mode=False)


@pytest.mark.parametrize("name", REFUSED)
def test_flags_without_a_meaning_under_spmd_are_refused_with_the_reason(name):
    with pytest.raises(UsageError, match=f"^--{name.replace('_', '-')}: .{{20,}}"):
        command.main([f"--{name}"], standalone_mode=False)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_blocks": 0}, "`num_blocks` must be 1 to 2,147,483,647, got 0"),
        ({"warmup_steps": 10000}, r"`warmup_steps` 10,000 of 15 steps in all; .* e\.g\. 1$"),
        ({"resume_epoch": 1, "resume": "automatic"}, "`resume_epoch` and `resume`; give one of them"),
        ({"resume_epoch": 1, "init": "x.pth"}, "`resume_epoch` and `init`; `init` begins a new run, give one of them"),
        ({"json": True}, "`json` is for `plan`"),
        ({"fake_data": True, "diagnose": True}, "is for images that are read; leave it out with `fake_data`"),
        ({"att_dropout": 1.0}, "`att_dropout` must be 0 or more and below 1, got 1.0"),
        ({"num_classes": 2}, "`num_classes` is 2, but the data have"),
        (
            {"embed_dim": 65536, "num_blocks": 1000},
            r"of 51,\d{3},\d{3},\d{3},\d{3} parameters needs .* weights, gradients and AdamW's moments; the host has",
        ),
        ({"batch_size": 7, "accum_iter": 2}, "`batch_size` 7 cannot be shared by 1 devices x 2 parts"),
    ],
)
def test_flags_that_do_not_fit_the_data_or_each_other_are_refused(dataset, flags, message):
    with pytest.raises(UsageError, match=message):
        train(dataset, **flags)


@pytest.mark.filterwarnings("ignore:optax.global_norm:DeprecationWarning")
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_there_are_as_many_logits_as_the_data_have_classes(dataset, tmp_path, framework):
    """A run of 1,000 logits, the former default, goes on with the flag that the error names."""
    flags = {"data_path": dataset, "device": "cpu", **SMALL, "framework": framework, "output_dir": str(tmp_path)}
    assert open_training(TrainViT(**{**flags, "output_dir": ""})).description["num_classes"] == 3
    open_training(TrainViT(**flags, num_classes=1000)).run()
    flags |= {"max_steps": 4}
    with pytest.raises(UsageError, match=r"its run had .*`num_classes` 1000"):
        open_training(TrainViT(**flags)).resume("automatic")
    again = open_training(TrainViT(**flags, num_classes=1000))
    again.resume("automatic")
    assert (again.step, again.run()) == (3, 0)
