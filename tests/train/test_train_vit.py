"""The entry: exact, resumable after any end, on any kind of data; on several XLA devices as on one."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dataprep.errors import FormatError, UsageError
from tests.support.on_use import on_use
from tests.support.training import TINY_VIT, flags_of, losses, start
from tests.support.training_fsdp import SMALL, TOLERANCE, held_by
from tests.support.training_jax import cluster, ended, environment
from train.checkpoints.encoder_weights import ClassifierConfig, open_classifier, read_weights
from train.export import export
from train.train_vit import TrainViT, command, open_training

TimmViT = on_use("timm.models.vision_transformer:VisionTransformer")
STEPS = 15
DROPOUT = {"pos_dropout": 0.1, "att_dropout": 0.1, "mlp_dropout": 0.1}


def train(folder: Path, *more: str, **flags: Any) -> dict[int, float]:
    """Losses of a run in this process."""
    values = {"device": "cpu", "ckpt_dir": folder, **SMALL, **flags}
    assert command.main([*flags_of(**values), *more], standalone_mode=False) == 0
    return losses(folder)


@pytest.fixture(scope="module")
def expected(dataset, tmp_path_factory) -> dict[int, float]:
    """Losses of an uninterrupted run."""
    found = train(tmp_path_factory.mktemp("whole"), data_path=dataset)
    assert list(found) == list(range(1, STEPS + 1))
    return found


def test_a_resumed_run_has_the_same_dropout(dataset, expected, tmp_path):
    whole = train(tmp_path / "whole", data_path=dataset, **DROPOUT)
    assert whole != expected
    for stop in (3, 9, 0):
        found = train(tmp_path / "stopped", data_path=dataset, max_steps=stop, resume="automatic", **DROPOUT)
    assert found == whole


def test_a_checkpoint_of_other_heads_is_refused_though_its_weights_have_the_same_shapes(dataset, tmp_path):
    train(tmp_path / "two", data_path=dataset, max_steps=1)
    saved = str(next((tmp_path / "two").glob("checkpoint-*")))
    for flag, folder in (("resume", "two"), ("init", "new")):
        with pytest.raises(UsageError, match="from another model: --num-heads was 2, is now 4; use the flags"):
            train(tmp_path / folder, data_path=dataset, num_heads=4, max_steps=2, **{flag: saved})


@pytest.fixture(scope="module")
def four_devices(dataset, tmp_path_factory) -> tuple[dict[str, Any], Path]:
    """What each of four devices holds after five steps, and the folder of the run."""
    folder = tmp_path_factory.mktemp("held")
    return held_by(4, dataset, folder), folder


@pytest.mark.parametrize("resumed", [("2",), pytest.param(("2", "1"), marks=pytest.mark.long)], ids=len)
def test_under_fsdp_losses_are_those_of_one_device_and_any_number_of_devices_resumes(
    dataset, expected, four_devices, tmp_path, resumed
):
    """Saved on four devices, by steps; resumed on two, in the soak on one, too, and here on one without FSDP."""
    _, four = four_devices
    assert losses(four) == pytest.approx({step: expected[step] for step in range(1, 6)}, abs=TOLERANCE)
    assert len(list(four.glob("checkpoint-*.json"))) == 3
    assert not list(four.glob("checkpoint-*.pth"))
    goes_on = flags_of(data_path=dataset, device="xla", **SMALL, max_steps=8, resume="automatic")
    for name in resumed:
        shutil.copytree(four, tmp_path / name)
    run_all({tmp_path / name: (name, goes_on) for name in resumed})
    for name in resumed:
        found = losses(tmp_path / name)
        assert found == pytest.approx({step: expected[step] for step in range(1, 9)}, abs=TOLERANCE), name
        suffix = "pth" if name == "1" else "json"
        assert list((tmp_path / name).glob(f"checkpoint-000000008-*.{suffix}"))
    back = train(tmp_path / "cpu", data_path=dataset, max_steps=8, resume=str(next(four.glob("checkpoint-*5-*.json"))))
    assert back == pytest.approx({step: expected[step] for step in range(6, 9)}, abs=TOLERANCE)


def test_each_of_four_devices_holds_a_quarter_of_the_weights_as_planned(four_devices):
    found, _ = four_devices
    devices = {f"CPU:{number}" for number in range(4)}
    planned, whole = found["planned"], found["whole"]
    assert found["weights"] == dict.fromkeys(devices, planned)
    assert found["gathered"] == ["tpu-w-é"]
    assert found["moments"] == dict.fromkeys(devices, 2 * planned)
    assert whole / 4 <= planned < 1.01 * whole / 4


def test_one_number_that_is_not_finite_on_one_device_is_found(four_devices):
    found, _ = four_devices
    at_first, weight, moment = found["not_finite"]
    assert (at_first, weight) == ([], ["model/blocks.0.attn.qkv.weight"])
    assert re.fullmatch(r"optimizer/\d+/exp_avg_sq", *moment)


def test_without_fsdp_every_device_holds_a_copy(four_devices):
    found, _ = four_devices
    assert (found["is_sharded"], found["checkpoints"]) == (False, "CheckpointFolder")


def test_parts_are_exported_as_the_whole_model_that_timm_takes(four_devices, tmp_path):
    _, folder = four_devices
    checkpoint = max(folder.glob("checkpoint-*.json"))
    done = export(str(checkpoint), str(tmp_path / "vit.safetensors"))
    assert (done.model, done.image_size, done.num_classes, done.step) == ("vit_32x1_patch8", 16, 3, 5)
    found, whole = load_file(tmp_path / "vit.safetensors"), torch.load(folder / "whole.pth", weights_only=True)
    assert found.keys() == whole.keys()
    assert [name for name in whole if not torch.equal(found[name], whole[name])] == []
    theirs = TimmViT(
        img_size=16, patch_size=8, embed_dim=32, depth=1, num_heads=2, num_classes=3,
        global_pool="avg", class_token=False, fc_norm=False,
    )  # fmt: skip
    theirs.load_state_dict(found)
    config = ClassifierConfig(image_size=16, num_classes=3, pool="average")
    with pytest.raises(FormatError, match="1 blocks of width 32 are not a known encoder"):
        open_classifier(None, read_weights(str(checkpoint)), config)


def run_all(runs: dict[Path, tuple[str, list[str]]]) -> None:
    """Side by side, each in a process of its own on its number of devices."""
    running = [
        start("train.train_vit", *arguments, "--ckpt_dir", str(folder), CPU_NUM_DEVICES=devices)
        for folder, (devices, arguments) in runs.items()
    ]
    for process in running:
        with process:
            _, errors = process.communicate(timeout=500)
        assert process.returncode == 0, errors[-3000:]


def in_jax(folder, data, processes=1, **flags):
    """Train in JAX, in one process or in several together; what the first one says."""
    given = flags_of(ckpt_dir=folder, data_path=data, framework="jax", device="cpu", **{**SMALL, **flags})
    variables = {**environment(), "PJRT_DEVICE": ""}
    started = [start("train.train_vit", *given, **variables, **each) for each in cluster(processes)]
    first, *_ = [ended(each) for each in started]
    return first


@pytest.mark.long
def test_a_run_goes_on_with_another_number_of_jax_processes_and_what_two_wrote_is_exported(dataset, tmp_path):
    folder = tmp_path / "run"
    in_jax(folder, dataset, 2, max_steps=2)
    (by_two,) = folder.glob("checkpoint-000000002.orbax")
    exported = export(str(by_two), str(tmp_path / "vit.safetensors"))
    done = ": 16 of the 60 images of epoch 0 are done, 44 follow"
    assert f"resumed after step 2, from {by_two}{done}" in in_jax(folder, dataset, max_steps=4, resume="automatic")
    (by_one,) = folder.glob("checkpoint-000000004-*.npz")
    assert f"resumed after step 4, from {by_one}" in in_jax(folder, dataset, 2, max_steps=6, resume="automatic")
    in_jax(tmp_path / "whole", dataset, max_steps=6)
    assert losses(folder) == pytest.approx(losses(tmp_path / "whole"), abs=1e-5)
    assert (exported.step, exported.model, exported.num_heads) == (2, "vit_32x1_patch8", SMALL["num_heads"])
    assert all(torch.isfinite(each).all() for each in read_weights(exported.output).tensors.values())


SHORT: dict[str, Any] = TINY_VIT | {"epochs": 2, "warmup_steps": 3, "log_interval_steps": 1, "num_workers": 2}
SHORT["max_steps"] = 3


def run(dataset, **flags: Any) -> int:
    """In this process; the exit code."""
    return open_training(TrainViT(**{"data_path": dataset, "device": "cpu", "output_dir": "", **SHORT, **flags})).run()


def test_blocks_are_recomputed_for_the_gradient_unless_no_grad_ckpt_is_given(dataset, tmp_path):
    calls = {}
    for kept in (False, True):
        training = open_training(
            TrainViT(data_path=dataset, device="cpu", **SHORT, no_grad_ckpt=kept, output_dir=str(tmp_path / str(kept)))
        )
        counted = calls.setdefault(kept, [])
        training.backend.model.blocks[0].attn.register_forward_hook(lambda *_, counted=counted: counted.append(1))
        training.run()
    assert [len(calls[kept]) for kept in (False, True)] == [2 * SHORT["max_steps"], SHORT["max_steps"]]
    assert losses(tmp_path / "False") == losses(tmp_path / "True")


def test_checkpoints_and_evaluations_come_after_every_so_many_epochs(dataset, tmp_path):
    flags = {"epochs": 5, "max_steps": 0, "ckpt_interval": 2, "test_epoch_interval": 3, "keep_checkpoints": 9}
    run(dataset, output_dir=str(tmp_path), **flags)
    steps = sorted(int(path.name[11:20]) for path in tmp_path.glob("checkpoint-*.pth"))
    assert steps == [15, 30, 37]  # after 2, 4, 5 epochs of 60 images in batches of 8
    lines = [json.loads(line) for line in (tmp_path / "log.txt").read_text().splitlines()]
    assert [line["step"] for line in lines if "val_loss" in line] == [22, 37]  # after 3 and 5 epochs


def test_resume_epoch_takes_the_checkpoint_after_that_epoch(dataset, tmp_path, capsys):
    flags = {"epochs": 2, "max_steps": 0, "ckpt_interval": 1, "log_interval_steps": 1, "device": "cpu"}
    run(dataset, output_dir=str(tmp_path), **flags)
    capsys.readouterr()
    names = {"epochs": "num_epochs", "log_interval_steps": "log_step_interval", "ckpt_interval": "ckpt_epoch_interval"}
    values = {names.get(name, name): value for name, value in {**SHORT, **flags}.items()}
    arguments = [part for name, value in values.items() for part in (f"--{name}", str(value))]
    arguments += ["--data_dir", dataset, "--ckpt_dir", str(tmp_path)]
    assert command.main([*arguments, "--resume_epoch", "1"], standalone_mode=False) == 0
    assert "resumed after step 7" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"--resume-epoch 9: .* has no checkpoint after step 67"):
        command.main([*arguments, "--resume_epoch", "9"], standalone_mode=False)


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
        run(dataset, **flags)


@pytest.mark.filterwarnings("ignore:optax.global_norm:DeprecationWarning")
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_there_are_as_many_logits_as_the_data_have_classes(dataset, tmp_path, framework):
    """A run of 1,000 logits, the former default, goes on with the flag that the error names."""
    flags = {"data_path": dataset, "device": "cpu", **SHORT, "framework": framework, "output_dir": str(tmp_path)}
    assert open_training(TrainViT(**{**flags, "output_dir": ""})).description["num_classes"] == 3
    open_training(TrainViT(**flags, num_classes=1000)).run()
    flags |= {"max_steps": 4}
    with pytest.raises(UsageError, match=r"its run had .*`num_classes` 1000"):
        open_training(TrainViT(**flags)).resume("automatic")
    again = open_training(TrainViT(**flags, num_classes=1000))
    again.resume("automatic")
    assert (again.step, again.run()) == (3, 0)
