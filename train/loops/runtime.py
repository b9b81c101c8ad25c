"""PyTorch's devices: `cuda`, `cpu`, `tpu` (by torch-tpu), and in xla_runtime.py `xla` (TPUs, and XLA's own CPU)."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from torch import nn
from torch.utils._pytree import tree_map

from dataprep.errors import UsageError, install_hint
from loaders.loader import Loader
from loaders.torch import TorchBatch, TorchPackBatch, rest_of_epoch
from train.loops.backend import DEVICES

PACKAGE = "torch_tpu"
NO_TPU = "no TPU here; use `device` tpu on a TPU VM, or `device` cpu"


class RandomState(TypedDict):
    """State of the random generators that a step may use."""

    cpu: torch.Tensor
    cuda: NotRequired[torch.Tensor]
    tpu: NotRequired[torch.Tensor]
    xla: NotRequired[int]
    """Seed of the steps."""


class Runtime:
    """One process's share of the devices; this class drives one device, `cuda` or `cpu`."""

    rank = 0
    world_size = 1
    """Number of processes, one on each host."""
    num_devices = 1
    """Number of devices, of all processes together."""
    is_sharded = False
    """Whether weights are sharded among the devices, so that every host saves its own part of the state."""

    def __init__(self, name: str, *, pin_memory: bool) -> None:
        self.name = name
        self.device = torch.device(name)
        self._pin_memory = pin_memory
        self.transfer_ahead = 0 if name == "cpu" else 1
        """Number of batches that `batches` sends to the device ahead of the yielded one."""

    def batches(self, loader: Loader) -> Generator[TorchBatch]:
        """Yield the rest of the loader's epoch, on the device; each batch has the loader's state after it."""
        batches = rest_of_epoch(loader)
        if self.name == "cpu":
            yield from batches
            return
        ahead: TorchBatch | None = None
        for batch in batches:
            sent = self._sent(batch)
            if ahead is not None:
                yield ahead
            ahead = sent
        if ahead is not None:
            yield ahead

    def _sent(self, batch: TorchBatch) -> TorchBatch:
        put = self.put
        sent = replace(batch, images=put(batch.images), labels=put(batch.labels), mask=put(batch.mask))
        if not isinstance(sent, TorchPackBatch):
            return sent
        segments, positions, token_mask, grids = map(put, (sent.segments, sent.positions, sent.token_mask, sent.grids))
        return replace(sent, segments=segments, positions=positions, token_mask=token_mask, grids=grids)

    def put(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy a tensor with an entry for each row of this host's batch to the device, sharded as the batch is.

        From pinned memory, if that is on, the copy runs while steps do.
        """
        if not self._pin_memory:
            return rows.to(self.device)
        with torch.cuda.stream(self._copies):
            moved = rows.pin_memory().to(self.device, non_blocking=True)
        torch.cuda.current_stream().wait_stream(self._copies)
        moved.record_stream(torch.cuda.current_stream())
        return moved

    def put_whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy as `put` does; return when the tensor has arrived. Another thread may run a step meanwhile."""
        moved = self.put(rows)
        if self.name == "cuda":
            torch.cuda.current_stream().synchronize()
        return moved

    def begin_step(self, step: int) -> None:
        """Make the random numbers of a step a function of the seed and the step's number, or of `random_state`."""

    def end_step(self) -> None:
        """Launch a step after all of its operations were recorded; PyTorch itself launches each at once."""

    def wait(self) -> None:
        """Wait until the device has finished all operations."""
        if self.name == "cuda":
            torch.cuda.synchronize()

    @property
    def compute_threads(self) -> int:
        """Number of threads of a step, if it can be changed, as on a CPU; otherwise 0."""
        return torch.get_num_threads() if self.name == "cpu" else 0

    def use_threads(self, count: int) -> None:
        """Compute with another number of threads from now on, if `compute_threads` is not 0."""
        torch.set_num_threads(count)

    def memory_bytes(self) -> int | None:
        """Return the bytes in use on the first device of this process, on CUDA their peak; None if unknown."""
        return torch.cuda.max_memory_allocated() if self.name == "cuda" else None

    def metrics(self) -> str:
        """Return XLA's counters of compilations, transfers and operations on the host; '' without XLA."""
        return ""

    def shard_weights(self, model: nn.Module, block: type[nn.Module]) -> nn.Module:
        """Put a model on the devices, its weights sharded among them block by block (FSDP); one device holds all.

        Args:
            model: Model on the host. `state_dict` and `load_state_dict` keep the names of its weights.
            block: Class of the blocks; the weights of one block at a time are gathered.
        """
        return model.to(self.device)

    def shard_like_weights(self, tensors: Iterable[torch.Tensor]) -> None:
        """Shard tensors that belong to weights, such as an optimiser's state, in the same way as the weights."""

    def recompute(self, block: nn.Module) -> None:
        """Keep only the inputs of a block, and compute the rest again for its gradient."""
        from torch.utils.checkpoint import checkpoint

        block.forward = partial(checkpoint, block.forward, use_reentrant=False)

    def on_host(self, tree: Any) -> Any:
        """Copy all tensors in nested dictionaries and lists to the host; sharded ones become this host's `Pieces`."""
        return tree_map(lambda leaf: leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else leaf, tree)

    def agree(self, said: bool) -> bool:
        """Return whether any host gave True; all hosts call this at the same step."""
        return said

    def gather(self, text: str) -> list[str]:
        """Return the texts of all hosts by rank; all hosts call this at the same step, with 1,024 bytes at most."""
        return [text]

    def seed(self, seed: int) -> None:
        """Seed the random generators of weights and steps."""
        torch.manual_seed(seed)

    def random_state(self) -> RandomState:
        """Return the state of the random generators that a step may use."""
        state: RandomState = {"cpu": torch.get_rng_state()}
        if self.name == "cuda":
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `random_state` returned; another device's restores the CPU's alone."""
        torch.set_rng_state(state["cpu"])
        if self.name == "cuda" and "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"])

    @contextlib.contextmanager
    def profile(self, folder: Path) -> Iterator[None]:
        """Trace what runs inside the context, into a folder where TensorBoard finds it."""
        run = folder / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S")
        with torch.profiler.profile() as profiler:
            yield
            self.wait()
        run.mkdir(parents=True)
        profiler.export_chrome_trace(str(run / f"{socket.gethostname()}.pt.trace.json.gz"))

    @cached_property
    def _copies(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()  # type: ignore[no-untyped-call]


class TPURuntime(Runtime):
    """One device that torch-tpu drives; PyTorch's operations are launched as on CUDA."""

    def __init__(self) -> None:
        if importlib.util.find_spec(PACKAGE) is None:
            raise UsageError(
                f"`device` tpu needs torch-tpu: {install_hint('tpu-torch-tpu')} on Python 3.12 or newer, in an "
                "environment without torch_xla; or use `device` xla"
            )
        try:
            self._module = torch.get_device_module("tpu")
        except RuntimeError as error:  # torch-tpu registers no device where it finds no TPU
            raise UsageError(NO_TPU) from error
        if not self._module.is_available():
            raise UsageError(NO_TPU)
        super().__init__("tpu", pin_memory=False)

    def put_whole(self, rows: torch.Tensor) -> torch.Tensor:
        moved = self.put(rows)
        self.wait()
        return moved

    def wait(self) -> None:
        self._module.synchronize()

    def random_state(self) -> RandomState:
        return {"cpu": torch.get_rng_state(), "tpu": self._module.get_rng_state()}

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        torch.set_rng_state(state["cpu"])
        if "tpu" in state:
            self._module.set_rng_state(state["tpu"])


def open_runtime(device: str, *, pin_memory: bool | None = None) -> Runtime:
    """Open the devices of a kind.

    Args:
        device: One of `DEVICES`.
        pin_memory: Whether batches are copied to CUDA from pinned memory while steps run; None: True on CUDA.

    Raises:
        UsageError: The kind is unknown, this machine has no such device, or it does not use pinned memory.
    """
    if pin_memory is not None and device != "cuda":
        raise UsageError(f"`pin_mem` is for CUDA, where pinned memory is copied faster; not {device}")
    if device == "xla":
        from train.loops.xla_runtime import XLARuntime  # which imports torch_xla before anything else does

        return XLARuntime()
    if device not in DEVICES:
        raise UsageError(f"`device` must be one of {', '.join(DEVICES)}, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("no CUDA device here; use `device` cpu, or xla on a TPU")
    if os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1"):
        raise UsageError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}: {device} runs in one process on one device; "
            "use `device` xla for several devices, or start it without a launcher"
        )
    if device == "tpu":
        return TPURuntime()
    # Convolutions in float32 compute in TF32 otherwise, with 10 bits of mantissa; matrix products do not.
    torch.backends.cudnn.allow_tf32 = False
    return Runtime(device, pin_memory=device == "cuda" and pin_memory is not False)


def open_autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return the context in which a model computes with a precision, one of `PRECISIONS`.

    `auto` is bfloat16 on CUDA, and float32 elsewhere; TPUs multiply XLA's float32 in bfloat16 anyway.
    """
    if precision == "bfloat16" or (precision == "auto" and device.type == "cuda"):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()
