"""Datasets as sources and datasets of Grain, in the loader's order, from disk or gs:// without a mount.

    source = GrainSource.open("gs://bucket/imagenet", images="encoded", seed=7)
    dataset = grain.MapDataset.source(source)[rank::hosts].map(decode).batch(1024 // hosts)

    dataset = open_batches("gs://bucket/imagenet", batch_size=1024, rank=rank, world_size=hosts)
    iterator = iter(dataset.map(normalize))
    iterator.set_state(state)       # from any number of ranks

A source gives Grain single samples, which Grain's threads and processes may read, shuffle, pack and mix; `open_batches`
gives it the batches that the loader's own threads make. Shapes: NHWC, uint8, 0..255.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from dataprep.errors import UsageError, needing
from dataprep.storage import absolute
from loaders.config import LoaderConfig, LoaderSettings
from loaders.engine.batch import Batch, LoaderState
from loaders.loader import Loader, OpensLoader, open_configured, open_loader
from loaders.samples import Sample, Samples

with needing("grain", "loaders.grain"):
    import grain

if TYPE_CHECKING:
    pass

__all__ = ["GrainSource", "open_batches"]


class GrainSource(Samples):
    """Samples of one split as a `RandomAccessDataSource` of Grain; picklable.

    Grain compares its `repr` when it restores the state of a `grain.DataLoader`; it names the sequence, but not the
    URL.
    """

    def _getitems(self, indices: Sequence[int]) -> list[Sample]:
        """Return samples; Grain calls this method of sources that can read many at once."""
        return self.__getitems__(indices)


def open_batches(
    url: str | os.PathLike[str] | OpensLoader,
    split: str = "train",
    *,
    batch_size: int,
    epochs: int | None = None,
    **settings: Unpack[LoaderSettings],
) -> _BatchDataset:
    """Open a loader's batches as a dataset of Grain. Its elements are dictionaries of `images`, `labels`, `mask` and
    `keys`, and where the settings ask for them `fields` and `views`, as in `loaders.Batch`.

    Args:
        url: Folder or URL of a dataset, or of plain data such as pictures or tars, which are indexed first; or
            several datasets, as `loaders.mixture`.
        split: Name of a split.
        batch_size: Images in one step, over all ranks.
        epochs: Number of epochs after which the dataset ends; by default training has no end, and an evaluation has one
            epoch.
        settings: Other settings of `open_loader`.

    Raises:
        UsageError: There is no such dataset, split or setting, or a value has the wrong type or is out of range.
    """
    loader = open_loader(url, split, batch_size=batch_size, **settings)
    if epochs is not None and (not isinstance(epochs, int) or epochs < 1 or not loader.config.shuffle):
        raise UsageError(f"epochs must be None, or 1 or more of shuffled data, got {epochs!r}")
    return _BatchDataset(url, split, loader.config, epochs)


class _BatchDataset(grain.IterDataset):  # type: ignore[misc]  # Grain is imported without its types
    """Batches of a loader; picklable. Each iterator has its own loader, from the beginning of the first epoch.

    The iterators' states are the loader's: they continue with any number of ranks, and a state of another sequence is
    refused.
    """

    def __init__(
        self, url: str | os.PathLike[str] | OpensLoader, split: str, config: LoaderConfig, epochs: int | None
    ) -> None:
        super().__init__()
        self._url = url if isinstance(url, OpensLoader) else absolute(str(url))
        self._split, self._config, self._epochs = split, config, epochs

    def __iter__(self) -> _BatchIterator:
        return _BatchIterator(open_configured(self._url, self._split, self._config), self._epochs)

    def set_slice(self, part: slice, sequential_slice: bool = False) -> NoReturn:
        """Refuse several worker processes, because each would decode the others' images, too.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"open_batches in {part.step} worker processes of mp_prefetch, expected none or 1: the loader has its own "
            "workers; set `processes` of open_batches instead, or give Grain single samples by GrainSource"
        )

    def __str__(self) -> str:
        return f"BatchDataset({self._url}, {self._split}, batch_size={self._config.batch_size})"


class _BatchIterator(grain.DatasetIterator):  # type: ignore[misc]  # Grain is imported without its types
    """Batches from the loader's current place on, over all epochs."""

    def __init__(self, loader: Loader, epochs: int | None) -> None:
        super().__init__()
        self._loader, self._epochs = loader, epochs
        self._state = loader.state_dict()
        """State after the last batch that was taken; after an evaluation the loader itself is at the next one."""
        self._batches: Iterator[Batch] | None = None
        self._ended = self._is_past_the_end()

    def __next__(self) -> dict[str, object]:
        self._assert_not_closed()
        while not self._ended:
            is_first = self._batches is None
            self._batches = iter(self._loader) if self._batches is None else self._batches
            batch = next(self._batches, None)
            if batch is not None:
                self._state = batch.state
                return _element(batch)
            self._batches = None
            # A mixture may end; then its next epoch has no batch.
            self._ended = is_first or not self._loader.config.shuffle or self._is_past_the_end()
        raise StopIteration

    def get_state(self) -> LoaderState:
        """Return the state after the last batch that was taken: JSON, the same on every rank."""
        return self._state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue after the batch of a state, which may come from another number of ranks.

        Raises:
            UsageError: The state belongs to another sequence.
        """
        self._loader.load_state_dict(state)
        self._state, self._batches = self._loader.state_dict(), None
        self._ended = self._is_past_the_end()

    def _is_past_the_end(self) -> bool:
        """Whether the next batch belongs to a later epoch than the last one; a large batch may hold several epochs."""
        return self._epochs is not None and self._loader.epoch >= self._epochs

    def close(self) -> None:
        """End the threads and processes of the loader."""
        super().close()
        self._loader.close()


def _element(batch: Batch) -> dict[str, object]:
    element = {name: getattr(batch, name) for name in ("images", "labels", "mask", "keys")}
    if batch.fields:
        element["fields"] = batch.fields
    if batch.views is not None:
        element["views"] = batch.views
    return element
