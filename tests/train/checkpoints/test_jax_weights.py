"""Weights between JAX and PyTorch: names and layouts. That outputs are the same, test_jax_transformers.py shows."""

import numpy as np
import pytest

from dataprep.errors import FormatError, UsageError
from train.checkpoints.files import ARRAYS
from train.checkpoints.jax_weights import (
    from_torch,
    moments_order,
    probe_state_from_torch,
    state_from_torch,
    to_torch,
    trained_weights,
)

SHAPES = {
    "cls_token": (1, 1, 4),
    "pos_embed": (1, 5, 4),
    "patch_embed/proj/kernel": (2, 2, 3, 4),
    "patch_embed/proj/bias": (4,),
    "blocks/norm1/scale": (3, 4),
    "blocks/attn/qkv/kernel": (3, 4, 3, 2, 2),
    "blocks/attn/qkv/bias": (3, 3, 2, 2),
    "blocks/attn/proj/kernel": (3, 2, 2, 4),
    "head/kernel": (4, 5),
}


@pytest.fixture
def params() -> dict:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def test_tensors_have_timms_names_and_shapes(params):
    found = {
        name: each.shape for name, each in to_torch(params).items() if not name.startswith(("blocks.1", "blocks.2"))
    }
    assert found == {
        "cls_token": (1, 1, 4),
        "pos_embed": (1, 5, 4),
        "patch_embed.proj.weight": (4, 3, 2, 2),
        "patch_embed.proj.bias": (4,),
        "blocks.0.norm1.weight": (4,),
        "blocks.0.attn.qkv.weight": (12, 4),
        "blocks.0.attn.qkv.bias": (12,),
        "blocks.0.attn.proj.weight": (4, 4),
        "head.weight": (5, 4),
    }


def test_weights_come_back_the_same(params):
    back = from_torch("x", to_torch(params), SHAPES)
    assert back.keys() == params.keys()
    assert all(np.array_equal(back[name], params[name]) for name in params)


def test_a_row_of_queries_is_that_of_its_head(params):
    weight = to_torch(params)["blocks.1.attn.qkv.weight"]
    assert np.array_equal(weight[3], params["blocks/attn/qkv/kernel"][1, :, 0, 1, 1])  # second head, second row
    assert np.array_equal(weight[4], params["blocks/attn/qkv/kernel"][1, :, 1, 0, 0])  # first row of keys


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head.weight": None}, "x: from another model: head.weight is only in this model"),
        ({"head.weight": np.zeros((4, 4))}, r"head.weight is \(4, 4\), in this model \(5, 4\)"),
        ({"fc_norm.weight": np.zeros(4)}, "x: from another model: this one has no fc_norm.weight; use the flags that"),
        ({"blocks.3.norm1.weight": np.zeros(4)}, "this one has no blocks.3.norm1.weight; use the flags"),
    ],
)
def test_weights_of_another_model_are_refused(params, change, message):
    tensors = {name: each for name, each in (to_torch(params) | change).items() if each is not None}
    with pytest.raises(UsageError, match=message):
        from_torch("x", tensors, SHAPES)


def test_moments_go_to_their_weights_whatever_the_groups(params):
    model = to_torch(params)
    vectors = [name for name in model if model[name].ndim == 1 or name in ("cls_token", "pos_embed")]
    ordered = [name for name in model if name not in vectors] + vectors
    moments = {
        index: {"step": 7.0, "exp_avg": model[name] + 1, "exp_avg_sq": model[name] ** 2}
        for index, name in enumerate(ordered)
    }
    state = {"model": model, "optimizer": {"state": moments}}
    found = state_from_torch("x", state, SHAPES)
    for name, each in params.items():
        assert np.array_equal(found[f"params/{name}"], each)
        assert np.array_equal(found[f"optimizer/mu/{name}"], each + 1)
        assert np.array_equal(found[f"optimizer/nu/{name}"], each**2)
    assert found["optimizer/count"] == 7
    del moments[0]
    with pytest.raises(FormatError, match="x: moments are invalid"):
        state_from_torch("x", state, SHAPES)


@pytest.mark.parametrize(
    ("weight_decay", "first", "last"),
    [
        (0.05, ["cls_token", "pos_embed", "patch_embed.proj.bias", "patch_embed.proj.weight"], "head.weight"),
        (0.0, ["cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"], "head.weight"),
    ],
)
def test_moments_of_fine_tuning_are_ordered_by_layers_and_then_by_decay(params, weight_decay, first, last):
    model = to_torch(params)
    optimizer = {"param_groups": [{"weight_decay": 0.0}, {"weight_decay": weight_decay}]}
    found = moments_order(model, optimizer, decay_vectors=False, layered=True)
    assert sorted(found) == sorted(model)
    assert (found[:4], found[-1]) == (first, last)
    blocks = [name.split(".")[1] for name in found if name.startswith("blocks.")]
    assert blocks == sorted(blocks)


def test_a_probes_state_goes_to_jax_and_its_weights_come_back(params):
    rng = np.random.default_rng(1)
    model = {name.replace("head.", "head.1."): each for name, each in to_torch(params).items()}
    statistics = {name: rng.normal(size=4).astype(np.float32) for name in ("running_mean", "running_var")}
    statistics["num_batches_tracked"] = np.asarray(3)
    model |= {f"head.0.{name}": each for name, each in statistics.items()}
    momentum = {0: {"momentum": model["head.1.weight"] + 1}, 1: {"momentum": np.ones(5)}}
    state = {"model": model, "optimizer": {"state": momentum}}
    found = probe_state_from_torch("x", state, SHAPES)
    assert np.array_equal(found["params/head/kernel"], params["head/kernel"])
    assert np.array_equal(found["momentum/kernel"], params["head/kernel"] + 1)
    assert np.array_equal(found["statistics/running_var"], statistics["running_var"])
    assert found["statistics/num_batches_tracked"].dtype == np.int32
    back = trained_weights("x", {ARRAYS: found})
    assert back.keys() == model.keys()
    assert all(np.array_equal(back[name], model[name]) for name in model)
    with pytest.raises(FormatError, match="x: momentum is invalid"):
        probe_state_from_torch("x", {**state, "optimizer": {"state": {}}}, SHAPES)


def test_the_average_is_taken_where_a_run_kept_one(params):
    arrays = {f"params/{name}": each for name, each in params.items()}
    assert np.array_equal(trained_weights("x", {ARRAYS: arrays})["cls_token"], params["cls_token"])
    arrays |= {f"average/{name}": each + 1 for name, each in params.items()}
    assert np.array_equal(trained_weights("x", {ARRAYS: arrays})["cls_token"], params["cls_token"] + 1)
    with pytest.raises(UsageError, match="x: no transformer among 1 arrays"):
        trained_weights("x", {ARRAYS: {"params/conv_init/kernel": np.zeros(3)}})
