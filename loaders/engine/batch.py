"""Batches of all kinds: their arrays by name, the state that each carries, and the sample of each row.

Shapes: NHWC, uint8, 0..255, for square images; packs and views say where they differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict, TypeVar

from msgspec import Meta

from dataprep.arrays import NDArray, np
from dataprep.dataset.documents import MAX_COUNT, Count
from dataprep.errors import UsageError
from loaders.config import LoaderConfig
from loaders.order import Order, Pick, stored_picks

if TYPE_CHECKING:
    from dataprep.dataset.column_files import OpenedColumn
    from loaders.decode.crop import RowView

T = TypeVar("T")


MAX_CHANGES = 1_000
"""Maximum number of changes of a run's data, which are all in its state."""


class MixtureChange(TypedDict):
    """Weights of a mixture's datasets from a position on, as states of 0.2.0 and before have them."""

    start: Count
    """Images of all ranks before the position."""
    weights: list[Count]
    """Weight of each dataset as a whole number, in the order of the run's datasets."""
    counts: list[Count]
    """Images of each dataset before the position."""
    epoch_samples: NotRequired[Annotated[int, Meta(ge=1, lt=MAX_COUNT)]]
    """Images in each epoch that begins from this position on, if that differs from the mixture's last number."""


class ViewIdentity(TypedDict):
    """A view that a run was loaded through."""

    name: str
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class DatasetIdentity(TypedDict):
    """A revision of a dataset, or a view of one."""

    name: str
    plan: str
    revision: Count
    view: NotRequired[ViewIdentity]


class Data(TypedDict):
    """The data of an order: a dataset, or a view of one."""

    dataset: DatasetIdentity
    samples: Annotated[int, Meta(ge=1)]
    samples_per_block: Annotated[int, Meta(ge=1)]


class EarlierData(Data):
    """Data of a run before its dataset or view changed."""

    stop: Count
    """Images of all ranks before the change."""
    epoch: Count
    """First epoch with all images of the new data."""
    start: Count
    """Images of all ranks before that epoch."""


class LoaderState(TypedDict):
    """Place where a loader continues, as JSON values."""

    state_version: int
    position: Count
    """Images of all ranks before the next batch, counted over all epochs."""
    epoch: Count
    sequence: dict[str, object]
    """Everything that the sequence of batches depends on."""
    batches: NotRequired[Annotated[list[Count], Meta(min_length=2, max_length=2)]]
    """Number and first position of the first batch of this size, if the run began with another one."""
    earlier: NotRequired[Annotated[list[EarlierData], Meta(max_length=MAX_CHANGES)]]
    """Data of the run before each change of revision or view."""
    mixture: NotRequired[Annotated[list[list[Count] | MixtureChange], Meta(min_length=1, max_length=MAX_CHANGES)]]
    """For each change of a mixture: its first position, the images in each epoch that begins from there on, and the
    weight of each dataset as a whole number, in the order of the run's datasets."""
    counts: NotRequired[list[Count]]
    """Images of each dataset before the last change, which follow from the weights before."""


class ShownByShape:
    """Base of batches: `print(batch)` shows shapes and the first key, no pixels."""

    __slots__ = ()

    def __repr__(self) -> str:
        parts = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        parts["state"] = {"position": self.state["position"]}  # type: ignore[attr-defined]
        shown = (f"{name}={text}" for name, text in zip(parts, map(_shape, parts.values()), strict=True))
        return f"{type(self).__name__}({', '.join(shown)})"


def _shape(part: Any) -> str:
    if hasattr(part, "shape"):
        return f"{part.dtype}{list(part.shape)}"
    if isinstance(part, tuple):
        return f"({', '.join(map(_shape, part))})"
    if isinstance(part, list) and len(part) > 1:
        return f"[{part[0]!r}, ... {len(part)}]"
    if isinstance(part, dict):
        return f"{{{', '.join(f'{name}: {_shape(each)}' for name, each in part.items())}}}"
    return repr(part)


@dataclass(frozen=True, slots=True, repr=False)
class Batch(ShownByShape):
    """One rank's part of one step."""

    images: NDArray[np.uint8]
    """(rows, size, size, 3); the memory is reused when nothing refers to it any longer."""
    labels: NDArray[np.int64]
    """(rows,); -1 where an image has no label."""
    keys: list[str]
    """Name of each image, unique in the split of its dataset; empty in the tail of an evaluation."""
    mask: NDArray[np.bool_]
    """(rows,); False where a row holds no sample: the tail of an evaluation, or an image that was skipped."""
    fields: dict[str, list[Any] | NDArray[Any]]
    """Values of the fields that the setting `fields` names, one for each row, or the `transform`'s results for them;
    None in the tail of an evaluation. A column of numbers or arrays of one shape is an array (rows, ...), 0 there."""
    state: LoaderState
    """State for `load_state_dict`, which continues after this batch."""
    views: list[RowView | None] | None = None
    """Crop, scale and flip of each image, with the setting `views`; None for a row without a sample."""


ARRAYS = {"images": 4, "labels": 1, "mask": 1}
"""Names of a batch's arrays, with their numbers of dimensions."""
PACK_ARRAYS = {"images": 3, "labels": 2, "mask": 2, "segments": 2, "positions": 3, "token_mask": 2, "grids": 3}
"""Names of a pack batch's arrays, with their numbers of dimensions."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PackBatch(Batch):
    """One rank's part of one step, with images as patches in rows of one length.

    The images of a row follow each other, each row by row of its own grid, and padding is at the end of the row.
    Shapes: R rows of this rank, T = `packs.tokens` tokens, M = `packs.images` images in a row. `images` are patches,
    (R, T, patch * patch * 3): the pixels of each row by row, 0 in padding. `labels`, `mask` and fields that are arrays
    are (R, M, ...); keys and other fields have an entry for each image, row by row: image m of row r is
    `keys[r * M + m]`.
    """

    segments: NDArray[np.int32]
    """(R, T): number of the token's image in its row, from 1 to M; 0 in padding."""
    positions: NDArray[np.int32]
    """(R, T, 2): row and column of each patch in its image's grid."""
    token_mask: NDArray[np.bool_]
    """(R, T); False in padding: the mask of keys in attention."""
    grids: NDArray[np.int32]
    """(R, M, 2): patches of each image along height and width; 0 where there is no image."""


@dataclass(frozen=True, slots=True, repr=False)
class ViewBatch(Batch):
    """One rank's part of one step, with several views of each image; labels, keys and so on have an entry an image."""

    images: tuple[NDArray[np.uint8], ...]  # type: ignore[assignment]  # in place of one array
    """For each group of views an array (rows, views, size, size, 3); the memory is reused as in `Batch`."""


def arrays_of(batch: Batch) -> dict[str, NDArray[Any]]:
    """Return the arrays of a batch by name, for adapters; groups of views are `images/0` and so on, and columns of
    arrays `fields/<name>`."""
    fields = {f"fields/{name}": each for name, each in batch.fields.items() if isinstance(each, np.ndarray)}
    if isinstance(batch, ViewBatch):
        images = {f"images/{number}": group for number, group in enumerate(batch.images)}
        return images | {name: getattr(batch, name) for name in ARRAYS if name != "images"} | fields
    return {name: getattr(batch, name) for name in (PACK_ARRAYS if isinstance(batch, PackBatch) else ARRAYS)} | fields


def image_groups(arrays: Mapping[str, T]) -> tuple[T, ...]:
    """Return the groups of views among the arrays of a `ViewBatch`, or among an adapter's conversions of them."""
    return tuple(array for name, array in arrays.items() if name.startswith("images/"))


def fields_of(batch: Batch, arrays: Mapping[str, T]) -> dict[str, list[Any] | NDArray[Any] | T]:
    """Return the fields of a batch; arrays are replaced by an adapter's conversions of them."""
    return {name: arrays.get(f"fields/{name}", values) for name, values in batch.fields.items()}


def array_dimensions(config: LoaderConfig, columns: Mapping[str, OpenedColumn]) -> dict[str, int]:
    """Return the names of the arrays of a loader's batches, as `arrays_of` has them, with their dimensions."""
    rows = 1 if config.packs is None else len(("rows", "images"))
    types = {f"fields/{name}": column.type for name, column in columns.items()}
    fields = {name: rows + len(kind.shape) for name, kind in types.items() if not kind.is_free}
    if config.view_groups:
        groups = {f"images/{number}": 5 for number in range(len(config.view_groups))}
        return groups | {name: dimensions for name, dimensions in ARRAYS.items() if name != "images"} | fields
    return (ARRAYS if config.packs is None else PACK_ARRAYS) | fields


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """The batches of one rank from `first_batch` on, all of one size; picklable. Training has no end, unless a ramp
    changes the size; an evaluation has one.

    With `parts` processes each takes every parts-th row of the rank's sequence, whatever batch the row is in.
    """

    order: Order
    shuffle: bool
    rank: int
    world_size: int
    first_batch: int
    part: int = 0
    parts: int = 1
    row_images: int = 1
    """Images in a row: 1, or more with packs, and then `parts` must divide the rank's rows."""

    @property
    def num_batches(self) -> int:
        """Number of batches in an evaluation; the last one is padded with rows that hold no sample."""
        return self.order.batch_at(self.order.num_samples - 1) + 1

    @property
    def batches_left(self) -> int | None:
        """Number of batches from the first one to the end, or to those of another size; None if neither is ahead."""
        return self._left(None if self.shuffle else self.num_batches)

    def _left(self, stop: int | None) -> int | None:
        stops = [] if stop is None else [stop]
        stops += [each.number for each in self.order.batches if each.number > self.first_batch]
        return max(0, min(stops) - self.first_batch) if stops else None

    def __iter__(self) -> Iterator[list[tuple[int, Pick]]]:
        """Yield for each batch its rows with their samples; padding rows are left out."""
        return islice(self._batches(), self.batches_left)

    def _batches(self) -> Iterator[list[tuple[int, Pick]]]:
        number, first, size = self.first_batch, self.order.batch_start(self.first_batch), self._size
        batch: list[tuple[int, Pick]] = []
        for pick in self._picks():
            while pick.position >= first + size:
                yield batch
                batch, number, first = [], number + 1, first + size
            batch.append((self._place((pick.position - first) // self.world_size), pick))
        for _ in range(number, self.num_batches):
            yield batch
            batch = []

    @property
    def _size(self) -> int:
        """Images of a batch, over all ranks."""
        return self.order.batches_with(self.first_batch).size

    def _place(self, image: int) -> int:
        """Return the place of the rank's i-th image of a batch, counted row by row: each row takes one after the other.

        So a row holds every R-th image of the global batch, where R is its number of rows, and a rank that has every
        W-th row reads the same samples as one that has every W-th image.
        """
        rows = self._size // self.world_size // self.row_images
        return image % rows * self.row_images + image // rows

    def _picks(self) -> Iterator[Pick]:
        number, first, size = self.order.batches_with(self.first_batch)
        row = (self.first_batch - number) * size // self.world_size  # in the rank's own sequence
        row += (self.part - row) % self.parts
        position, step = first + row * self.world_size + self.rank, self.world_size * self.parts
        if self.shuffle:
            return self.order.every(step, position)
        counts, at_once = self.order.shard_samples, self.order.samples_per_block
        return stored_picks(counts, first=position, step=step, samples_per_block=at_once)


def rows_per_part(
    config: LoaderConfig, mesh_shape: Mapping[str, int], axes: tuple[str, ...], host_rank: tuple[int, int]
) -> int:
    """Return the rows of the global batch that one part of the mesh gets if the batch is cut along these axes.

    Raises:
        UsageError: The loader has another rank than this process, the mesh has no such axis, or its parts would differ
            in size.
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
