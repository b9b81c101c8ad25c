"""Sharding of weights among devices under FSDP, and what each device then holds: pure functions of shapes.

`xla_runtime.py` shards real weights by the same function with which `--plan` describes a model of any size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

COPIES_IN_TRAINING = 4
"""Memory of training divided by that of the weights: weights, gradients and AdamW's two moments, sharded alike."""


def sharded_dimension(shape: Sequence[int], num_devices: int) -> int | None:
    """Return the (first) longest dimension that all devices can share equally; None if there is none."""
    dividable = [dimension for dimension, length in enumerate(shape) if length and length % num_devices == 0]
    return max(dividable, key=lambda dimension: shape[dimension], default=None)


@dataclass(frozen=True, slots=True)
class Share:
    """Share of one parameter that a device holds."""

    name: str
    shape: tuple[int, ...]
    cut: int | None
    """Dimension along which the parameter is sharded; None: every device holds all of it."""
    bytes: int
    """Size of the whole parameter."""
    bytes_per_device: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of how a model is sharded among a number of devices."""

    num_devices: int
    shares: tuple[Share, ...]

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        return sum(prod(share.shape) for share in self.shares)

    @property
    def bytes(self) -> int:
        """Size of all weights."""
        return sum(share.bytes for share in self.shares)

    @property
    def bytes_per_device(self) -> int:
        """Size of the weights on one device."""
        return sum(share.bytes_per_device for share in self.shares)

    @property
    def training_bytes_per_device(self) -> int:
        """Size of weights, gradients and moments on one device; activations come on top."""
        return COPIES_IN_TRAINING * self.bytes_per_device

    def to_document(self) -> dict[str, object]:
        """Return the plan as a JSON document."""
        return {
            "devices": self.num_devices,
            "parameters": self.parameters,
            "bytes": self.bytes,
            "bytes_per_device": self.bytes_per_device,
            "training_bytes_per_device": self.training_bytes_per_device,
            "weights": [
                {
                    "name": share.name,
                    "shape": list(share.shape),
                    "cut": share.cut,
                    "bytes": share.bytes,
                    "bytes_per_device": share.bytes_per_device,
                }
                for share in self.shares
            ],
        }


def plan_of(model: nn.Module, num_devices: int) -> Plan:
    """Plan what each device would hold of a model, which may be on the `meta` device.

    Args:
        model: Model whose weights are planned; not wrapped for FSDP.
        num_devices: One or more.
    """
    return Plan(num_devices, tuple(_share(name, each, num_devices) for name, each in model.named_parameters()))


def _share(name: str, weight: nn.Parameter, num_devices: int) -> Share:
    cut = sharded_dimension(weight.shape, num_devices)
    held = weight.nbytes if cut is None else weight.nbytes // num_devices
    return Share(name, tuple(weight.shape), cut, weight.nbytes, held)


def plan_text(plan: Plan) -> str:
    """Return a plan as a table with one line for each parameter."""
    rows = [
        (share.name, _shape_text(share, plan.num_devices), f"{share.bytes:,}", f"{share.bytes_per_device:,}")
        for share in plan.shares
    ]
    header = ("weight", f"shape, cut by {plan.num_devices}", "bytes", "bytes per device")
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(4)]
    lines = [
        f"{name:<{widths[0]}}  {shape:<{widths[1]}}  {whole:>{widths[2]}}  {held:>{widths[3]}}"
        for name, shape, whole, held in (header, *rows)
    ]
    return "\n".join(
        [
            *lines,
            "",
            f"{plan.parameters:,} parameters, {plan.bytes:,} bytes; on each of {plan.num_devices:,} devices "
            f"{plan.bytes_per_device:,}",
            f"with gradients and AdamW's moments {plan.training_bytes_per_device:,}, before activations",
        ]
    )


def _shape_text(share: Share, num_devices: int) -> str:
    lengths = [
        f"{length}/{num_devices}" if dimension == share.cut else str(length)
        for dimension, length in enumerate(share.shape)
    ]
    return " x ".join(lengths) or "1"
