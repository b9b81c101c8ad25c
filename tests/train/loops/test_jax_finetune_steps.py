"""Fine-tuning and probing in JAX beside PyTorch, from the same weights and batches; kills and flags are a soak."""

import pytest

from tests.support.training import facts
from tests.support.training_jax import environment

KINDS = ("finetune", "probe")


@pytest.fixture(scope="module")
def found(dataset, tmp_path_factory) -> dict:
    """What the runs did."""
    folder = tmp_path_factory.mktemp("runs")
    return facts("tests.support.jax_finetuning", dataset, str(folder), **environment())


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_pytorch(found, kind):
    ours, theirs = found[f"{kind} jax"]["losses"], found[f"{kind} torch"]["losses"]
    assert len(ours) == 4
    assert ours == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_and_statistics_are_those_of_pytorch_by_the_same_names(found, kind):
    differences = found[f"{kind} tensors"]
    assert {"head.0.running_var", "head.1.weight"} <= differences.keys() or kind == "finetune"
    assert max(differences.values()) < 1e-5


def test_the_newest_checkpoint_of_a_folder_is_evaluated_in_a_file_and_by_orbax(found):
    for kind in ("file", "parts"):
        automatic, named = found[f"newest {kind}"]
        assert automatic == named
    assert found["newest file"] != found["newest parts"]


def test_a_checkpoint_by_orbax_is_exported(found):
    assert (found["exported"]["step"], found["exported"]["source"]) == (5, "checkpoint-000000005.orbax")
    assert len(found["exported"]["digest"]) == 16
    assert set(found["exported tensors"].values()) == {0.0}
