"""Batches as JAX arrays, each spread over the devices of all processes.

    rank, world_size = host_rank()
    with open_loader(url, batch_size=1024, rank=rank, world_size=world_size) as loader:
        for batch in device_batches(loader, mesh):
            step(batch.images, batch.labels)

Shapes: B images of the global batch, N of this process, H = W = `image_size`, C = 3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from dataprep.arrays import NDArray, np
from dataprep.errors import UsageError, needing
from loaders.decode.crop import RowView
from loaders.engine.batch import (
    Batch,
    LoaderState,
    PackBatch,
    ShownByShape,
    ViewBatch,
    arrays_of,
    fields_of,
    image_groups,
    rows_per_part,
)
from loaders.loader import Loader

if TYPE_CHECKING:
    import jax

__all__ = ["JaxBatch", "JaxPackBatch", "JaxViewBatch", "device_batches", "host_rank"]


@dataclass(frozen=True, slots=True, repr=False)
class JaxBatch(ShownByShape):
    """The global batch of one step; keys and other lists, which devices cannot hold, are only this process's."""

    images: jax.Array
    """(B, H, W, C), uint8, 0..255."""
    labels: jax.Array
    """(B,), int32; -1 where an image has no label."""
    mask: jax.Array
    """(B,), bool; False where a row holds no sample."""
    keys: list[str]
    """Keys of the N rows on this process's devices, in the order of the rows."""
    fields: dict[str, list[Any] | NDArray[Any] | jax.Array]
    """An array of the global batch for a column of arrays; for other fields, and columns of 64 bits, which JAX would
    cut to 32, the values of the same rows."""
    state: LoaderState
    """State for the loader's `load_state_dict`, which continues after this batch even if later ones are on devices."""
    views: list[RowView | None] | None = None
    """Crop, scale and flip of each image of the same rows, with the loader's setting `views`."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JaxPackBatch(JaxBatch):
    """The global batch of one step of packs: the shapes of `loaders.PackBatch`, with the rows of all ranks."""

    segments: jax.Array
    """int32; 0 in padding."""
    positions: jax.Array
    """int32."""
    token_mask: jax.Array
    """bool; False in padding."""
    grids: jax.Array
    """int32."""


@dataclass(frozen=True, slots=True, repr=False)
class JaxViewBatch(JaxBatch):
    """The global batch of one step with several views of each image."""

    images: tuple[jax.Array, ...]
    """For each group of views (B, views, H, W, C), uint8, 0..255."""


def host_rank() -> tuple[int, int]:
    """Return this process's number and the number of processes: `rank` and `world_size` of `open_loader`."""
    with needing("jax", "loaders.jax"):
        import jax

    return jax.process_index(), jax.process_count()


def device_batches(
    loader: Loader, mesh: jax.sharding.Mesh, *, axis: str | tuple[str, ...] = "data", prefetch: int = 2
) -> Generator[JaxBatch]:
    """Yield the rest of the loader's epoch on the devices of a mesh; a `PackLoader` makes batches `JaxPackBatch`, a
    `ViewLoader` `JaxViewBatch`.

    When the iteration is left early, the loader continues after the batch that was yielded last.

    Args:
        loader: Loader that was opened with the numbers of `host_rank()`.
        mesh: Mesh of all processes' devices.
        axis: Axes of the mesh along which the batch is cut; the other axes get copies.
        prefetch: Number of batches that are sent to the devices ahead of the one that is yielded.

    Raises:
        UsageError: The loader has another rank than this process, or the batch cannot be cut along the axis.
    """
    with needing("jax", "loaders.jax"):
        from jax.sharding import NamedSharding, PartitionSpec

    axes = (axis,) if isinstance(axis, str) else axis
    part_rows = rows_per_part(loader.config, mesh.shape, axes, host_rank())
    sharding = NamedSharding(mesh, PartitionSpec(axes))
    config = loader.config
    global_rows = config.batch_size // config.row_images
    indices = sharding.addressable_devices_indices_map((global_rows,)).values()
    num_rows, host_rows = part_rows * len({rows.start for (rows,) in indices}), global_rows // config.world_size
    if num_rows != host_rows:
        raise UsageError(
            f"the mesh gives {num_rows} rows of a batch to this process, its loader {host_rows}; "
            f"lay out the mesh so that each process has its own part along {', '.join(axes)}"
        )
    return _run(loader, sharding, prefetch)


def _run(loader: Loader, sharding: jax.sharding.NamedSharding, prefetch: int) -> Generator[JaxBatch]:
    own, state = iter(loader), loader.state_dict()
    global_rows = loader.config.batch_size // loader.config.row_images  # of the size that the iteration has
    batches = map(partial(_on_devices, sharding, global_rows), own)
    try:
        ahead = deque(islice(batches, prefetch))
        while True:
            ahead.extend(islice(batches, 1))
            if not ahead:
                state = loader.state_dict()
                return
            state = ahead[0].state
            yield ahead.popleft()
    finally:
        loader.rewind(state)


def _on_devices(sharding: jax.sharding.NamedSharding, global_rows: int, batch: Batch) -> JaxBatch:
    import jax

    arrays = {}
    for name, local in arrays_of(batch).items():
        if name.startswith("fields/") and local.itemsize == np.dtype(np.int64).itemsize:
            continue
        if local.dtype == np.int64:
            local = local.astype(np.int32)  # JAX has no int64 unless jax_enable_x64 is set
        shape = (global_rows, *local.shape[1:])
        arrays[name] = jax.make_array_from_process_local_data(sharding, local, shape)
    fields = fields_of(batch, arrays)
    if isinstance(batch, ViewBatch):
        images, labels, mask = image_groups(arrays), arrays["labels"], arrays["mask"]
        return JaxViewBatch(images, labels, mask, batch.keys, fields, batch.state)
    kind = JaxPackBatch if isinstance(batch, PackBatch) else JaxBatch
    others = {name: array for name, array in arrays.items() if not name.startswith("fields/")}
    return kind(**others, keys=batch.keys, fields=fields, state=batch.state, views=batch.views)
