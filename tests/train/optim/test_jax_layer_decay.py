"""Shares of the learning rate in JAX, which are those of `layer_decay.py`."""

import numpy as np
import pytest

from train.loops.jax_transformer_steps import layer_scales

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
