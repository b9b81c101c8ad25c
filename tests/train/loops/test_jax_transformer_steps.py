"""Runs of masked autoencoders in JAX beside PyTorch's, on two devices; others and longer ones are a soak."""

import pytest

from tests.support.training import facts
from tests.support.training_jax import environment


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
