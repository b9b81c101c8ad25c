"""Runs of masked autoencoders in JAX beside PyTorch's, on two devices; others and longer ones are a soak."""

import numpy as np
import pytest

from tests.support.training import facts
from tests.support.training_jax import environment
from train.loops.jax_transformer_steps import layer_scales


@pytest.fixture(scope="module")
def found(dataset, tmp_path_factory) -> dict:
    """What the runs did; those in JAX continue PyTorch's first step."""
    folder = tmp_path_factory.mktemp("runs")
    variables = environment(devices=2)
    return facts("tests.support.jax_transformers", "runs", dataset, str(folder), **variables)


def losses(run: dict) -> dict[int, float]:
    assert "losses" in run, run
    return {int(step): loss for step, loss in run["losses"].items()}


def test_a_run_of_pytorch_continues_in_jax_with_the_same_losses(found):
    ours, theirs = losses(found["whole"]), losses(found["torch"])
    assert list(ours) == [2, 3, 4]
    assert ours == pytest.approx({step: theirs[step] for step in ours}, abs=1e-5)
    assert "note: --framework was torch, is now jax" in found["whole"]["said"]


def test_a_resumed_run_has_the_losses_of_a_whole_one(found):
    assert losses(found["parts"]) == losses(found["whole"])
    assert "resumed after step 2, from " in found["parts"]["said"]


@pytest.mark.parametrize("name", ["whole weights", "parts weights"])
def test_checkpoints_are_read_where_those_of_pytorch_are(found, name):
    assert found[name] == ["vit_micro_patch8", 32, 4, 30]


def test_pytorch_does_not_continue_a_run_of_jax(found):
    assert "a checkpoint of JAX; continue it with `framework` jax" in found["back"]["error"]


def test_a_samples_mask_is_the_same_for_any_number_of_hosts_of_a_mixture(found):
    assert found["other masks"] == 0


KINDS = ("finetune", "probe")


@pytest.fixture(scope="module")
def finetuned(dataset, tmp_path_factory) -> dict:
    """What the runs did."""
    folder = tmp_path_factory.mktemp("runs")
    return facts("tests.support.jax_finetuning", dataset, str(folder), **environment())


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_pytorch(finetuned, kind):
    ours, theirs = finetuned[f"{kind} jax"]["losses"], finetuned[f"{kind} torch"]["losses"]
    assert len(ours) == 4
    assert ours == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_and_statistics_are_those_of_pytorch_by_the_same_names(finetuned, kind):
    differences = finetuned[f"{kind} tensors"]
    assert {"head.0.running_var", "head.1.weight"} <= differences.keys() or kind == "finetune"
    assert max(differences.values()) < 1e-5


def test_the_newest_checkpoint_of_a_folder_is_evaluated_in_a_file_and_by_orbax(finetuned):
    for kind in ("file", "parts"):
        automatic, named = finetuned[f"newest {kind}"]
        assert automatic == named
    assert finetuned["newest file"] != finetuned["newest parts"]


def test_a_checkpoint_by_orbax_is_exported(finetuned):
    assert (finetuned["exported"]["step"], finetuned["exported"]["source"]) == (5, "checkpoint-000000005.orbax")
    assert len(finetuned["exported"]["digest"]) == 16
    assert set(finetuned["exported tensors"].values()) == {0.0}


PARAMS = {
    "cls_token": np.zeros((1, 1, 4)),
    "patch_embed": {"proj": {"bias": np.zeros(4)}},
    "blocks": {"mlp": {"fc1": {"kernel": np.zeros((3, 4, 8)), "bias": np.zeros((3, 8))}}},
    "fc_norm": {"scale": np.zeros(4)},
    "head": {"kernel": np.zeros((4, 5))},
}


def test_every_layer_learns_slower_than_the_next():
    found = layer_scales(PARAMS, 0.5)
    assert found["cls_token"] == found["patch_embed"]["proj"]["bias"] == 1 / 16
    assert found["blocks"]["mlp"]["fc1"]["kernel"].tolist() == [[[1 / 8]], [[1 / 4]], [[1 / 2]]]
    assert found["blocks"]["mlp"]["fc1"]["bias"].shape == (3, 1)
    assert found["fc_norm"]["scale"] == found["head"]["kernel"] == 1


def test_without_a_decay_all_layers_learn_alike():
    found = layer_scales(PARAMS, None)
    assert found["cls_token"] == found["blocks"]["mlp"]["fc1"]["kernel"] == pytest.approx(1)
