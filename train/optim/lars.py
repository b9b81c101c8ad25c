"""LARS, by which linear layers are probed: SGD whose step is a share of each weight's own length.

You, Gitman and Ginsburg, "Large batch training of convolutional networks", 2017. timm's differs where weights decay,
and names its state otherwise: docs/decisions/0009-own-lars-and-layer-decay.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import nn

MOMENTUM = 0.9
TRUST = 0.001
"""Length of a step, before the learning rate, as a share of the weight's."""


class LARS(torch.optim.Optimizer):
    """Matrices are scaled and decayed; biases and other vectors take plain SGD's step.

    Args:
        params: Parameters to train.
        lr: Learning rate.
        weight_decay: Share of a matrix that is added to its gradient, before that is scaled.
    """

    def __init__(self, params: Iterable[nn.Parameter], *, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Do one update; return the loss, where a closure computes it again."""
        loss = None
        if closure is not None:
            with torch.enable_grad():  # type: ignore[no-untyped-call]
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        if parameter.ndim > 1:
            gradient = gradient + group["weight_decay"] * parameter
            length, step_length = parameter.norm(), gradient.norm()
            is_scaled = (length > 0) & (step_length > 0)
            gradient = gradient * torch.where(is_scaled, TRUST * length / step_length, torch.ones_like(length))
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].mul_(MOMENTUM).add_(gradient)
        parameter.add_(state["momentum"], alpha=-group["lr"])
