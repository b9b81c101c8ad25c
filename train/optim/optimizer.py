"""AdamW for vision transformers: weights decay; biases, norms and tokens do not."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

BETAS = (0.9, 0.95)
"""Betas of the MAE recipe."""


def open_adamw(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float] = BETAS,
    decay_vectors: bool = False,
) -> torch.optim.AdamW:
    """Make an optimiser over all trained parameters.

    Vectors do not decay unless `decay_vectors` is set, nor do class and mask tokens and positions, which are vectors
    with two more dimensions.
    """
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_vector = parameter.ndim <= 1 or name.endswith(("_token", "pos_embed"))
            (kept if is_vector and not decay_vectors else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=betas)


def start_moments(optimizer: torch.optim.AdamW) -> None:
    """Set moments to zeros, as the first step would; existing before it, they can be sharded as weights are."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def moments_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the tensors of an optimiser's state that have the shape of their parameter."""
    for parameter, state in optimizer.state.items():
        for each in state.values():
            if isinstance(each, torch.Tensor) and each.shape == parameter.shape and each.device == parameter.device:
                yield each
