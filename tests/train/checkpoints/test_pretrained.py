"""Classifiers of pretrained encoders: which weights come from where."""

import pytest
import torch

from dataprep.errors import UsageError
from train.checkpoints.encoder_weights import Weights, resized_positions, weights_of
from train.checkpoints.pretrained import ClassifierConfig, folded_head, load_whole, open_classifier
from train.models.registry import create_model


@pytest.fixture
def weights() -> Weights:
    """Weights of a small masked autoencoder."""
    torch.manual_seed(0)
    return weights_of("x", create_model("mae_vit_micro_patch8", image_size=32).state_dict())


def config(**changes) -> ClassifierConfig:
    return ClassifierConfig(**{"image_size": 32, "num_classes": 5, "pool": "token", **changes})


def test_positions_are_resized_to_the_image(weights):
    model = open_classifier(None, weights, config(image_size=64, pool="average"))
    assert model.pos_embed.shape == (1, 65, 64)
    assert torch.equal(model.pos_embed[:, 0], weights.positions[:, 0])
    square = weights.positions[:, 1:].reshape(1, 4, 4, 64).permute(0, 3, 1, 2)
    expected = torch.nn.functional.interpolate(square, size=(8, 8), mode="bicubic", align_corners=False)
    assert torch.equal(model.pos_embed[0, 1:].T.reshape(1, 64, 8, 8), expected)
    assert resized_positions(weights.positions, 4) is weights.positions


def test_a_probe_trains_its_head_alone_on_features_that_it_normalises(weights):
    model = open_classifier(None, weights, config(linear_probe=True))
    assert [name for name, each in model.named_parameters() if each.requires_grad] == ["head.1.weight", "head.1.bias"]
    assert torch.equal(model.state_dict()["blocks.1.mlp.fc1.weight"], weights.tensors["blocks.1.mlp.fc1.weight"])


def test_a_folded_head_computes_what_normalisation_and_layer_do(weights):
    model = open_classifier(None, weights, config(linear_probe=True)).eval()
    with torch.no_grad():
        model.head[0].running_mean.normal_()
        model.head[0].running_var.uniform_(0.5, 2)
    folded = folded_head(model.state_dict())
    features = torch.randn(7, 64)
    expected = model.head(features)
    found = torch.nn.functional.linear(features, folded["head.weight"], folded["head.bias"])
    assert torch.allclose(found, expected, atol=1e-5)
    assert folded_head(folded) is folded


def test_weights_of_another_network_are_refused(weights):
    with pytest.raises(UsageError, match="`model` vit_base_patch16, but x is of vit_micro_patch8; leave `model` out"):
        open_classifier("vit_base_patch16", weights, config())
    fewer = {name: each for name, each in weights.tensors.items() if name != "blocks.0.norm1.bias"}
    with pytest.raises(UsageError, match=r"1 tensors are only in one of the two, the first is blocks.0.norm1.bias"):
        open_classifier(None, Weights("x", fewer, None), config())
    with pytest.raises(UsageError, match="from another model"):
        load_whole(
            open_classifier(None, None, config()) if False else open_classifier(None, weights, config()), weights
        )
