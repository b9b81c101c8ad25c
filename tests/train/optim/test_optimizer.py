"""AdamW's groups and its moments before the first step; that updates follow them, `loops/test_torch.py` shows."""

import pytest
import torch

from train.models.registry import create_model
from train.optim.optimizer import moments_of, open_adamw, start_moments


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
