"""Check that a mesh of devices and a loader's batches fit together, for JAX and PyTorch/XLA alike."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from dataprep.errors import UsageError
from loaders.config import LoaderConfig


def rows_per_part(
    config: LoaderConfig, mesh_shape: Mapping[str, int], axes: tuple[str, ...], host_rank: tuple[int, int]
) -> int:
    """Return the rows of the global batch that one part of the mesh gets.

    Args:
        config: Settings of this process's loader.
        mesh_shape: Sizes of the mesh's axes.
        axes: Axes along which the batch is cut.
        host_rank: Number of this process, and the number of processes.

    Raises:
        UsageError: The loader has another rank than this process, the mesh has no such axis, or its parts would not be
            equal.
    """
    rank, world_size = host_rank
    if (config.rank, config.world_size) != host_rank:
        raise UsageError(
            f"the loader is rank {config.rank} of {config.world_size}, this process {rank} of {world_size}; "
            "open the loader with the rank and world_size of host_rank()"
        )
    if unknown := [axis for axis in axes if axis not in mesh_shape]:
        raise UsageError(f"the mesh has no axis {unknown[0]!r}; it has {', '.join(map(str, mesh_shape))}")
    num_parts = prod(mesh_shape[axis] for axis in axes)
    num_rows = config.batch_size // config.row_images
    if num_rows % num_parts:
        raise UsageError(
            f"a batch of {num_rows} cannot be cut into {num_parts} parts along {', '.join(axes)}; "
            "choose a multiple of it"
        )
    return num_rows // num_parts
