"""Rehearsal of a run with other data: a sample in memory, fetched as if from a bucket or a disk.

The sample is fetched by the loader's own code for buckets, with as many reads in flight, or by that for disks. Before
an image is delivered, the same number of bytes is read from the real bucket or disk, so that a dataset of smaller
images can be tried before it is built. To try a cache nothing is read from the bucket, because the loader fills and
reads the cache itself.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from dataprep.dataset.adopted import open_data
from dataprep.dataset.randomness import permutation
from dataprep.storage import open_storage
from loaders.dataset import Dataset, open_dataset
from loaders.diagnosis.observed_run import RunSetup
from loaders.fetch.index import SplitIndex, with_deadline
from loaders.loader import Loader, loader_of

if TYPE_CHECKING:
    from dataprep.storage.base import Storage

MAX_PLACES = 1024
"""Maximum number of places in one shard that are read in turn."""
DISK_SHARDS = 64
"""Maximum number of shards of a disk with such places: more of them than a trial reads, because what is read again
comes from the page cache."""
_PLACES_APART = 7919
"""Number of places by which processes with successive numbers begin apart: a prime."""


class Place(NamedTuple):
    """A place in a bucket or on a disk where bytes can be read."""

    file: str
    offset: int
    most_bytes: int
    """Number of bytes from the offset to the end of the object."""


@dataclass(frozen=True, slots=True)
class Source:
    """Bucket or disk that is read for its timing only: the bytes that a run uses are those of a local sample."""

    dataset: Dataset
    places: tuple[Place, ...]
    deadline_s: float
    """Deadline of a read, seconds."""
    images_per_read: int = 1
    """Number of images that one read brings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsalSetup(RunSetup):
    """A run on a sample; `url` is what `sample.write_sample` returned."""

    source: Source | None = None
    """Bucket or disk to read from; None: only the sample is read, as from a bucket."""
    reads_in_flight: int
    """Reads in flight that the bucket's storage recommends."""

    def open(self) -> Loader:
        """Open the run's loader."""
        sample = open_dataset(self.url, self.split)
        dataset = _RehearsedDataset(
            sample.url, sample.manifest, sample.split, sample.named, self.source, self.reads_in_flight
        )
        return loader_of(dataset, self.config)


def places_in(dataset: Dataset, index: SplitIndex, *, shards: int = 1) -> tuple[Place, ...]:
    """Return places of images in the first shards that have some, in an order in which a disk cannot read ahead; a read
    at one may go on to the shard's end.

    Args:
        dataset: Bucket or disk that is read.
        index: Index of that dataset.
        shards: Maximum number of shards.
    """
    some = [number for number, each in enumerate(dataset.split.shards) if each["samples"]][:shards]
    found = []
    for shard in some:
        entries, shard_bytes = index.shard(shard), dataset.split.shards[shard]["bytes"]
        for entry in range(min(MAX_PLACES, len(entries))):
            offset = int(entries.image_offset[entry])
            most_bytes = int(entries.image_bytes[entry]) if index.one_file_per_image else shard_bytes - offset
            found.append(Place(index.file_of(shard, entries, entry), offset, most_bytes))
    return tuple(found[number] for number in permutation(len(found), seed=0, purpose="rehearsal"))


@dataclass(frozen=True)
class _RehearsedDataset(Dataset):
    source: Source | None
    reads_in_flight: int

    @cached_property
    def storage(self) -> Any:
        sample = open_data(open_storage(self.url), self.manifest, named=self.named)
        return _RehearsedStorage(sample, self.source, self.reads_in_flight)


class _RehearsedStorage:
    """Storage of the sample, which stays in memory; with a source, each read also reads the same number of bytes from
    it."""

    def __init__(self, sample: Storage, source: Source | None, reads_in_flight: int) -> None:
        self._sample, self._source, self.reads_in_flight = sample, source, reads_in_flight
        self.url, self.url_of = sample.url, sample.url_of
        self.is_local = source is not None and source.dataset.is_local
        self._kept: dict[tuple[str, int, int], bytes] = {}
        self._reads, self._first = itertools.count(), _PLACES_APART * os.getpid()
        if source is not None:
            self._real = with_deadline(source.dataset.storage, source.deadline_s)

    def read_range(self, name: str, offset: int, num_bytes: int, file_bytes: int | None = None) -> bytes:
        if self._source is not None:
            self._read_as_many(self._source, num_bytes)
        key = name, offset, num_bytes
        if key not in self._kept:
            self._kept[key] = self._sample.read_range(name, offset, num_bytes)
        return self._kept[key]

    def _read_as_many(self, source: Source, num_bytes: int) -> None:
        read, rest = divmod(next(self._reads), source.images_per_read)
        if rest:
            return  # the read for an earlier image of the block has brought these bytes
        file, offset, most_bytes = source.places[(self._first + read) % len(source.places)]
        self._real.read_range(file, offset, min(source.images_per_read * num_bytes, most_bytes))
