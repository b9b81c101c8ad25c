"""Batches on the devices of PyTorch/XLA, cut along an axis of a mesh under SPMD.

    xr.use_spmd()
    rank, world_size = host_rank()
    with open_loader(url, batch_size=1024, rank=rank, world_size=world_size) as loader:
        for batch in device_batches(loader, mesh=mesh):
            images_NCHW = normalize(batch.images, mean=MEAN, std=STD)

Shapes: N images of this rank, H = W = `image_size`, C = 3; under SPMD tensors show the batch of all ranks.
"""

from __future__ import annotations

import atexit
import sys
from collections import deque
from collections.abc import Generator
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from dataprep.errors import UsageError
from loaders.loader import Loader
from loaders.mesh import rows_per_part
from loaders.torch import TorchBatch, tensors

if TYPE_CHECKING:
    import torch
    from torch_xla.distributed.spmd import Mesh


def host_rank() -> tuple[int, int]:
    """This process's number and how many there are: `rank` and `world_size` of `open_loader`.

    Under SPMD a process drives all devices of its host, and torch_xla's ordinals say 0 of 1 in every process. On TPU v2
    and v3 without SPMD two threads share a process: there the ordinals are right.
    """
    _require_no_tensorflow()
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
    """The rest of the loader's epoch, through MpDeviceLoader: every batch is a step, so `torch_xla.sync()` is called.

    When it is left, the loader goes on after the batch that was yielded last.

    Args:
        loader: Opened with `host_rank()` where there is a mesh.
        device: By default the process's own.
        mesh: Under SPMD, of all processes' devices; without one the batch is not cut.
        axis: Of the mesh, along which the batch is cut; other axes get copies.
        prefetch: Batches under way to the device beside the one that is yielded; more than two of them wait in memory.

    Raises:
        UsageError: The loader's rank is not this process's, the batch cannot be cut along the axis, or TensorFlow was
            imported before torch_xla.
    """
    _require_no_tensorflow()
    import torch_xla

    sharding = None if mesh is None else _input_sharding(loader, mesh, axis)
    return _run(loader, torch_xla.device() if device is None else device, sharding, prefetch)


def _run(loader: Loader, device: torch.device, sharding: dict[str, Any] | None, prefetch: int) -> Generator[TorchBatch]:
    from torch_xla.distributed.parallel_loader import MpDeviceLoader

    batches, state = iter(loader), loader.state_dict()
    # Its threads see tensors alone: the loader stays with the user's thread, and errors are raised there.
    sent: SimpleQueue[dict[str, torch.Tensor] | None] = SimpleQueue()
    ahead: deque[dict[str, Any]] = deque()
    # One at a time: it waits for as many as it may send before it sends the first.
    devices = MpDeviceLoader(
        iter(sent.get, None), device, input_sharding=sharding, loader_prefetch_size=1, device_prefetch_size=1
    )

    def send(count: int) -> None:
        for batch in islice(batches, count):
            ahead.append({"keys": batch.keys, "fields": batch.fields, "state": batch.state})
            sent.put(tensors(batch))
        if not ahead:
            sent.put(None)

    def end_threads() -> None:
        sent.put(None)
        devices._parallel_loader.close()  # there is no public way

    on_devices = iter(devices)
    atexit.register(end_threads)  # one that is at work when the interpreter ends aborts the process
    try:
        send(max(1, prefetch))
        for on_device in on_devices:
            beside = ahead.popleft()
            send(1)
            state = beside["state"]
            yield TorchBatch(**on_device, **beside)
    finally:
        end_threads()
        atexit.unregister(end_threads)
        loader.load_state_dict(state)


def _input_sharding(loader: Loader, mesh: Mesh, axis: str | tuple[str, ...]) -> dict[str, Any]:
    from torch_xla.distributed.spmd import ShardingSpec

    axes = (axis,) if isinstance(axis, str) else axis
    rows_per_part(loader.config, mesh.shape(), axes, host_rank())
    return {
        # minibatch: each process brings its own rows; alone, torch_xla would refuse a second axis of the mesh.
        name: ShardingSpec(mesh, (axes, *[None] * (dimensions - 1)), minibatch=loader.config.world_size > 1)
        for name, dimensions in (("images", 4), ("labels", 1), ("mask", 1))
    }


def _require_no_tensorflow() -> None:
    if "tensorflow" in sys.modules and "torch_xla" not in sys.modules:
        raise UsageError(
            "TensorFlow was imported before torch_xla, which would abort this process; "
            "import torch_xla first, or TensorFlow in another process"
        )
