"""LARS, the optimiser of linear probes: SGD whose step has a length in proportion to that of each weight.

You, Gitman and Ginsburg, "Large batch training of convolutional networks", 2017. timm's LARS decays weights differently
and has other names in its state: docs/decisions/0009-own-lars-and-layer-decay.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import overload

import torch
from torch import nn

MOMENTUM = 0.9
TRUST = 0.001
"""Ratio of the length of a step, before the learning rate, to the length of the weight."""


class LARS(torch.optim.Optimizer):
    """LARS with decay for matrices, and plain SGD for biases and other vectors.

    Args:
        params: Parameters to train.
        lr: Learning rate.
        weight_decay: Factor of a matrix that is added to its gradient before the gradient is scaled.
    """

    def __init__(self, params: Iterable[nn.Parameter], *, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Do one update; return the loss if a closure computes it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():  # type: ignore[no-untyped-call]
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, lr=group["lr"], weight_decay=group["weight_decay"])
        return loss

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
