"""ResNets in JAX; their numbers of parameters, the test of the entry shows."""

import json

import pytest

from tests.support.training import start


@pytest.fixture(scope="module")
def found() -> dict:
    with start("tests.support.jax_networks", "networks", JAX_PLATFORMS="cpu") as process:
        output, errors = process.communicate(timeout=800)
    assert process.returncode == 0, errors[-3000:]
    return json.loads(output.splitlines()[-1])


def test_logits_are_float32_whatever_the_network_computes_in(found):
    assert set(map(tuple, found["shapes"].values())) == {(2, 3, "float32")}


def test_the_last_normalisation_of_a_new_block_is_zero(found):
    assert found["identity"]
