"""Layers by the names of weights."""

import pytest

from train.models.sizes import layer_of


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("cls_token", 0),
        ("pos_embed", 0),
        ("patch_embed.proj.bias", 0),
        ("blocks.0.norm1.weight", 1),
        ("blocks.11.mlp.fc2.weight", 12),
        ("norm.weight", 13),
        ("fc_norm.bias", 13),
        ("head.weight", 13),
    ],
)
def test_a_layer_is_counted_from_the_pixels(name, layer):
    assert layer_of(name, 13) == layer
