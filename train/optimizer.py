"""AdamW as vision transformers are trained: weights decay, biases, norms and tokens do not."""

from __future__ import annotations

import torch
from torch import nn

BETAS = (0.9, 0.95)
"""Of the MAE recipe."""


def open_adamw(
    model: nn.Module, *, lr: float, weight_decay: float, betas: tuple[float, float] = BETAS
) -> torch.optim.AdamW:
    """An optimiser over all trained parameters.

    Vectors have no decay, nor have class and mask tokens and positions, which are vectors with two more dimensions.
    """
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_vector = parameter.ndim <= 1 or name.endswith(("_token", "pos_embed"))
            (kept if is_vector else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=betas)
