"""Rehearsal of a run with other data: a sample on the local disk, fetched as if from a bucket.

The sample is fetched by the loader's own code for buckets, with as many reads in flight. Before an image is delivered,
the same number of bytes is read from the real bucket, so that a dataset of smaller images can be tried before it is
built. To try a cache nothing is read from the bucket, because the loader fills and reads the cache itself.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from dataprep.dataset.links import open_data
from dataprep.storage import open_storage
from loaders.dataset import Dataset, open_dataset
from loaders.diagnosis.observed_run import RunSetup
from loaders.fetch.index import SplitIndex, with_deadline
from loaders.loader import Loader

if TYPE_CHECKING:
    from dataprep.storage.base import Storage

MAX_PLACES = 1024
"""Maximum number of places in a bucket that are read in turn."""


class Place(NamedTuple):
    """A place in a bucket where bytes can be read."""

    file: str
    offset: int
    most_bytes: int
    """Number of bytes from the offset to the end of the object."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Bucket that is read for its timing only: the bytes that a run uses are those of a local sample."""

    dataset: Dataset
    places: tuple[Place, ...]
    deadline_s: float
    """Deadline of a read, seconds."""
    images_per_read: int = 1
    """Number of images that one read brings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsalSetup(RunSetup):
    """A run on a sample; `url` is what `sample.write_sample` returned."""

    bucket: Bucket | None = None
    """Bucket to read from; None: only the sample is read."""
    reads_in_flight: int
    """Reads in flight that the bucket's storage recommends."""

    def open(self) -> Loader:
        """Open the run's loader."""
        sample = open_dataset(self.url, self.split)
        return Loader(
            _RehearsedDataset(
                sample.url, sample.manifest, sample.split, sample.named, self.bucket, self.reads_in_flight
            ),
            self.config,
        )


def places_in(dataset: Dataset, index: SplitIndex) -> tuple[Place, ...]:
    """Return the places of the images in the first shard that has some; a read at one may go on to the shard's end."""
    shard = next(number for number, each in enumerate(dataset.split.shards) if each["samples"])
    entries, shard_bytes = index.shard(shard), dataset.split.shards[shard]["bytes"]
    found = []
    for entry in range(min(MAX_PLACES, len(entries))):
        offset = int(entries.image_offset[entry])
        most_bytes = int(entries.image_bytes[entry]) if index.one_file_per_image else shard_bytes - offset
        found.append(Place(index.file_of(shard, entries, entry), offset, most_bytes))
    return tuple(found)


@dataclass(frozen=True)
class _RehearsedDataset(Dataset):
    bucket: Bucket | None
    reads_in_flight: int

    @cached_property
    def storage(self) -> Any:
        sample = open_data(open_storage(self.url), self.manifest, named=self.named)
        return _RehearsedStorage(sample, self.bucket, self.reads_in_flight)


class _RehearsedStorage:
    """Storage of the sample; with a bucket, each read also reads the same number of bytes from the bucket."""

    is_local = False

    def __init__(self, sample: Storage, bucket: Bucket | None, reads_in_flight: int) -> None:
        self._sample, self._bucket, self.reads_in_flight = sample, bucket, reads_in_flight
        self.url, self.url_of = sample.url, sample.url_of
        self._reads = itertools.count()
        if bucket is not None:
            self._far = with_deadline(bucket.dataset.storage, bucket.deadline_s)

    def read_range(self, name: str, offset: int, num_bytes: int) -> bytes:
        if self._bucket is not None:
            self._read_as_many(self._bucket, num_bytes)
        return self._sample.read_range(name, offset, num_bytes)

    def _read_as_many(self, bucket: Bucket, num_bytes: int) -> None:
        read, rest = divmod(next(self._reads), bucket.images_per_read)
        if rest:
            return  # the read for an earlier image of the block has brought these bytes
        file, offset, most_bytes = bucket.places[read % len(bucket.places)]
        self._far.read_range(file, offset, min(bucket.images_per_read * num_bytes, most_bytes))
