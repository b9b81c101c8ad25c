"""Batches on the devices of PyTorch/XLA, cut along an axis of a mesh under SPMD.

    xr.use_spmd()
    rank, world_size = host_rank()
    with open_loader(url, batch_size=1024, rank=rank, world_size=world_size) as loader:
        for batch in device_batches(loader, mesh=mesh):
            images_NCHW = normalize(batch.images, mean=MEAN, std=STD)

Shapes: N images of this rank, H = W = `image_size`, C = 3; under SPMD a tensor has the shape of the global batch.
"""

from __future__ import annotations

import atexit
import sys
from collections import deque
from collections.abc import Generator
from dataclasses import replace
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING

from dataprep.arrays import np
from dataprep.errors import UsageError, needing
from loaders.engine.batch import Batch, array_dimensions, rows_per_part
from loaders.loader import Loader

with needing("xla", "loaders.xla"):
    import torch

    from loaders.torch import TorchBatch, _tensors, _torch_batch

if TYPE_CHECKING:
    from torch_xla.distributed.spmd import Mesh, ShardingSpec

__all__ = ["device_batches", "host_rank"]


def host_rank() -> tuple[int, int]:
    """Return this process's number and the number of processes: `rank` and `world_size` of `open_loader`.

    Under SPMD a process drives all devices of its host, and torch_xla's ordinals are 0 of 1 in every process. Only on
    TPU v2 and v3 without SPMD, where two threads share a process, use the ordinals instead.
    """
    _require_no_tensorflow()
    with needing("xla", "loaders.xla"):
        import torch_xla.runtime as xr

    return xr.process_index(), xr.process_count()


def device_batches(
    loader: Loader,
    device: torch.device | None = None,
    *,
    mesh: Mesh | None = None,
    axis: str | tuple[str, ...] = "data",
    prefetch: int = 2,
) -> Generator[TorchBatch]:
    """Yield the rest of the loader's epoch through MpDeviceLoader, which calls `torch_xla.sync()` after every batch.

    When the iteration is left early, the loader continues after the batch that was yielded last.

    Args:
        loader: Loader that was opened with the numbers of `host_rank()` if there is a mesh.
        device: Device of the batches; by default the process's own.
        mesh: Mesh of all processes' devices under SPMD; without one the batch is not cut.
        axis: Axes of the mesh along which the batch is cut; the other axes get copies.
        prefetch: Number of batches prepared ahead of the yielded one; from the third on they wait in host memory.

    Raises:
        UsageError: The loader has another rank than this process, the batch cannot be cut along the axis, or TensorFlow
            was imported before torch_xla.
    """
    _require_no_tensorflow()
    with needing("xla", "loaders.xla"):
        import torch_xla

    sharding = None if mesh is None else _input_sharding(loader, mesh, axis)
    return _run(loader, torch_xla.device() if device is None else device, sharding, prefetch)


def _run(
    loader: Loader, device: torch.device, sharding: dict[str, ShardingSpec] | None, prefetch: int
) -> Generator[TorchBatch]:
    from torch_xla.distributed.parallel_loader import MpDeviceLoader

    batches, state = iter(loader), loader.state_dict()
    # Only the user's thread uses the loader, so that errors are raised there; MpDeviceLoader's threads see tensors.
    sent: SimpleQueue[dict[str, torch.Tensor] | None] = SimpleQueue()
    ahead: deque[Batch] = deque()
    # A prefetch size of 1, because MpDeviceLoader collects as many batches before it sends the first.
    devices = MpDeviceLoader(
        iter(sent.get, None), device, input_sharding=sharding, loader_prefetch_size=1, device_prefetch_size=1
    )

    def send(count: int) -> None:
        for batch in islice(batches, count):
            ahead.append(replace(batch, images=np.empty(0, np.uint8)))  # whose memory is needed again
            sent.put(_tensors(batch))
        if not ahead:
            sent.put(None)

    def end_threads() -> None:
        sent.put(None)
        devices._parallel_loader.close()  # torch_xla has no public way to end them

    on_devices = iter(devices)
    atexit.register(end_threads)  # a thread that still works when the interpreter ends would abort the process
    try:
        send(max(1, prefetch))
        for on_device in on_devices:
            beside = ahead.popleft()
            send(1)
            state = beside.state
            yield _torch_batch(beside, on_device)
        state = loader.state_dict()
    finally:
        end_threads()
        atexit.unregister(end_threads)
        loader.rewind(state)


def _input_sharding(loader: Loader, mesh: Mesh, axis: str | tuple[str, ...]) -> dict[str, ShardingSpec]:
    from torch_xla.distributed.spmd import ShardingSpec

    axes = (axis,) if isinstance(axis, str) else axis
    rows_per_part(loader.config, mesh.shape(), axes, host_rank())
    return {
        # minibatch: each process delivers its own rows. With one process, torch_xla refuses it for a mesh of two axes.
        name: ShardingSpec(mesh, (axes, *[None] * (dimensions - 1)), minibatch=loader.config.world_size > 1)
        for name, dimensions in array_dimensions(loader.config, loader.dataset.columns).items()
    }


def _require_no_tensorflow() -> None:
    if "tensorflow" in sys.modules and "torch_xla" not in sys.modules:
        raise UsageError(
            "TensorFlow was imported before torch_xla, which would abort this process; "
            "import torch_xla first, or TensorFlow in another process"
        )
