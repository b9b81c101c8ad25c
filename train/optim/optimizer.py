"""Optimisers for vision transformers.

AdamW: weights decay; biases, norms and tokens do not. For fine-tuning, layers near the pixels learn slower. LARS, for
linear probes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from train.models.sizes import layer_of
from train.models.vit import VisionTransformer

BETAS = (0.9, 0.95)
"""Betas of the MAE recipe."""


def open_adamw(
    model: nn.Module, *, lr: float, weight_decay: float, betas: tuple[float, float] = BETAS, decay_vectors: bool = False
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


MOMENTUM = 0.9
TRUST = 0.001
"""Ratio of the length of a step, before the learning rate, to the length of the weight."""


class LARS(torch.optim.Optimizer):
    """LARS with decay for matrices, part of the gradient before it is scaled, and plain SGD for biases and other
    vectors."""

    def __init__(self, params: Iterable[nn.Parameter], *, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Do one update; there is no closure."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, lr=group["lr"], weight_decay=group["weight_decay"])

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, *, lr: float, weight_decay: float) -> None:
        if parameter.ndim > 1:
            gradient = gradient + weight_decay * parameter
            length, step_length = parameter.norm(), gradient.norm()
            is_scaled = (length > 0) & (step_length > 0)
            gradient = gradient * torch.where(is_scaled, TRUST * length / step_length, torch.ones_like(length))
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].mul_(MOMENTUM).add_(gradient)
        parameter.add_(state["momentum"], alpha=-lr)


FINETUNE_BETAS = (0.9, 0.999)
"""Betas of the MAE paper's fine-tuning."""


def open_layered_adamw(
    model: VisionTransformer, *, lr: float, weight_decay: float, layer_decay: float
) -> torch.optim.AdamW:
    """Make an optimiser with one group per layer, each with an `lr_scale` that multiplies the learning rate:
    `layer_decay` times the next layer's, 1 for the head. Vectors, tokens and positions do not decay."""
    last = model.config.depth + 1
    groups: dict[tuple[int, float], list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        is_vector = parameter.ndim <= 1 or name in ("cls_token", "pos_embed")
        groups.setdefault((layer_of(name, last), 0.0 if is_vector else weight_decay), []).append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {"params": parameters, "weight_decay": decay, "lr_scale": layer_decay ** (last - layer)}
            for (layer, decay), parameters in sorted(groups.items(), key=lambda item: item[0])
        ],
        lr=lr,
        betas=FINETUNE_BETAS,
    )
    start_moments(optimizer)
    return optimizer
