"""What a run goes on with: all of its own state, and nothing that is not one; every refusal is one line."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import dataprep
from dataprep.errors import DataprepError, UsageError
from train import pretrain_mae, train_vit
from train.checkpoints.files import load_file
from train.loops.loop import Training
from train.models.registry import create_model
from train.pretrain_mae import PretrainMAE
from train.train_vit import TrainViT

SMALL = {
    "model": "mae_vit_micro_patch8", "input_size": 16, "effective_batch_size": 8, "epochs": 3, "warmup_epochs": 0,
    "num_workers": 1, "log_interval_steps": 100,
}  # fmt: skip


def opened(data: str, folder: Path, **flags: Any) -> Training:
    return pretrain_mae.open_training(
        PretrainMAE(**{"data_path": data, "device": "cpu", "output_dir": str(folder), **SMALL, **flags})
    )


@pytest.fixture(scope="module")
def checkpoint(dataset, tmp_path_factory) -> Path:
    """After two updates."""
    folder = tmp_path_factory.mktemp("run")
    assert opened(dataset, folder, max_steps=2).run() == 0
    return next(folder.glob("checkpoint-*.pth"))


@pytest.fixture
def refusal(dataset, tmp_path):
    """What `resume` says of a file."""

    def say(path: object, **flags: Any) -> str:
        with pytest.raises(DataprepError) as caught:
            opened(dataset, tmp_path / "new", **flags).resume(str(path))
        text = str(caught.value)
        assert "\n" not in text
        assert "weights_only" not in text
        return text

    return say


def altered(checkpoint: Path, folder: Path, **entries: Any) -> Path:
    """A copy with other entries; None takes one out. It is not named by its digest."""
    state = load_file(checkpoint, None)
    kept = {name: value for name, value in {**state, **entries}.items() if value is not None}
    torch.save(kept, folder / "altered.pth")
    return folder / "altered.pth"


def test_resuming_restores_moments_generators_position_and_step(dataset, checkpoint, tmp_path):
    saved = load_file(checkpoint, None)
    training = opened(dataset, tmp_path)
    torch.manual_seed(99)
    training.resume(str(checkpoint))
    assert torch.equal(torch.get_rng_state(), saved["random"]["cpu"])
    assert (training.step, training.loader.state_dict()["position"]) == (2, 16)
    for name, weight in training.backend.model.state_dict().items():
        assert torch.equal(weight, saved["model"][name])
    found = training.backend.optimizer.state_dict()["state"]
    for index, moments in saved["optimizer"]["state"].items():
        assert {name: float(each.abs().sum()) for name, each in moments.items()} == {
            name: float(each.abs().sum()) for name, each in found[index].items()
        }
        assert int(found[index]["step"]) == 2


def test_a_run_goes_on_through_another_view_of_its_dataset(dataset, checkpoint, tmp_path, capsys):
    data = shutil.copytree(dataset, tmp_path / "data")
    view = dataprep.select(data, name="some", sample=0.7)
    training = opened(view.url, tmp_path / "new")
    training.resume(str(checkpoint))
    told = capsys.readouterr().err
    assert f"{data}@some: continued from revision 1 to view some of revision 1: " in told
    before, first = load_file(checkpoint, None)["loader"], training.loader.order.first_position(1)
    assert before["position"] < first < before["position"] + view.samples["train"]
    assert f"{first:,} images of epoch 0 are done, {first - before['position']:,} follow" in told
    assert training.run() == 0
    (change,) = load_file(max((tmp_path / "new").glob("checkpoint-*.pth")), None)["loader"]["earlier"]
    assert (change["stop"], change["start"], change["epoch"]) == (before["position"], first, 1)


def test_after_a_resume_decay_and_betas_are_those_of_the_command_line(dataset, checkpoint, tmp_path, capsys):
    training = opened(dataset, tmp_path, weight_decay=0.2)
    training.resume(str(checkpoint))
    assert [group["weight_decay"] for group in training.backend.optimizer.param_groups] == [0.2, 0.0]
    assert "note: --weight-decay was 0.05, is now 0.2" in capsys.readouterr().err


def test_resuming_from_published_weights_is_refused_with_a_hint_to_finetune(refusal, tmp_path):
    path = tmp_path / "mae_pretrain.pth"
    weights = create_model("mae_vit_micro_patch8", image_size=16).state_dict()
    for state in (
        {"model": weights},
        weights,
        {"model": weights, "optimizer": {}, "epoch": 3, "args": argparse.Namespace(lr=None)},
    ):
        torch.save(state, path)
        assert refusal(path) == (
            f"{path}: weights ({len(weights)} tensors), without the state of a run of this program; `resume` "
            "and `init` take checkpoints of a run; `dataprep-finetune-mae --finetune` starts from such weights"
        )
    torch.save({"fc.weight": torch.zeros(2)}, path)
    assert refusal(path).endswith("weights (1 tensors), without the state of a run of this program; `resume` and "
                                  "`init` need a checkpoint that a run saved")  # fmt: skip
    torch.save({"lr": 1}, path)
    assert "no weights among its 1 entries" in refusal(path)


def test_a_checkpoint_of_another_size_or_entry_is_refused_by_name_and_shape(dataset, refusal, checkpoint, tmp_path):
    assert refusal(checkpoint, input_size=32, effective_batch_size=4) == (
        f"{checkpoint}: from another model: pos_embed is 1 x 5 x 64, in this model 1 x 17 x 64; its run had "
        "`effective_batch_size` 8, `input_size` 16, `lr` 3.125e-05; use the flags that it was trained with"
    )
    assert "blocks.0.attn.q_bias is only in this model" in refusal(checkpoint, no_k_bias_in_vit=True)
    flags = {"image_size": 16, "patch_size": 8, "embed_dim": 16, "num_heads": 2, "num_blocks": 1, "batch_size": 8}
    vit = train_vit.open_training(
        TrainViT(data_path=dataset, device="cpu", output_dir=str(tmp_path), epochs=2, warmup_steps=0, **flags)
    )
    with pytest.raises(UsageError, match=r"from another model: blocks\.1\.\S+ is only in the file"):
        vit.resume(str(checkpoint))


def test_missing_or_wrong_entries_of_a_checkpoint_are_named(refusal, checkpoint, tmp_path):
    state = load_file(checkpoint, None)
    other = {**state["optimizer"], "param_groups": state["optimizer"]["param_groups"][:1]}
    moments = {**state["optimizer"], "state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(3)}}}
    for optimizer in (other, moments, {}, [], 5):
        assert "from another optimiser (" in refusal(altered(checkpoint, tmp_path, optimizer=optimizer))
    for entries in ({"random": {"cpu": 3}}, {"random": {}}, {"random": 3}, {"loader": 3}, {"step": "x"}):
        assert "cannot restore the data position or the random state (" in refusal(
            altered(checkpoint, tmp_path, **entries)
        )
    assert "state of version None" in refusal(altered(checkpoint, tmp_path, loader={}))
    assert "an int, expected tensors by their names" in refusal(altered(checkpoint, tmp_path, model=3))


def test_resuming_from_another_file_names_what_the_file_holds(refusal, checkpoint, tmp_path):
    path = tmp_path / "x.pth"
    assert refusal(tmp_path).startswith(f"{tmp_path}: a folder, expected a file, e.g. {tmp_path}/checkpoint-")
    assert refusal(path) == f"{path}: no checkpoint found; give the path or URL of one"
    whole = checkpoint.read_bytes()
    for content in (b"", b"hello", whole[:5000], whole[5000:]):
        path.write_bytes(content)
        assert refusal(path) == (
            f"{path}: {len(content):,} bytes, not a state that torch reads: cut short, damaged, or another kind of "
            "file; expected a .pth checkpoint, an archive as torch.save writes it; convert a trusted file of torch "
            "before 1.6 by loading and saving it"
        )
    torch.save([1], path)
    assert refusal(path) == f"{path}: holds a list, expected tensors by their names"
