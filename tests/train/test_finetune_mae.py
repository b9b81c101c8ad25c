"""Fine-tuning and probing: exact, resumable, the same however the batch is cut; on XLA in processes of their own."""

import json
from pathlib import Path

import pytest
import torch

from dataprep.dataset.manifest import read_manifest
from dataprep.errors import UsageError
from dataprep.storage import open_storage
from tests.support.finetuning import PROBE, SMALL, finetune
from tests.support.forked_transforms import forked_transforms  # noqa: F401
from tests.support.training import log_lines, losses
from train.export import export
from train.finetune_mae import REFUSED, command, open_training, recipe_flags
from train.models.registry import create_model

pytestmark = pytest.mark.usefixtures("forked_transforms")
STEPS = 22


@pytest.fixture(scope="module")
def expected(dataset, tmp_path_factory):
    """Losses of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    assert finetune(dataset, output_dir=str(folder), **SMALL) == 0
    found = losses(folder)
    assert list(found) == list(range(1, STEPS + 1))
    return found


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> str:
    """Weights of a masked autoencoder, as its authors publish theirs."""
    path = tmp_path_factory.mktemp("pretrained") / "mae.pth"
    torch.manual_seed(3)
    torch.save({"model": create_model("mae_vit_micro_patch8", image_size=64).state_dict()}, path)
    return str(path)


def newest(folder: object) -> str:
    return str(sorted(Path(str(folder)).glob("checkpoint-*.pth"))[-1])


def evaluations(folder: object) -> list[dict]:
    return [line for line in map(json.loads, log_lines(folder)) if "val_accuracy" in line]


def test_two_runs_have_the_same_losses_and_another_seed_has_others(dataset, expected, tmp_path):
    assert finetune(dataset, output_dir=str(tmp_path / "same"), **SMALL, max_steps=9) == 0
    assert losses(tmp_path / "same") == {step: expected[step] for step in range(1, 10)}
    finetune(dataset, output_dir=str(tmp_path / "other"), **SMALL, seed=1, max_steps=2)
    assert losses(tmp_path / "other")[1] != expected[1]


def test_the_export_of_a_run_names_the_classes_of_its_data(dataset, tmp_path):
    finetune(dataset, output_dir=str(tmp_path), **SMALL, max_steps=1)
    classes = list(read_manifest(open_storage(dataset)).classes)
    done = export(newest(tmp_path), str(tmp_path / "tuned.safetensors"))
    assert (done.num_classes, done.classes) == (len(classes), classes)


def test_all_layers_of_a_pretrained_model_learn_and_those_nearest_to_the_pixels_least(dataset, pretrained, tmp_path):
    flags = {**SMALL, "finetune": pretrained, "layer_decay": 0.5, "blr": 1e-2, "weight_decay": 0.0}
    training = open_training(recipe_flags(data_path=dataset, device="cpu", output_dir=str(tmp_path), **flags))
    before = {name: each.clone() for name, each in training.backend.model.state_dict().items()}
    assert training.run() == 0
    after = training.backend.model.state_dict()
    changes = [
        float((after[name] - before[name]).abs().max())
        for name in ("patch_embed.proj.weight", "blocks.0.mlp.fc1.weight", "blocks.1.mlp.fc1.weight", "head.weight")
    ]
    assert 0 < changes[0] < changes[1] < changes[2] < changes[3]
    scales = {group["lr_scale"] for group in training.backend.optimizer.param_groups}
    assert scales == {1.0, 0.5, 0.25, 0.125}


def test_a_probe_trains_its_head_alone_and_is_exact(dataset, pretrained, tmp_path):
    flags = {**PROBE, "finetune": pretrained}
    training = open_training(recipe_flags(data_path=dataset, device="cpu", output_dir=str(tmp_path / "a"), **flags))
    before = {name: each.clone() for name, each in training.backend.model.state_dict().items()}
    assert training.run() == 0
    after = training.backend.model.state_dict()
    changed = {name for name, each in after.items() if not torch.equal(each, before[name])}
    assert changed == {f"head.{name}" for name in ("0.running_mean", "0.running_var", "0.num_batches_tracked")} | {
        "head.1.weight", "head.1.bias",
    }  # fmt: skip
    for stop in (4, 0):
        finetune(dataset, output_dir=str(tmp_path / "b"), **flags, max_steps=stop, resume="automatic")
    assert losses(tmp_path / "b") == losses(tmp_path / "a")
    assert evaluations(tmp_path / "b") == evaluations(tmp_path / "a")


@pytest.mark.parametrize("probe", [False, True])
def test_a_run_says_at_its_start_which_of_its_first_weights_are_from_where(
    dataset, pretrained, tmp_path, capsys, probe
):
    kind = {"linear_probe": True} if probe else {}
    shared = {"data_path": dataset, "device": "cpu", "output_dir": str(tmp_path), "effective_batch_size": 8}
    training = open_training(recipe_flags(**shared, **kind, finetune=pretrained))
    own, theirs = training.backend.model.state_dict(), torch.load(pretrained)["model"]
    taken = [name for name, each in own.items() if name in theirs and torch.equal(each, theirs[name])]
    assert {name.split(".")[0] for name in own.keys() - taken} == ({"head"} if probe else {"head", "fc_norm"})
    new = "head" if probe else "fc_norm, head"
    classes = training.backend.model.config.num_classes
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"vit_micro_patch8, images of 64 pixels, {classes:,} classes; {len(taken)} of {len(own)} tensors are from "
        f"{pretrained}, the rest ({new}) is new"
    )


@pytest.mark.parametrize("probe", [False, True])
def test_images_have_the_side_of_the_weights_unless_another_is_asked_for(dataset, pretrained, tmp_path, probe):
    kind = {"linear_probe": True} if probe else {}
    for side, flags in ((64, {"finetune": pretrained}), (32, {"finetune": pretrained, "input_size": 32})):
        values = {"data_path": dataset, "device": "cpu", "effective_batch_size": 8, **kind, **flags}
        training = open_training(recipe_flags(**values))
        validation = training.backend.task.validation
        sides = {training.loader.config.image_size, validation.config.image_size}
        assert (sides, training.backend.model.config.image_size) == ({side}, side)
        assert training.description["input_size"] == side


def test_an_evaluation_has_the_side_of_its_checkpoint(dataset, tmp_path, capsys):
    finetune(dataset, output_dir=str(tmp_path), **SMALL, max_steps=1)
    flags = {"data_path": dataset, "device": "cpu", "effective_batch_size": 8, "eval": True}
    training = open_training(recipe_flags(**flags, resume=newest(tmp_path)))
    assert training.backend.task.validation.config.image_size == SMALL["input_size"]


def test_evaluation_alone_prints_the_numbers_of_the_log(dataset, pretrained, tmp_path, capsys):
    flags = {**PROBE, "finetune": pretrained, "output_dir": str(tmp_path)}
    finetune(dataset, **flags)
    capsys.readouterr()
    shared = ["--data_path", dataset, "--device", "cpu", "--input_size", "32", "--effective_batch_size", "4"]
    for resume in ("automatic", newest(tmp_path)):
        arguments = [*shared, "--output_dir", str(tmp_path), "--eval", "--dist_eval", "--linear_probe"]
        assert command.main([*arguments, "--resume", resume], standalone_mode=False) == 0
        found = json.loads(capsys.readouterr().out)
        last = evaluations(tmp_path)[-1]
        assert (found["accuracy"], found["images"]) == (last["val_accuracy"], last["val_images"])
        assert found["loss"] == pytest.approx(last["val_loss"], rel=1e-5)
    with pytest.raises(UsageError, match=r"from another model: fc_norm\.bias is only in this model"):
        command.main([*shared, "--eval", "--resume", newest(tmp_path)], standalone_mode=False)
    with pytest.raises(UsageError, match="no undamaged checkpoint to evaluate"):
        command.main(
            [*shared, "--output_dir", str(tmp_path / "none"), "--eval", "--resume", "automatic"], standalone_mode=False
        )


@pytest.mark.parametrize("name", REFUSED)
def test_flags_without_a_meaning_in_fine_tuning_are_refused_with_the_reason(name):
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}: (this program needs|each image is augmented)"):
        command.main(["--data_path", "x", f"--{name}"], standalone_mode=False)
