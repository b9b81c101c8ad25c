"""Which rows every device gets, as the devices themselves tell: a program of its own for each process of a world.

    python -m tests.support.multi_device jax URL RANK WORLD_SIZE PORT
    python -m tests.support.multi_device xla URL

prints, for each batch, the digests of the rows on each device of this process and their labels, the keys that the
adapter gave, the shape that the framework sees, and a sum over the batch that all devices together computed.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from loaders import Batch, open_loader

SETTINGS = {"batch_size": 12, "image_size": 64}
BATCHES = 4


@dataclass(frozen=True, slots=True)
class Placed:
    """One global batch as the bare loader has it, and as it lies on devices."""

    batch: Batch
    by_device: dict[str, list[tuple[str, int]]]
    """Key and label of each row of a device; the key is found by the row's pixels."""
    by_process: list[list[str]]
    """Keys that the adapter gave in each process."""
    shapes: list[list[int]]
    sums: list[int]


def placed(url: object, reports: list[list[dict[str, Any]]]) -> Iterator[Placed]:
    """The batches of a world, from what its processes say."""
    with open_loader(str(url), **SETTINGS) as loader:
        for batch, *parts in zip(loader, *reports, strict=False):
            keys = dict(zip(row_digests(batch.images), batch.keys, strict=True))
            by_device = {
                device: list(zip((keys[row] for row in rows), part["labels"][device], strict=True))
                for part in parts
                for device, rows in part["rows"].items()
            }
            yield Placed(
                batch,
                by_device,
                [part["keys"] for part in parts],
                [part["shape"] for part in parts],
                [part["sum"] for part in parts],
            )


def row_digests(images_NHWC: Any) -> list[str]:
    """Return the digest of each image."""
    return [hashlib.sha256(np.ascontiguousarray(image_HWC).tobytes()).hexdigest() for image_HWC in images_NHWC]


def on_jax(url: str, rank: str, world_size: str, port: str) -> list[dict[str, Any]]:
    import jax

    from loaders.jax import device_batches, host_rank

    if int(world_size) > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{port}", int(world_size), int(rank))
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    total = jax.jit(lambda images: images.astype("uint32").sum())
    report = []
    process, processes = host_rank()
    with open_loader(url, **SETTINGS, rank=process, world_size=processes) as loader:
        for batch in islice(device_batches(loader, mesh), BATCHES):
            rows = {shard.device.id: row_digests(np.asarray(shard.data)) for shard in batch.images.addressable_shards}
            labels = {shard.device.id: np.asarray(shard.data).tolist() for shard in batch.labels.addressable_shards}
            shape = list(batch.images.shape)
            report.append(_batch(rows, labels, batch.keys, shape, int(total(batch.images))))
    return report


def on_xla(url: str) -> list[dict[str, Any]]:
    import torch
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr

    xr.use_spmd()
    from loaders.xla import device_batches, host_rank

    num_devices = xr.global_runtime_device_count()
    mesh = xs.Mesh(np.arange(num_devices), (num_devices,), ("data",))
    report = []
    process, processes = host_rank()
    with open_loader(url, **SETTINGS, rank=process, world_size=processes) as loader:
        for batch in islice(device_batches(loader, mesh=mesh), BATCHES):
            images, labels = (xs.wrap_if_sharded(part).local_shards for part in (batch.images, batch.labels))
            rows_of = {shard.shard_device: row_digests(shard.data.numpy()) for shard in images}
            labels_of = {shard.shard_device: shard.data.tolist() for shard in labels}
            total = int(batch.images.to(torch.int32).sum())
            report.append(_batch(rows_of, labels_of, batch.keys, list(batch.images.shape), total))
    return report


def _batch(rows: Any, labels: Any, keys: list[str], shape: list[int], total: int) -> dict[str, Any]:
    return {"rows": rows, "labels": labels, "keys": keys, "shape": shape, "sum": total}


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print(json.dumps({"jax": on_jax, "xla": on_xla}[name](*arguments)))
