"""AdamW's groups and its moments before the first step; that updates follow them, `loops/test_torch.py` shows."""

import numpy as np
import pytest
import torch

from train.checkpoints.encoder_weights import ClassifierConfig, open_classifier
from train.models.registry import create_model
from train.optim.optimizer import LARS, moments_of, open_adamw, open_layered_adamw, start_moments


@pytest.fixture
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return create_model("mae_vit_micro_patch8", image_size=16)


@pytest.mark.parametrize("decays_vectors", [False, True])
def test_tokens_and_vectors_decay_only_with_decay_vectors(model, decays_vectors):
    decayed, kept = open_adamw(model, lr=1.0, weight_decay=0.3, decay_vectors=decays_vectors).param_groups
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.3, 0.0)
    kept_names = {names[parameter] for parameter in kept["params"]}
    assert bool(kept_names) == (not decays_vectors)
    assert ({"cls_token", "mask_token", "norm.bias"} <= kept_names) == (not decays_vectors)


def test_moments_that_are_made_before_the_first_step_change_nothing(model):
    weight, other = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    found = [torch.optim.AdamW([each], lr=0.1) for each in (weight, other)]
    start_moments(found[0])
    assert [tuple(each.shape) for each in moments_of(found[0])] == [(3,), (3,)]
    for parameter, optimizer in zip((weight, other), found, strict=True):
        parameter.grad = torch.tensor([1.0, -2.0, 3.0])
        optimizer.step()
    assert torch.equal(weight, other)


RATES = (0.5, 2.0, 0.1, 1.0)
"""Rates of the steps, one after the other: a schedule changes them."""


def parameters() -> list[torch.nn.Parameter]:
    """A matrix, one of length 0, a convolution, a bias."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 5), (3, 2), (2, 3, 3, 3), (4,))
    found = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    with torch.no_grad():
        found[1].zero_()
    return found


def gradients(step: int) -> list[torch.Tensor]:
    """Gradients of the matrices and the bias; the convolution has one in every second step alone."""
    generator = torch.Generator().manual_seed(step + 1)
    found = [torch.randn(each.shape, generator=generator) for each in parameters()]
    if step % 2:
        found[2].zero_()
    return found


def update(optimizer: LARS, trained: list[torch.nn.Parameter], steps: range) -> None:
    for step in steps:
        optimizer.param_groups[0]["lr"] = RATES[step]
        for parameter, gradient in zip(trained, gradients(step), strict=True):
            parameter.grad = gradient
        optimizer.step()


def expected(weight_decay: float) -> list[np.ndarray]:
    """You et al., algorithm 1, with momentum 0.9 and trust 0.001; vectors as in plain SGD."""
    found = [each.detach().double().numpy().copy() for each in parameters()]
    velocities = [np.zeros_like(each) for each in found]
    for step, rate in enumerate(RATES):
        for index, gradient in enumerate(each.double().numpy() for each in gradients(step)):
            weight, local = found[index], 1.0
            if weight.ndim > 1:
                gradient = gradient + weight_decay * weight
                lengths = np.sqrt((weight**2).sum()), np.sqrt((gradient**2).sum())
                if all(lengths):
                    local = 0.001 * lengths[0] / lengths[1]
            velocities[index] = 0.9 * velocities[index] + local * gradient
            found[index] = weight - rate * velocities[index]
    return found


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_step_is_a_share_of_each_weights_length(weight_decay):
    trained = parameters()
    update(LARS(trained, lr=1.0, weight_decay=weight_decay), trained, range(4))
    for found, wanted in zip(trained, expected(weight_decay), strict=True):
        assert np.allclose(found.detach().numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_the_scale_of_a_gradient_changes_a_matrix_by_rounding_at_most():
    for scale in (1e-4, 1e4):
        (whole, *_), (scaled, *_) = parameters(), parameters()
        for parameter, factor in ((whole, 1.0), (scaled, scale)):
            parameter.grad = factor * gradients(0)[0]
            LARS([parameter], lr=1.0).step()
        assert torch.allclose(whole, scaled, rtol=1e-5)


def test_lars_continues_from_its_saved_state():
    whole, resumed = parameters(), parameters()
    update(LARS(whole, lr=1.0), whole, range(4))
    first = LARS(resumed, lr=1.0)
    update(first, resumed, range(2))
    second = LARS(resumed, lr=1.0)
    second.load_state_dict(first.state_dict())
    update(second, resumed, range(2, 4))
    assert all(torch.equal(*each) for each in zip(whole, resumed, strict=True))


def test_weights_without_a_gradient_do_not_change():
    trained, frozen = parameters()[0], parameters()[3]
    (trained**2).sum().backward()
    LARS([trained, frozen], lr=1.0).step()
    assert torch.equal(frozen, parameters()[3])
    assert not torch.equal(trained, parameters()[0])


def test_every_parameter_is_in_one_group_and_vectors_do_not_decay():
    config = ClassifierConfig(image_size=16, num_classes=3, pool="average")
    network = open_classifier("vit_micro_patch8", None, config)
    groups = open_layered_adamw(network, lr=1.0, weight_decay=0.3, layer_decay=0.5).param_groups
    assert sorted({group["lr_scale"] for group in groups}) == [0.125, 0.25, 0.5, 1.0]
    grouped = [parameter for group in groups for parameter in group["params"]]
    assert len(grouped) == len(set(grouped)) == len(list(network.parameters()))
    for group in groups:
        for parameter in group["params"]:
            is_vector = parameter.ndim <= 1 or parameter is network.cls_token or parameter is network.pos_embed
            assert group["weight_decay"] == (0.0 if is_vector else 0.3)
