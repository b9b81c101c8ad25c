"""Transformers in JAX: with the same weights they have the outputs of PyTorch's. In a process of JAX's own."""

import pytest

from tests.support.training import facts


@pytest.fixture(scope="module")
def found() -> dict:
    return facts("tests.support.jax_transformers", "parity", JAX_PLATFORMS="cpu")


@pytest.mark.parametrize("name", ["coarse", "token", "mixed"])
def test_outputs_are_those_of_pytorch(found, name):
    differences = {kind: each for kind, each in found[name].items() if kind != "weights"}
    assert differences
    assert max(differences.values()) < 2e-5, differences


@pytest.mark.parametrize("name", ["coarse", "token"])
def test_weights_that_went_to_jax_and_back_are_the_same(found, name):
    assert found[name]["weights"] == 0


def test_a_gradient_keeps_results_of_dense_layers_alone(found):
    memory = found["memory"]
    assert memory["nothing"] < memory["dense"] < 0.5 * memory["everything"], memory
