"""The device that PyTorch drives itself, `cuda` or `cpu`: a `train.runtime.Runtime` of one process."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Generator, Iterable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from loaders.loader import Loader
from loaders.torch import TorchBatch, TorchBatches


class TorchRuntime:
    """One device that PyTorch drives itself."""

    rank = 0
    world_size = 1
    num_devices = 1
    is_cut = False

    def __init__(self, name: str, *, pin_memory: bool) -> None:
        self.name = name
        self.device = torch.device(name)
        self._pin_memory = pin_memory
        self.transfer_ahead = 0 if name == "cpu" else 1

    def batches(self, loader: Loader) -> Generator[TorchBatch]:
        """On CUDA the next batch travels while the one before is trained on."""
        batches = TorchBatches(loader)
        if self.name == "cpu":
            yield from batches
            return
        ahead: TorchBatch | None = None
        for batch in batches:
            sent = TorchBatch(
                images=self.put(batch.images),
                labels=self.put(batch.labels),
                mask=self.put(batch.mask),
                keys=batch.keys,
                fields=batch.fields,
                state=batch.state,
            )
            if ahead is not None:
                yield ahead
            ahead = sent
        if ahead is not None:
            yield ahead

    def put(self, rows: torch.Tensor) -> torch.Tensor:
        """From pinned memory where that is on: the copy then runs beside the steps."""
        if not self._pin_memory:
            return rows.to(self.device)
        with torch.cuda.stream(self._copies):
            moved = rows.pin_memory().to(self.device, non_blocking=True)
        torch.cuda.current_stream().wait_stream(self._copies)
        moved.record_stream(torch.cuda.current_stream())
        return moved

    def put_whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Of the thread's stream all is waited for."""
        moved = self.put(rows)
        if self.name == "cuda":
            torch.cuda.current_stream().synchronize()
        return moved

    def begin_step(self, step: int) -> None:
        """Nothing: the generator's state goes on with the run."""

    def end_step(self) -> None:
        """Nothing: every operation is launched as it is said."""

    def wait(self) -> None:
        """On CUDA; a CPU is always done."""
        if self.name == "cuda":
            torch.cuda.synchronize()

    def memory_bytes(self) -> int | None:
        """Of CUDA; the most since the start."""
        return torch.cuda.max_memory_allocated() if self.name == "cuda" else None

    def metrics(self) -> str:
        """Nothing."""
        return ""

    def cut_weights(self, model: nn.Module, block: type[nn.Module]) -> nn.Module:
        """Whole: there is one device."""
        return model.to(self.device)

    def cut_as_weights(self, tensors: Iterable[torch.Tensor]) -> None:
        """Nothing."""

    def recompute(self, block: nn.Module) -> None:
        """As PyTorch does it."""
        from torch.utils.checkpoint import checkpoint

        block.forward = partial(checkpoint, block.forward, use_reentrant=False)

    def on_host(self, tree: Any) -> Any:
        """Copies."""
        return tree_map(lambda leaf: leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else leaf, tree)

    def agree(self, said: bool) -> bool:
        """There is one host."""
        return said

    def seed(self, seed: int) -> None:
        """PyTorch seeds CUDA, too."""
        torch.manual_seed(seed)

    def random_state(self) -> dict[str, Any]:
        """Of the CPU's generator, and CUDA's."""
        state = {"cpu": torch.get_rng_state()}
        return state | {"cuda": torch.cuda.get_rng_state()} if self.name == "cuda" else state

    def set_random_state(self, state: dict[str, Any]) -> None:
        """A state of another kind of device sets the CPU's alone."""
        torch.set_rng_state(state["cpu"])
        if self.name == "cuda" and "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"])

    @contextlib.contextmanager
    def profile(self, folder: Path) -> Iterator[None]:
        """Chrome's trace format, which TensorBoard's plugin for PyTorch and Perfetto show."""
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
