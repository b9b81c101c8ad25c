"""Batches as PyTorch tensors, and the normalisation that is the device's work.

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
from loaders.loader import Batch, Loader


@dataclass(frozen=True, slots=True)
class TorchBatch:
    """`loaders.Batch` with tensors for its arrays."""

    images: torch.Tensor
    """NHWC, uint8, 0..255."""
    labels: torch.Tensor
    """(N,), int64; -1 where there is none."""
    mask: torch.Tensor
    """(N,), bool; False: no sample."""
    keys: list[str]
    fields: dict[str, list[Any]]
    state: dict[str, Any]
    """For the loader's `load_state_dict`: goes on after this batch."""


class TorchBatches(IterableDataset[TorchBatch]):
    """A loader's batches, an epoch at a time, in the memory that the loader wrote.

    For `DataLoader(..., batch_size=None)`, whose own workers are refused: a loader decodes in threads and processes of
    its own, and workers would each bring the same batches.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        """Steps of the epoch of the next batch; another epoch's may be one more or less."""
        return len(self._loader)

    def __iter__(self) -> Iterator[TorchBatch]:
        """The rest of the epoch.

        Raises:
            UsageError: This is a worker process of a DataLoader.
        """
        if get_worker_info() is not None:
            _refuse_workers()
        for batch in self._loader:
            yield TorchBatch(**tensors(batch), keys=batch.keys, fields=batch.fields, state=batch.state)

    def __reduce__(self) -> NoReturn:
        _refuse_workers()


def tensors(batch: Batch) -> dict[str, torch.Tensor]:
    """The arrays of a batch by their names, sharing its memory."""
    return {name: torch.from_numpy(getattr(batch, name)) for name in ("images", "labels", "mask")}


def normalize(
    images_NHWC: torch.Tensor, *, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Subtract the mean and divide by the standard deviation, on the device where the images are.

    Args:
        images_NHWC: uint8, 0..255.
        mean: Of each channel, for values of 0..1.
        std: As the mean.
        dtype: Of the result; the arithmetic is in float32.

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
