"""PyTorch's devices: `xla` (TPUs, and XLA's own CPU), `tpu` (by torch-tpu), `cuda`, `cpu`, behind one protocol."""

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
from train.loops.backend import DEVICES
from train.loops.torch_runtime import RandomState, TorchRuntime, TPURuntime
from train.loops.xla_runtime import XLARuntime


class Runtime(Protocol):
    """One process's share of the devices."""

    name: str
    device: torch.device
    rank: int
    world_size: int
    """Number of processes, one on each host."""
    num_devices: int
    """Number of devices, of all processes together."""
    transfer_ahead: int
    """Number of batches that `batches` sends to the device ahead of the one that is yielded."""
    is_sharded: bool
    """Whether weights are sharded among the devices, so that every host saves its own part of the state."""

    def batches(self, loader: Loader) -> Generator[TorchBatch]:
        """Yield the rest of the loader's epoch, on the device; each batch has the loader's state after it."""

    def put(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy a tensor with an entry for each row of this host's batch to the device, sharded as the batch is."""

    def put_whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy as `put` does; return when the tensor has arrived."""

    def begin_step(self, step: int) -> None:
        """Make the random numbers of a step a function of the seed and the step's number, or of `random_state`."""

    def end_step(self) -> None:
        """Launch a step after all of its operations were recorded."""

    def wait(self) -> None:
        """Wait until the device has finished all operations."""

    @property
    def compute_threads(self) -> int:
        """Number of threads with which a step computes, where that can be changed, as on a CPU; 0 elsewhere."""

    def use_threads(self, count: int) -> None:
        """Compute with another number of threads from now on, where `compute_threads` is not 0."""

    def memory_bytes(self) -> int | None:
        """Return the bytes in use on the first device of this process; None if the device does not report them."""

    def metrics(self) -> str:
        """Return XLA's counters of compilations, transfers and operations on the host; '' without XLA."""

    def shard_weights(self, model: nn.Module, block: type[nn.Module]) -> nn.Module:
        """Put a model on the devices, its weights sharded among them block by block (FSDP); one device holds all.

        Args:
            model: Model on the host. `state_dict` and `load_state_dict` keep the names of its weights.
            block: Class of the blocks; the weights of one block at a time are gathered.
        """

    def shard_like_weights(self, tensors: Iterable[torch.Tensor]) -> None:
        """Shard tensors that belong to weights, such as an optimiser's state, in the same way as the weights."""

    def recompute(self, block: nn.Module) -> None:
        """Keep only the inputs of a block, and compute the rest again for its gradient."""

    def on_host(self, tree: Any) -> Any:
        """Copy all tensors in nested dictionaries and lists to the host; sharded ones become this host's `Pieces`."""

    def agree(self, said: bool) -> bool:
        """Return whether any host gave True; all hosts call this at the same step."""

    def seed(self, seed: int) -> None:
        """Seed the random generators of weights and steps."""

    def random_state(self) -> RandomState:
        """Return the state of the random generators that a step may use."""

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `random_state` returned."""

    def profile(self, folder: Path) -> AbstractContextManager[None]:
        """Trace what runs inside the context, into a folder where TensorBoard finds it."""


def open_runtime(device: str, *, pin_memory: bool | None = None) -> Runtime:
    """Open the devices of a kind.

    Args:
        device: One of `DEVICES`.
        pin_memory: Whether batches are copied to CUDA from pinned memory while steps run; None: True on CUDA.

    Raises:
        UsageError: The kind is unknown, this machine has no such device, or it does not use pinned memory.
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
            "use --device xla for several devices, or start it without a launcher"
        )
    if device == "tpu":
        return TPURuntime()
    # Convolutions in float32 compute in TF32 otherwise, with 10 bits of mantissa; matrix products do not.
    torch.backends.cudnn.allow_tf32 = False
    return TorchRuntime(device, pin_memory=device == "cuda" and pin_memory is not False)


def open_autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return the context in which a model computes with a precision, one of `PRECISIONS`.

    `auto` is bfloat16 on CUDA, and float32 elsewhere; TPUs multiply XLA's float32 in bfloat16 anyway.
    """
    if precision == "bfloat16" or (precision == "auto" and device.type == "cuda"):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()
