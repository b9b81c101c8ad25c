"""A run as it would be with other data: a sample on the local disk, fetched as from a bucket.

Its images pass through the loader's own way from buckets, with as many reads under way. Before one of them is given,
as many bytes of the bucket may be read as it has: so a dataset of smaller images is tried before it is built. Nothing
is read where a cache is to be tried, which the loader fills and reads itself.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from loaders.dataset import Dataset, open_dataset
from loaders.loader import Loader
from loaders.rows import impatient
from loaders.trial import Setup

if TYPE_CHECKING:
    from dataprep.storage.base import Storage

MAX_PLACES = 1024
"""In a bucket, read in turn."""


class Place(NamedTuple):
    """Where in a bucket bytes can be read."""

    file: str
    offset: int
    most_bytes: int
    """From there on."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """What is read for the images of a sample."""

    dataset: Dataset
    places: tuple[Place, ...]
    deadline_s: float
    """Of a read."""
    images_a_read: int = 1
    """So many come by one read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsalSetup(Setup):
    """A run on a sample: `url` is that of `stage_rates.write_sample`."""

    bucket: Bucket | None = None
    """None: nothing but the sample is read."""
    reads_in_flight: int
    """As the bucket's storage recommends."""

    def open(self) -> Loader:
        """The run's loader."""
        sample = open_dataset(self.url, self.split)
        return Loader(
            _RehearsedDataset(sample.url, sample.manifest, sample.split, self.bucket, self.reads_in_flight),
            self.config,
        )


def places_in(dataset: Dataset, deadline_s: float) -> tuple[Place, ...]:
    """Images of the first shard that has some, and in a shard what comes after them."""
    rows = dataset.rows(deadline_s)
    shard = next(number for number, each in enumerate(dataset.split.shards) if each["samples"])
    of_shard, shard_bytes = rows.rows(shard), dataset.split.shards[shard]["bytes"]
    found = []
    for row in range(min(MAX_PLACES, len(of_shard))):
        offset = int(of_shard.image_offset[row])
        most_bytes = int(of_shard.image_bytes[row]) if rows.is_folder else shard_bytes - offset
        found.append(Place(rows.file_of(shard, of_shard, row), offset, most_bytes))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _RehearsedDataset(Dataset):
    bucket: Bucket | None
    reads_in_flight: int

    def storage(self) -> Any:
        return _RehearsedStorage(Dataset.storage(self), self.bucket, self.reads_in_flight)


class _RehearsedStorage:
    """The sample's own; with a bucket, a read takes as long as one of as many bytes there."""

    is_local = False

    def __init__(self, sample: Storage, bucket: Bucket | None, reads_in_flight: int) -> None:
        self._sample, self._bucket, self.reads_in_flight = sample, bucket, reads_in_flight
        self.url, self.url_of = sample.url, sample.url_of
        self._reads = itertools.count()
        if bucket is not None:
            self._far = impatient(bucket.dataset.storage(), bucket.deadline_s)

    def read_range(self, name: str, offset: int, num_bytes: int) -> bytes:
        if self._bucket is not None:
            self._read_as_many(self._bucket, num_bytes)
        return self._sample.read_range(name, offset, num_bytes)

    def _read_as_many(self, bucket: Bucket, num_bytes: int) -> None:
        read, rest = divmod(next(self._reads), bucket.images_a_read)
        if rest:
            return  # it came with the image before
        file, offset, most_bytes = bucket.places[read % len(bucket.places)]
        self._far.read_range(file, offset, min(bucket.images_a_read * num_bytes, most_bytes))
