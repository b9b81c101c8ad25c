"""PyTorch's devices: `xla` (TPUs, and XLA's own CPU), `cuda`, `cpu`, behind one protocol."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from dataprep.errors import UsageError
from loaders.loader import Loader
from loaders.torch import TorchBatch
from train.loops.torch_runtime import TorchRuntime
from train.loops.xla_runtime import XLARuntime

DEVICES = ("xla", "cuda", "cpu")
PRECISIONS = ("auto", "float32", "bfloat16")


class Runtime(Protocol):
    """One process's share of the devices."""

    name: str
    device: torch.device
    rank: int
    world_size: int
    """Number of processes; one a host."""
    num_devices: int
    """Number of devices of all processes."""
    transfer_ahead: int
    """Number of batches that `batches` has on their way beside the one that is yielded."""
    is_cut: bool
    """Whether weights are cut among the devices: then every host has its own part of the state to save."""

    def batches(self, loader: Loader) -> Generator[TorchBatch]:
        """Yield the rest of the loader's epoch, on the device; each batch has the loader's state after it."""

    def put(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy a tensor of one entry a row of this host's batch to the device, cut as the batch is."""

    def put_whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy as `put`; return when the tensor is there."""

    def begin_step(self, step: int) -> None:
        """Make what this step draws a function of the seed and its number, or of `random_state`."""

    def end_step(self) -> None:
        """Launch a step, all of whose operations were asked for."""

    def wait(self) -> None:
        """Wait until the device is done with everything."""

    def memory_bytes(self) -> int | None:
        """Return the bytes in use on the first device of this process; None where the device does not tell."""

    def metrics(self) -> str:
        """Return what XLA counted: compilations, transfers, operations left to the host; '' without XLA."""

    def cut_weights(self, model: nn.Module, block: type[nn.Module]) -> nn.Module:
        """Put a model on the devices, its weights cut among them block by block (FSDP). One device holds all of them.

        Args:
            model: On the host. Names of its weights stay, in what `state_dict` gives and `load_state_dict` takes.
            block: Class of the blocks, one of which at a time has its weights gathered.
        """

    def cut_as_weights(self, tensors: Iterable[torch.Tensor]) -> None:
        """Cut what belongs to weights, such as an optimiser's state, as they are cut."""

    def recompute(self, block: nn.Module) -> None:
        """Keep only what enters a block, and compute the rest again for its gradient."""

    def on_host(self, tree: Any) -> Any:
        """Copy all tensors in nested dictionaries and lists; of those that are cut, this host's `Pieces`."""

    def agree(self, said: bool) -> bool:
        """Tell whether any host said so; all hosts ask at the same step."""

    def seed(self, seed: int) -> None:
        """Seed the generators that weights and steps are drawn from."""

    def random_state(self) -> dict[str, Any]:
        """Return the state of the generators that a step may draw from."""

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Go on with a state that `random_state` gave."""

    def profile(self, folder: Path) -> AbstractContextManager[None]:
        """Trace what runs meanwhile, into a folder where TensorBoard finds it at once."""


def open_runtime(device: str, *, pin_memory: bool | None = None) -> Runtime:
    """Open the devices of a kind.

    Args:
        device: One of `DEVICES`.
        pin_memory: Whether batches for CUDA are copied from pinned memory, beside the steps; None: they are, on CUDA.

    Raises:
        UsageError: There is no such kind, or none of it here, or it knows no pinned memory.
    """
    if pin_memory is not None and device != "cuda":
        raise UsageError(f"--pin_mem and --no_pin_mem are for CUDA, where pinned memory is copied faster; not {device}")
    if device == "xla":
        return XLARuntime()
    if device not in DEVICES:
        raise UsageError(f"device must be one of {', '.join(DEVICES)}, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("no CUDA device here; use --device cpu, or xla on a TPU")
    if os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1"):
        raise UsageError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}: {device} runs in one process on one device; "
            "use --device xla for many, or start it without a launcher"
        )
    return TorchRuntime(device, pin_memory=device == "cuda" and pin_memory is not False)


def open_autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return the context in which a model computes with a precision, one of `PRECISIONS`.

    `auto` is bfloat16 on CUDA; XLA's float32 is what TPUs multiply in bfloat16 anyway.
    """
    if precision == "bfloat16" or (precision == "auto" and device.type == "cuda"):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()
