"""Batches as PyTorch tensors, samples for PyTorch's DataLoader, and normalisation on the device.

    with open_loader(url, batch_size=256) as loader:
        for batch in DataLoader(TorchBatches(loader), batch_size=None):     # or in TorchBatches(loader)
            images_NCHW = normalize(batch.images.to(device), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

    samples = TorchSamples.open(url)                                        # for workers of the DataLoader
    sampler = OrderSampler(samples, batch_size=256, rank=rank, world_size=world_size)
    for batch in StatefulDataLoader(samples, batch_sampler=sampler, num_workers=8): ...

Both have PyTorch's `state_dict` and `load_state_dict`, so StatefulDataLoader, torchdata.nodes, Lightning and Accelerate
resume them after any batch; the states are the loader's, and fit any number of ranks.

Shapes: N images of this rank, H = W = `image_size`, C = 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

from dataprep.arrays import NDArray, np
from dataprep.errors import UsageError, needing
from loaders.decode.crop import RowView
from loaders.engine.batch import (
    ARRAYS,
    PACK_ARRAYS,
    Batch,
    LoaderState,
    PackBatch,
    ShownByShape,
    ViewBatch,
    arrays_of,
    fields_of,
    image_groups,
)
from loaders.loader import Loader
from loaders.samples import PADDING, Asked, Opened, Sample, Samples, Steps

with needing("torch", "loaders.torch"):
    import torch
    from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

if TYPE_CHECKING:
    from torchdata.nodes import BaseNode

__all__ = [
    "OrderSampler",
    "TorchBatch",
    "TorchBatches",
    "TorchPackBatch",
    "TorchSamples",
    "TorchViewBatch",
    "batch_node",
    "normalize",
    "rest_of_epoch",
]


@dataclass(frozen=True, slots=True, repr=False)
class TorchBatch(ShownByShape):
    """A `loaders.Batch` with tensors instead of arrays."""

    images: torch.Tensor
    """NHWC, uint8, 0..255."""
    labels: torch.Tensor
    """(N,), int64; -1 where an image has no label."""
    mask: torch.Tensor
    """(N,), bool; False where a row holds no sample."""
    keys: list[str]
    fields: dict[str, list[Any] | NDArray[Any] | torch.Tensor]
    """As in `loaders.Batch`, with tensors instead of arrays."""
    state: LoaderState
    """State for the loader's `load_state_dict`, which continues after this batch."""
    views: list[RowView | None] | None = None
    """Crop, scale and flip of each image, with the loader's setting `views`."""

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> TorchBatch:
        """Return the batch with its tensors on a device; Lightning and Accelerate call this."""
        moved = {each.name: self._moved(getattr(self, each.name), device, non_blocking) for each in fields(self)}
        return replace(self, **moved)

    def _moved(self, part: Any, device: torch.device | str, non_blocking: bool) -> Any:
        """Return a part with its tensors, also those in a tuple or dict, on a device; anything else unchanged."""
        if isinstance(part, torch.Tensor):
            return part.to(device, non_blocking=non_blocking)
        if part is self.fields:
            return {name: self._moved(each, device, non_blocking) for name, each in part.items()}
        return tuple(self._moved(each, device, non_blocking) for each in part) if isinstance(part, tuple) else part


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TorchPackBatch(TorchBatch):
    """A `loaders.PackBatch` with tensors of the same shapes instead of arrays."""

    segments: torch.Tensor
    """int32; 0 in padding."""
    positions: torch.Tensor
    """int32."""
    token_mask: torch.Tensor
    """bool; False in padding."""
    grids: torch.Tensor
    """int32."""
    segments_on_host: NDArray[np.int32]
    """The segments again, in the host's memory: masks are made from them without waiting for the device."""


@dataclass(frozen=True, slots=True, repr=False)
class TorchViewBatch(TorchBatch):
    """A `loaders.ViewBatch` with tensors instead of arrays."""

    images: tuple[torch.Tensor, ...]  # type: ignore[assignment]  # in place of one tensor
    """For each group of views a tensor NVHWC, uint8, 0..255."""


class TorchBatches(IterableDataset[TorchBatch]):
    """A loader's batches, one epoch at a time, in the memory that the loader wrote.

    Use it directly, or in `DataLoader(..., batch_size=None)` without workers: a loader has its own threads and
    processes, and each worker would deliver the same batches.

    PyTorch's tools ask once how long an epoch is, so all epochs of a training have the same number of batches,
    ceil(samples / batch_size). All batches are full: if an epoch's own batches do not suffice, it continues with
    batches of the loader's next epoch, and the following one begins where it ended.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        """Return the number of batches in every epoch."""
        return self._loader.order.equal_steps if self._loader.config.shuffle else len(self._loader)

    def __iter__(self) -> Iterator[TorchBatch]:
        """Yield the rest of the epoch; a `PackLoader` gives `TorchPackBatch`, a `ViewLoader` `TorchViewBatch`.

        Raises:
            UsageError: This is a worker process of a DataLoader.
        """
        if get_worker_info() is not None:
            _refuse_workers()
        return self._rest() if self._loader.config.shuffle else rest_of_epoch(self._loader)

    def _rest(self) -> Iterator[TorchBatch]:
        stop = self._loader.order.first_equal_batch(self.epoch + 1)
        while (first := self._step) < stop:
            yield from islice(rest_of_epoch(self._loader), stop - first)
            if self._step == first:  # a mixture has ended
                return

    @property
    def _step(self) -> int:
        """Number of the next batch of a training, counted over all epochs."""
        return self._loader.order.batch_at(self._loader.state_dict()["position"])

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next batch belongs to; epochs of the loader itself may have other lengths."""
        return self._loader.order.equal_epoch_of(self._step) if self._loader.config.shuffle else 0

    def set_epoch(self, epoch: int) -> None:
        """Go to the first batch of an epoch."""
        if self._loader.config.shuffle:
            order = self._loader.order_from(epoch)
            self._loader.rewind({"position": order.batch_start(order.first_equal_batch(epoch))})

    def state_dict(self) -> LoaderState:
        """Return the state after the last batch that was taken, for any number of ranks."""
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue after the batch of a state, which may come from another number of ranks.

        Raises:
            UsageError: The state belongs to another sequence; the message says what differs.
        """
        self._loader.load_state_dict(state_dict)

    def __reduce__(self) -> NoReturn:
        _refuse_workers()


class _Position(int):
    """Position in the loader's order, as distinct from the number of a stored sample."""


class TorchSamples(Samples, Dataset[Sample]):
    """Samples of one split as a map-style dataset; picklable, so that worker processes of a DataLoader may read it.

    `OrderSampler` asks for positions of the loader's order. Indices of all other samplers, such as `DataLoader(samples,
    shuffle=True)`, `DistributedSampler` and `Subset`, are numbers of stored samples. If images are augmented, their
    crops are drawn with PyTorch's generator, and differ in every epoch. PyTorch's collate function makes NHWC tensors
    of the images. A row without a sample, with the mask False, has the fields and the view of a sample, because this
    function does not take None.
    """

    def __len__(self) -> int:
        """Return the number of samples in an epoch, or in the requested `epochs`."""
        return self._epoch_samples * (self._epochs or 1)

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Return samples, in the order of the indices; up to 256 are read at once."""
        found = super().__getitems__(indices)
        empty = [each for each in found if not each["mask"]]
        if empty and {"fields", "view"} & empty[0].keys():
            example = next((each for each in found if each["mask"]), None) or super().__getitems__([_Position(0)])[0]
            for each in empty:
                each.update({name: example[name] for name in ("fields", "view") if name in example})  # type: ignore[typeddict-item]
        return found

    def _asked(self, found: Opened, index: int) -> Asked | None:
        if index == PADDING or isinstance(index, _Position) or not self.config.shuffle:
            return super()._asked(found, index)
        return Asked(int(torch.randint(2**40, ())), found.stored(index % self._stored))

    def _stop_of(self, index: int) -> int:
        return super()._stop_of(index) if isinstance(index, _Position) else len(self)


class OrderSampler(Steps, Sampler[list[int]]):
    """Batch sampler of one rank: the loader's batches, one epoch at a time, resumable by its state after each.

    All epochs have the same number of batches, as in `TorchBatches`. A plain DataLoader takes batches ahead and cannot
    say which it has delivered; torchdata's StatefulDataLoader can.
    """

    def _taken(self) -> Iterator[list[int]]:
        return ([_Position(each) for each in positions] for positions in super()._taken())


def rest_of_epoch(loader: Loader) -> Iterator[TorchBatch]:
    """Yield the batches of the rest of the loader's own epoch, which may have one batch more or less than another."""
    return (_torch_batch(batch, _tensors(batch)) for batch in loader)


def batch_node(loader: Loader) -> BaseNode[TorchBatch]:
    """Return a source of torchdata.nodes with the loader's batches; its state holds the loader's."""
    from torchdata.nodes import IterableWrapper

    return IterableWrapper(TorchBatches(loader))


def _tensors(batch: Batch) -> dict[str, torch.Tensor]:
    """Return the arrays of a batch as tensors by name; they share its memory."""
    return {name: torch.from_numpy(array) for name, array in arrays_of(batch).items()}


def _torch_batch(batch: Batch, arrays: Mapping[str, torch.Tensor]) -> TorchBatch:
    """Return a batch with tensors instead of arrays: a `TorchPackBatch` for packs, a `TorchViewBatch` for views."""
    others = batch.keys, fields_of(batch, arrays), batch.state, batch.views
    if isinstance(batch, ViewBatch):
        return TorchViewBatch(image_groups(arrays), arrays["labels"], arrays["mask"], *others)
    images, labels, mask = (arrays[name] for name in ARRAYS)
    if not isinstance(batch, PackBatch):
        return TorchBatch(images, labels, mask, *others)
    more: Mapping[str, Any] = {name: arrays[name] for name in PACK_ARRAYS if name not in ARRAYS}
    return TorchPackBatch(images, labels, mask, *others, **more, segments_on_host=batch.segments)


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
        "TorchBatches in a worker process of a DataLoader, expected num_workers=0: the loader has its own workers; "
        "set `processes` and `threads` of open_loader instead"
    )
