"""The JAX backend, in a process of its own; that it trains, stops and resumes, the tests of its entry show."""

import math

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh

from dataprep.errors import UsageError
from tests.support.training_jax import config_of
from train.checkpoints.checkpoint import named_leaves
from train.loops.jax import check_shapes, shardings_of


@pytest.fixture
def found(jax_networks):
    return jax_networks["backend"]


def test_a_restored_state_trains_on_with_the_same_losses(found):
    backend = found
    assert backend["after"] == backend["again"]
    assert backend["after"] != backend["before"]
    assert backend["after"][-1] < backend["before"][0]


def test_a_measured_step_changes_no_weight(found):
    assert found["rate_0"]


def test_without_a_validation_loader_nothing_is_evaluated(found):
    assert found["evaluated"] == {}


def test_a_single_process_is_the_first_and_handles_signals_itself(found):
    assert found["facts"] == ["cpu", True, 2, True]
    assert found["stops"] == [False, True]


def test_one_number_of_any_saved_array_that_is_not_finite_is_found(found):
    answers = found["not finite"]
    assert answers.pop("") == []
    assert len(answers) == 4
    for changed, names in answers.items():
        name, _, number = changed.rpartition(" ")
        assert names == ([] if number == "3e+38" else [name])


SHAPES = {
    "params": {
        "cls_token": (1, 1, 64),
        "patch_embed": {"proj": {"kernel": (8, 8, 3, 64), "bias": (64,)}},
        "blocks": {
            "norm1": {"scale": (4, 64)},
            "attn": {"qkv": {"kernel": (4, 64, 3, 2, 32), "bias": (4, 3, 2, 32)}, "proj": {"kernel": (4, 2, 32, 64)}},
            "mlp": {"fc1": {"kernel": (4, 64, 256), "bias": (4, 256)}, "fc2": {"kernel": (4, 256, 64)}},
        },
        "head": {"kernel": (63, 5)},
    }
}


def specs(*, data: int, model: int, fsdp: bool) -> dict[str, tuple]:
    tree = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, "float32"), SHAPES, is_leaf=lambda each: isinstance(each, tuple)
    )
    found = shardings_of(tree, AbstractMesh((data, model), ("data", "model")), fsdp=fsdp)
    return {name.removeprefix("params/"): tuple(each.spec) for name, each in named_leaves(found)}


def test_fsdp_cuts_the_longest_dimension_but_never_the_depth():
    assert specs(data=4, model=1, fsdp=True) == {
        "blocks/attn/proj/kernel": (None, None, None, "data"),
        "blocks/attn/qkv/bias": (None, None, None, "data"),
        "blocks/attn/qkv/kernel": (None, "data", None, None, None),
        "blocks/mlp/fc1/bias": (None, "data"),
        "blocks/mlp/fc1/kernel": (None, None, "data"),
        "blocks/mlp/fc2/kernel": (None, "data", None),
        "blocks/norm1/scale": (None, "data"),
        "cls_token": (None, None, "data"),
        "head/kernel": (None, None),  # neither 63 nor 5 can be shared by 4
        "patch_embed/proj/bias": ("data",),
        "patch_embed/proj/kernel": (None, None, None, "data"),
    }


def test_tensor_parallelism_cuts_heads_and_the_hidden_layer():
    found = specs(data=4, model=2, fsdp=False)
    assert {name: spec for name, spec in found.items() if any(spec)} == {
        "blocks/attn/proj/kernel": (None, "model", None, None),
        "blocks/attn/qkv/bias": (None, None, "model", None),
        "blocks/attn/qkv/kernel": (None, None, None, "model", None),
        "blocks/mlp/fc1/bias": (None, "model"),
        "blocks/mlp/fc1/kernel": (None, None, "model"),
        "blocks/mlp/fc2/kernel": (None, "model", None),
    }


def test_both_cut_different_dimensions():
    found = specs(data=4, model=2, fsdp=True)
    assert found["blocks/mlp/fc1/kernel"] == (None, "data", "model")
    assert found["blocks/attn/qkv/kernel"] == (None, "data", None, "model", None)


def test_heads_that_cannot_be_shared_are_copied():
    assert specs(data=1, model=4, fsdp=False)["blocks/attn/qkv/kernel"] == (None,) * 5


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(3)}, r"b: absent, in this model \(2,\)"),
        ({"a": np.zeros(4), "b": np.zeros(2)}, r"a: \(4,\), in this model \(3,\)"),
        ({"a": np.zeros(3), "b": np.zeros(2), "c": np.zeros(1)}, r"c: \(1,\), in this model absent"),
    ],
)
def test_arrays_of_another_model_are_named(arrays, message):
    with pytest.raises(UsageError, match=message):
        check_shapes({"a": np.zeros(3), "b": np.zeros(2)}, arrays)


def test_an_update_is_sgd_with_nesterovs_correction_and_vectors_do_not_decay(jax_networks):
    found = jax_networks["updates"]
    assert len(found["names"]) == 11
    for name, difference, change in zip(found["names"], found["differences"], found["changes"], strict=True):
        assert change > 1e-4, f"{name}: a change too small to be judged"
        assert difference < 1e-5, name


def test_the_learning_rate_of_every_update_follows_the_closed_formula():
    keys = {"batch_size": 8, "learning_rate": 0.4, "warmup_epochs": 1.0, "num_epochs": 3}
    schedule = config_of(**keys).schedule()
    for step in range(22):
        epoch = step * 8 / 60
        peak = 0.4 * 8 / 256
        expected = peak * epoch if epoch < 1 else peak * math.cos(math.pi * (epoch - 1) / 4) ** 2
        assert math.isclose(schedule.at(epoch), expected, rel_tol=1e-12, abs_tol=0 if step == 0 else 1e-15)
