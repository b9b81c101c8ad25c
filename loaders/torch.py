"""Batches as PyTorch tensors, and their normalisation on the device.

    with open_loader(url, batch_size=256) as loader:
        for batch in DataLoader(TorchBatches(loader), batch_size=None):     # or in TorchBatches(loader)
            images_NCHW = normalize(batch.images.to(device), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

Shapes: N images of this rank, H = W = `image_size`, C = 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.utils.data import IterableDataset, get_worker_info

from dataprep.errors import UsageError
from loaders.decode.boxes import RowView
from loaders.loader import Batch, Loader, LoaderState


@dataclass(frozen=True, slots=True)
class TorchBatch:
    """A `loaders.Batch` with tensors in place of arrays."""

    images: torch.Tensor
    """NHWC, uint8, 0..255."""
    labels: torch.Tensor
    """(N,), int64; -1 where an image has no label."""
    mask: torch.Tensor
    """(N,), bool; False where a row holds no sample."""
    keys: list[str]
    fields: dict[str, list[Any]]
    state: LoaderState
    """State for the loader's `load_state_dict`, which continues after this batch."""
    views: list[RowView | None] | None = None
    """How each image was cropped and flipped, with the loader's setting `views`."""


class TorchBatches(IterableDataset[TorchBatch]):
    """A loader's batches, one epoch at a time, in the memory that the loader wrote.

    Use it directly, or in `DataLoader(..., batch_size=None)` without workers: a loader has threads and processes of its
    own, and each worker would deliver the same batches.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        """Return the number of steps in the epoch of the next batch; other epochs may have one more or less."""
        return len(self._loader)

    def __iter__(self) -> Iterator[TorchBatch]:
        """Yield the rest of the epoch.

        Raises:
            UsageError: This is a worker process of a DataLoader.
        """
        if get_worker_info() is not None:
            _refuse_workers()
        for batch in self._loader:
            yield TorchBatch(
                **tensors(batch), keys=batch.keys, fields=batch.fields, state=batch.state, views=batch.views
            )

    def __reduce__(self) -> NoReturn:
        _refuse_workers()


def tensors(batch: Batch) -> dict[str, torch.Tensor]:
    """Return the arrays of a batch as tensors by name; they share its memory."""
    return {name: torch.from_numpy(getattr(batch, name)) for name in ("images", "labels", "mask")}


def normalize(
    images_NHWC: torch.Tensor, *, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Subtract the mean and divide by the standard deviation, on the device where the images are.

    Args:
        images_NHWC: uint8, 0..255.
        mean: Mean of each channel, for values from 0 to 1.
        std: Standard deviation of each channel, for values from 0 to 1.
        dtype: Type of the result; the arithmetic is in float32.

    Returns:
        images_NCHW, channels last in memory.
    """
    mean_C = 255 * torch.tensor(mean, device=images_NHWC.device)
    std_C = 255 * torch.tensor(std, device=images_NHWC.device)
    return ((images_NHWC - mean_C) / std_C).to(dtype).permute(0, 3, 1, 2)


def _refuse_workers() -> NoReturn:
    raise UsageError(
        "TorchBatches in a worker process of a DataLoader, expected num_workers=0: the loader has workers of its own; "
        "set `processes` and `threads` of open_loader instead"
    )
