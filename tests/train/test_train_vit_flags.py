"""Every flag does something: another loss, another learning rate, other weights, other files; or is refused."""

import dataclasses
import json
from typing import Any

import pytest

from dataprep.errors import UsageError
from tests.support.training import TINY_VIT, losses, trace_of
from train.train_vit import REFUSED, Flags, command, open_training

SMALL: dict[str, Any] = {
    **TINY_VIT,
    "epochs": 2,
    "warmup_steps": 3,
    "log_interval_steps": 1,
    "num_workers": 2,
    "max_steps": 3,
}
PACKS = {"pack_tokens": 32, "pack_images": 4}
CHANGES: dict[str, dict[str, Any]] = {
    "min_crop": {"min_crop": 0.9},
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
    "epochs": {"epochs": 3},
    "max_steps": {"max_steps": 2},
    "lr": {"lr": 1e-2},
    "weight_decay": {"weight_decay": 5.0},
    "clip_grad_norm": {"clip_grad_norm": 1e-3},
    "warmup_steps": {"warmup_steps": 2},
    "precision": {"precision": "bfloat16"},
    "seed": {"seed": 1},
    "ckpt_interval_steps": {"ckpt_interval_steps": 1},
    "ckpt_interval_minutes": {"ckpt_interval_minutes": 1e-9},
    "keep_checkpoints": {"ckpt_interval_steps": 1, "keep_checkpoints": 2},
    "log_interval_steps": {"log_interval_steps": 2},
    "profile_steps": {"profile_steps": "1:2"},
    "pack_tokens": {**PACKS, "pack_tokens": 40},
    "pack_images": {**PACKS, "pack_images": 2},
    "pack_min_tokens": {**PACKS, "pack_min_tokens": 7},
    "pack_max_tokens": {**PACKS, "pack_max_tokens": 11},
    "pack_positions": {**PACKS, "pack_positions": "absolute"},
}
AGAINST = {
    "keep_checkpoints": {"ckpt_interval_steps": 1},
    "epochs": {"max_steps": 6},
    **dict.fromkeys(("pack_tokens", "pack_images", "pack_min_tokens", "pack_max_tokens", "pack_positions"), PACKS),
}
"""What the change is compared with, where that is not a plain run."""
TOGETHER = {"epochs": {"max_steps": 6}}
HERE = {"no_grad_ckpt", "ckpt_interval", "test_epoch_interval", "resume_epoch", "num_workers"} | {
    "plan", "plan_devices", "json",
}  # fmt: skip
"""Shown below, or by the other tests of this entry."""
ELSEWHERE = {"data_path", "output_dir", "log_dir", "index_dir", "init", "resume", "region_policy"} | {
    "run_without_fsdp", "pin_mem", "device", "use_xla", "diagnose", "metrics_port", "metrics_address", "wandb",
    "framework", "compile", "tensor_parallel", "ema_decay", "no_scan", "orbax", "on_error",
}  # fmt: skip


def train(dataset, **flags: Any) -> int:
    """In this process; the exit code."""
    return open_training(Flags(**{"data_path": dataset, "device": "cpu", "output_dir": "", **SMALL, **flags})).run()


def traces(dataset, folder, **flags: Any) -> dict[str, Any]:
    """All that three steps leave behind."""
    train(dataset, output_dir=str(folder), **flags)
    return trace_of(folder)


@pytest.fixture(scope="module")
def plain():
    """Traces of a plain run, made once."""
    return {}


@pytest.mark.parametrize("name", CHANGES)
def test_each_flag_changes_losses_weights_or_files(dataset, plain, tmp_path, name):
    against = json.dumps(AGAINST.get(name, {}))
    if against not in plain:
        plain[against] = traces(dataset, tmp_path / "plain", **json.loads(against))
    assert traces(dataset, tmp_path / "changed", **CHANGES[name], **TOGETHER.get(name, {})) != plain[against]


def test_the_same_flags_change_nothing(dataset, tmp_path):
    flags = {"pos_dropout": 0.1, "att_dropout": 0.1, "mlp_dropout": 0.1}
    assert traces(dataset, tmp_path / "a", **flags) == traces(dataset, tmp_path / "b", **flags)


def test_every_flag_has_a_test():
    assert {each.name for each in dataclasses.fields(Flags)} == CHANGES.keys() | HERE | ELSEWHERE


def test_blocks_are_recomputed_for_the_gradient_unless_no_grad_ckpt_is_given(dataset, tmp_path):
    calls = {}
    for kept in (False, True):
        training = open_training(
            Flags(data_path=dataset, device="cpu", **SMALL, no_grad_ckpt=kept, output_dir=str(tmp_path / str(kept)))
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
        ({"fake_data": True, "diagnose": True}, "`fake_data` has none"),
        ({"att_dropout": 1.0}, "`att_dropout` must be 0 or more and below 1, got 1.0"),
        ({"num_classes": 2}, "`num_classes` 2, the data have"),
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


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_where_only_a_default_says_it_the_rate_rises_for_a_tenth_of_the_run(dataset, capsys, framework):
    flags = {**SMALL, "epochs": 5, "framework": framework}
    del flags["warmup_steps"]
    training = open_training(Flags(data_path=dataset, device="cpu", output_dir="", **flags))
    note = "note: the learning rate rises for 3 of 37 updates; the default of --warmup-steps is 10,000\n"
    assert capsys.readouterr().err.count(note) == 1
    assert training.schedule.warmup_epochs == pytest.approx(3 * 8 / 60)
    assert training.description["warmup_steps"] == 3


@pytest.mark.filterwarnings("ignore:optax.global_norm:DeprecationWarning")
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_there_are_as_many_logits_as_the_data_have_classes(dataset, tmp_path, framework):
    """A run of 1,000 logits, the former default, goes on with the flag that the error names."""
    flags = {"data_path": dataset, "device": "cpu", **SMALL, "framework": framework, "output_dir": str(tmp_path)}
    assert open_training(Flags(**{**flags, "output_dir": ""})).description["num_classes"] == 3
    open_training(Flags(**flags, num_classes=1000)).run()
    flags |= {"max_steps": 4}
    with pytest.raises(UsageError, match=r"its run had .*`num_classes` 1000"):
        open_training(Flags(**flags)).resume("automatic")
    again = open_training(Flags(**flags, num_classes=1000))
    again.resume("automatic")
    assert (again.step, again.run()) == (3, 0)


def test_num_workers_sets_the_decoding_threads(dataset):
    flags = Flags(data_path=dataset, device="cpu", output_dir="", **{**SMALL, "num_workers": 3})
    assert open_training(flags).loader.config.num_threads == 3
