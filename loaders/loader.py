"""Batches of a dataset: the same for one seed wherever they are made, resumable after each, for any number of ranks.

    with open_loader("gs://bucket/imagenet", batch_size=1024, rank=0, world_size=4) as loader:
        for batch in loader:                 # one epoch; the next `for` goes on with the next one
            step(batch.images, batch.labels)
            save(batch.state)                # resumes after this batch, in a world of another size too

Shapes: NHWC, uint8, 0..255; mean and standard deviation are the device's work, at a quarter of the bytes to transfer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dataprep.errors import UsageError
from dataprep.plan import differences
from loaders.config import LoaderConfig
from loaders.dataset import Dataset, open_dataset
from loaders.decode import decoder_name
from loaders.fetch import check_budget
from loaders.fields import check_fields
from loaders.order import Order, check_world, samples_per_block
from loaders.plan import Planned
from loaders.producer import Producer, open_producer
from loaders.stats import Stats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's part of one step."""

    images: NDArray[np.uint8]
    """(rows, size, size, 3). Its memory is used again once nothing refers to it."""
    labels: NDArray[np.int64]
    """(rows,); -1 where there is none."""
    keys: list[str]
    mask: NDArray[np.bool_]
    """(rows,); False: no sample, but the tail of an evaluation or an image that was skipped."""
    fields: dict[str, list[Any]]
    state: dict[str, Any]
    """For `load_state_dict`: goes on after this batch. JSON, under 4 KB."""


def open_loader(
    url: str,
    split: str = "train",
    *,
    batch_size: int,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    shuffle: bool | None = None,
    augment: bool | None = None,
    **settings: Any,
) -> Loader:
    """Open a loader over one split.

    Args:
        url: Of the dataset, a folder or gs://.
        split: One of the dataset's.
        batch_size: Images of one step, of all ranks together.
        shuffle: By default only the split `train` is.
        augment: Random crops and flips; by default where it is shuffled.
        settings: Any other field of `LoaderConfig`.

    Raises:
        UsageError: No such dataset, split or setting, or a value out of its range.
    """
    shuffle = split == "train" if shuffle is None else shuffle
    unknown = settings.keys() - LoaderConfig.__dataclass_fields__.keys()
    if unknown:
        known = ", ".join(sorted(LoaderConfig.__dataclass_fields__))
        raise UsageError(f"no setting {', '.join(sorted(unknown))}; there are {known}")
    config = LoaderConfig(
        batch_size=batch_size,
        seed=seed,
        rank=rank,
        world_size=world_size,
        shuffle=shuffle,
        augment=shuffle if augment is None else augment,
        **settings,
    )
    return Loader(open_dataset(url, split, config.region_policy), config)


class Loader:
    """Iterates over batches, an epoch at a time.

    Training goes on where the last batch that was taken left off, evaluation starts again each time.
    """

    def __init__(self, dataset: Dataset, config: LoaderConfig) -> None:
        check_world(config.batch_size, config.rank, config.world_size)
        if config.fields:
            check_fields(dataset.manifest.format, config.fields)
        self.dataset, self.config = dataset, config
        self._stats = Stats()
        self._skipped: Counter[str] = Counter()
        rows = dataset.rows(config.deadline_s)
        counts = tuple(shard["samples"] for shard in dataset.split.shards)
        at_once = samples_per_block(
            sum(counts),
            rows.mean_image_bytes(),
            block_bytes=config.block_bytes,
            num_streams=config.num_streams,
            window=config.window,
        )
        if config.shuffle and not dataset.manifest.shuffled:
            at_once = 1  # neighbours in a shard are of one class: blocks of them would make batches of few classes
        self.order = Order(
            shard_samples=counts,
            seed=config.seed,
            global_batch=config.batch_size,
            samples_per_block=at_once,
            passes=dataset.passes if config.shuffle else 1,
            num_streams=config.num_streams,
            window=config.window,
        )
        if config.shuffle and not dataset.storage().is_local:
            sharers = max(1, config.processes)  # each fetches for itself
            at_most = config.prefetch_bytes // sharers
            check_budget(self.order, config.world_size * sharers, rows.mean_image_bytes(), at_most)
        self._batch = 0
        """The next one to be taken, counted over all epochs."""
        self._producer: Producer | None = None

    @property
    def epoch(self) -> int:
        """Of the next batch."""
        return self.order.epoch_of(self._batch) if self.config.shuffle else 0

    def __len__(self) -> int:
        """Steps of the epoch of the next batch."""
        if not self.config.shuffle:
            return -(-self.order.num_samples // self.config.batch_size)
        return self.order.steps(self.epoch)

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the epoch."""
        if not self.config.shuffle:
            self._go_to(0)
        stop = self._end_of_epoch()
        while self._batch < stop:
            if self._producer is None:
                self._producer = open_producer(self.dataset, self.config, self._planned(self._batch), self._stats)
            try:
                rows = next(self._producer)
            except BaseException:
                self.close()
                raise
            self._batch += 1
            self._skipped.update(rows.skipped)
            yield Batch(rows.images, rows.labels, rows.keys, rows.mask, rows.fields, self.state_dict())

    def set_epoch(self, epoch: int) -> None:
        """Go to the first batch of an epoch."""
        if self.config.shuffle:
            self._go_to(self.order.first_batch(epoch))

    def state_dict(self) -> dict[str, Any]:
        """Goes on after the last batch that was taken: the position, and all that the sequence depends on."""
        return {
            "state_version": STATE_VERSION,
            "position": self._batch * self.config.batch_size,
            "epoch": self.epoch,
            "sequence": self._sequence,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state says, which may come from a world of another size.

        Raises:
            UsageError: The state is of another sequence; the message says what differs.
        """
        if state.get("state_version") != STATE_VERSION:
            raise UsageError(f"state of version {state.get('state_version')}, this loader takes {STATE_VERSION}")
        lines = differences(self._sequence, dict(state["sequence"]))
        if lines:
            what = "; ".join(line.replace(" there", " in the state") for line in lines)
            raise UsageError(f"{self.dataset.url}: the state is of another sequence: {what}; use the same settings")
        self._go_to(int(state["position"]) // self.config.batch_size)

    def stats(self) -> dict[str, Any]:
        """`stages` (items, busy_s, get_wait_s, put_wait_s of each), `fetch` and `skipped` (counts by reason)."""
        fetch = self._producer.fetch_stats() if self._producer is not None else {}
        return {"stages": self._stats.snapshot(), "fetch": fetch, "skipped": dict(self._skipped)}

    def close(self) -> None:
        """End threads and processes. The loader can be used again, and starts them anew."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _go_to(self, batch: int) -> None:
        if batch != self._batch or not self.config.shuffle:
            self.close()
        self._batch = batch

    def _end_of_epoch(self) -> int:
        return self.order.first_batch(self.epoch + 1) if self.config.shuffle else len(self)

    def _planned(self, batch: int) -> Planned:
        config = self.config
        return Planned(
            order=self.order,
            shuffle=config.shuffle,
            rank=config.rank,
            world_size=config.world_size,
            first_batch=batch,
        )

    @cached_property
    def _sequence(self) -> dict[str, Any]:
        manifest = self.dataset.manifest
        return {
            "dataset": {"name": manifest.name, "plan": manifest.plan_hash, "revision": manifest.revision},
            "split": self.dataset.split.name,
            "samples": self.order.num_samples,
            "samples_per_block": self.order.samples_per_block,
            "passes": self.order.passes,
            "decoder": decoder_name(self.config),
            **self.config.sequence_document(),
        }
