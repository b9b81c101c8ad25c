"""The device that PyTorch drives itself, `cuda` or `cpu`: a `train.loops.runtime.Runtime` of one process."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from torch import nn
from torch.utils._pytree import tree_map

from dataprep.errors import UsageError, install_hint
from loaders.loader import Loader
from loaders.torch import TorchBatch, TorchBatches, TorchPackBatch


class RandomState(TypedDict):
    """State of the generators that a step may draw from."""

    cpu: torch.Tensor
    cuda: NotRequired[torch.Tensor]
    tpu: NotRequired[torch.Tensor]
    xla: NotRequired[int]
    """Seed of the steps."""


class TorchRuntime:
    """One device that PyTorch drives itself."""

    rank = 0
    world_size = 1
    num_devices = 1
    is_sharded = False

    def __init__(self, name: str, *, pin_memory: bool) -> None:
        self.name = name
        self.device = torch.device(name)
        self._pin_memory = pin_memory
        self.transfer_ahead = 0 if name == "cpu" else 1

    def batches(self, loader: Loader) -> Generator[TorchBatch]:
        """Yield the rest of the loader's epoch; on CUDA the next batch is copied while one is trained on."""
        batches = TorchBatches(loader)
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
        """Copy rows to the device, from pinned memory if that is on, so that the copy runs while steps do."""
        if not self._pin_memory:
            return rows.to(self.device)
        with torch.cuda.stream(self._copies):
            moved = rows.pin_memory().to(self.device, non_blocking=True)
        torch.cuda.current_stream().wait_stream(self._copies)
        moved.record_stream(torch.cuda.current_stream())
        return moved

    def put_whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy rows to the device, and wait for everything in this thread's stream."""
        moved = self.put(rows)
        if self.name == "cuda":
            torch.cuda.current_stream().synchronize()
        return moved

    def begin_step(self, step: int) -> None:
        """Do nothing: the state of the random generator advances with the run."""

    def end_step(self) -> None:
        """Do nothing: PyTorch launches every operation at once."""

    def wait(self) -> None:
        """Wait for CUDA; a CPU has always finished."""
        if self.name == "cuda":
            torch.cuda.synchronize()

    @property
    def compute_threads(self) -> int:
        """Number of threads with which a step computes on a CPU; 0 on another device."""
        return torch.get_num_threads() if self.name == "cpu" else 0

    def use_threads(self, count: int) -> None:
        """Compute with another number of threads on a CPU from now on."""
        torch.set_num_threads(count)

    def memory_bytes(self) -> int | None:
        """Return the peak of bytes in use on CUDA since the start; None on a CPU."""
        return torch.cuda.max_memory_allocated() if self.name == "cuda" else None

    def metrics(self) -> str:
        """Return '', because only XLA has counters."""
        return ""

    def shard_weights(self, model: nn.Module, block: type[nn.Module]) -> nn.Module:
        """Move the whole model to the only device."""
        return model.to(self.device)

    def shard_like_weights(self, tensors: Iterable[torch.Tensor]) -> None:
        """Do nothing: weights are not sharded."""

    def recompute(self, block: nn.Module) -> None:
        """Compute a block again for its gradient, by PyTorch's checkpointing."""
        from torch.utils.checkpoint import checkpoint

        block.forward = partial(checkpoint, block.forward, use_reentrant=False)

    def on_host(self, tree: Any) -> Any:
        """Copy all tensors in nested dictionaries and lists."""
        return tree_map(lambda leaf: leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else leaf, tree)

    def agree(self, said: bool) -> bool:
        """Return the argument: there is only one host."""
        return said

    def seed(self, seed: int) -> None:
        """Seed the random generators of the CPU and of CUDA."""
        torch.manual_seed(seed)

    def random_state(self) -> RandomState:
        """Return the state of the CPU's random generator, and of CUDA's."""
        state: RandomState = {"cpu": torch.get_rng_state()}
        if self.name == "cuda":
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state; one from another kind of device restores only the CPU's generator."""
        torch.set_rng_state(state["cpu"])
        if self.name == "cuda" and "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"])

    @contextlib.contextmanager
    def profile(self, folder: Path) -> Iterator[None]:
        """Trace in Chrome's format, which TensorBoard's plugin for PyTorch and Perfetto show."""
        run = _profile_run(folder)
        with torch.profiler.profile() as profiler:
            yield
            self.wait()
        run.mkdir(parents=True)
        profiler.export_chrome_trace(str(run / f"{socket.gethostname()}.pt.trace.json.gz"))

    @cached_property
    def _copies(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def _profile_run(folder: Path) -> Path:
    return folder / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S")


PACKAGE = "torch_tpu"
NO_TPU = "no TPU here; use --device tpu on a TPU VM, or --device cpu"


class TPURuntime(TorchRuntime):
    """One device that torch-tpu drives; PyTorch's operations are launched as on CUDA."""

    def __init__(self) -> None:
        if importlib.util.find_spec(PACKAGE) is None:
            raise UsageError(
                f"--device tpu needs torch-tpu: {install_hint('tpu-torch-tpu')} on Python 3.12 or newer, in an "
                "environment without torch_xla; or use --device xla"
            )
        try:
            self._module = torch.get_device_module("tpu")
        except RuntimeError as error:  # torch-tpu registers no device where it finds no TPU
            raise UsageError(NO_TPU) from error
        if not self._module.is_available():
            raise UsageError(NO_TPU)
        super().__init__("tpu", pin_memory=False)

    def put_whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy rows to the device, and wait for everything that was launched."""
        moved = self.put(rows)
        self.wait()
        return moved

    def wait(self) -> None:
        """Wait for all streams of the device."""
        self._module.synchronize()

    def random_state(self) -> RandomState:
        """Return the states of the CPU's random generator, and of the device's."""
        return {"cpu": torch.get_rng_state(), "tpu": self._module.get_rng_state()}

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state; one from another kind of device restores only the CPU's generator."""
        torch.set_rng_state(state["cpu"])
        if "tpu" in state:
            self._module.set_rng_state(state["tpu"])
