"""Devices: `xla` (TPUs, and XLA's own CPU), `cuda`, `cpu`. The only place in `train` that knows torch_xla.

A process drives all XLA devices of its host: with more than one, batches are cut along the `data` axis of a mesh
(SPMD) and the weights are copies. `rank` and `world_size` count hosts, as loaders do.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils._pytree import tree_map

from dataprep.errors import UsageError
from loaders.loader import Loader
from loaders.torch import TorchBatch, TorchBatches

if TYPE_CHECKING:
    from torch_xla.distributed.spmd import Mesh, ShardingSpec

DEVICES = ("xla", "cuda", "cpu")
PRECISIONS = ("auto", "float32", "bfloat16")
DATA_AXIS = "data"


class Runtime(Protocol):
    """One process's share of the devices."""

    name: str
    device: torch.device
    rank: int
    world_size: int
    """Processes; one a host."""
    num_devices: int
    """Of all processes."""
    transfer_ahead: int
    """Batches that `batches` has on their way beside the one that is yielded."""

    def batches(self, loader: Loader) -> Generator[TorchBatch]:
        """The rest of the loader's epoch, on the device; each with its own state."""

    def put(self, rows: torch.Tensor) -> torch.Tensor:
        """A tensor of one entry a row of this host's batch, on the device, cut as the batch is."""

    def put_whole(self, rows: torch.Tensor) -> torch.Tensor:
        """As `put`; returns when the tensor is there."""

    def end_step(self) -> None:
        """All of a step was said: launch it."""

    def wait(self) -> None:
        """Until the device is done with everything."""

    def memory_bytes(self) -> int | None:
        """In use on the first device of this process; None where it is not told."""

    def random_state(self) -> dict[str, Any]:
        """Of the generators that a step may draw from."""

    def set_random_state(self, state: dict[str, Any]) -> None:
        """Go on as `random_state` said."""

    def profile(self, folder: Path) -> AbstractContextManager[None]:
        """Trace what runs meanwhile, into a folder where TensorBoard finds it at once."""


def open_runtime(device: str, *, pin_memory: bool | None = None) -> Runtime:
    """Take the devices of a kind.

    Args:
        device: One of `DEVICES`.
        pin_memory: Of CUDA: batches are copied from pinned memory, beside the steps; None: they are.

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
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}: {device} runs in one process on one device; "
            "use --device xla for many, or start it without a launcher"
        )
    return TorchRuntime(device, pin_memory=device == "cuda" and pin_memory is not False)


def open_autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Where a model computes: `auto` is bfloat16 on CUDA. XLA's float32 is what TPUs multiply in bfloat16 anyway."""
    if precision == "bfloat16" or (precision == "auto" and device.type == "cuda"):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def on_host(tree: Any) -> Any:
    """Copies on the host of all tensors in nested dictionaries and lists."""
    return tree_map(lambda leaf: leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else leaf, tree)


class TorchRuntime:
    """One device that PyTorch drives itself."""

    rank = 0
    world_size = 1
    num_devices = 1

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

    def end_step(self) -> None:
        """Nothing: every operation is launched as it is said."""

    def wait(self) -> None:
        """On CUDA; a CPU is always done."""
        if self.name == "cuda":
            torch.cuda.synchronize()

    def memory_bytes(self) -> int | None:
        """Of CUDA; the most since the start."""
        return torch.cuda.max_memory_allocated() if self.name == "cuda" else None

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


class XLARuntime:
    """All XLA devices of this host, together with those of the other hosts."""

    name = "xla"
    transfer_ahead = 2

    def __init__(self) -> None:
        from loaders.xla import host_rank

        self.rank, self.world_size = host_rank()
        import torch_xla
        import torch_xla.runtime as xr

        self._xla = torch_xla
        self.num_devices = xr.global_runtime_device_count()
        self._mesh: Mesh | None = None
        if self.num_devices > 1:
            import numpy as np
            import torch_xla.distributed.spmd as xs

            xr.use_spmd()
            self._mesh = xs.Mesh(np.arange(self.num_devices), (self.num_devices,), (DATA_AXIS,))
        self.device: torch.device = torch_xla.device()

    def batches(self, loader: Loader) -> Generator[TorchBatch]:
        """Two of them travel ahead."""
        from loaders.xla import device_batches

        return device_batches(loader, self.device, mesh=self._mesh, axis=DATA_AXIS)

    def put(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns at once; the copy is under way."""
        import torch_xla.core.xla_model as xm

        (moved,) = xm.send_cpu_data_to_device([rows], self.device, input_sharding=self._row_sharding(rows.dim()))
        tensor: torch.Tensor = moved
        return tensor

    def put_whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Known to be there when a number of it is read, which waits for the step that runs, too."""
        moved = self.put(rows)
        float(moved.flatten()[0])
        return moved

    def end_step(self) -> None:
        """Cut the graph here, compile it if it is new, and run it."""
        self._xla.sync()

    def wait(self) -> None:
        """Launch what was said, and wait for it."""
        self._xla.sync(wait=True)

    def memory_bytes(self) -> int | None:
        """XLA's CPU does not tell."""
        import torch_xla.core.xla_model as xm

        try:
            used: int = xm.get_memory_info(self.device)["bytes_used"]
        except RuntimeError:
            return None
        return used

    def random_state(self) -> dict[str, Any]:
        """Of the host's generator and of XLA's."""
        import torch_xla.core.xla_model as xm

        return {"cpu": torch.get_rng_state(), "xla": xm.get_rng_state()}

    def set_random_state(self, state: dict[str, Any]) -> None:
        """A state of another kind of device sets the host's alone."""
        import torch_xla.core.xla_model as xm

        torch.set_rng_state(state["cpu"])
        if "xla" in state:
            xm.set_rng_state(state["xla"])

    @contextlib.contextmanager
    def profile(self, folder: Path) -> Iterator[None]:
        """`plugins/profile/<run>/<host>.xplane.pb`."""
        import torch_xla.debug.profiler as xp

        self.wait()
        xp.start_trace(str(folder))
        try:
            yield
            self.wait()
        finally:
            xp.stop_trace()

    def _row_sharding(self, dimensions: int) -> ShardingSpec | None:
        if self._mesh is None:
            return None
        from torch_xla.distributed.spmd import ShardingSpec

        return ShardingSpec(self._mesh, (DATA_AXIS, *[None] * (dimensions - 1)), minibatch=self.world_size > 1)


def _profile_run(folder: Path) -> Path:
    return folder / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S")
