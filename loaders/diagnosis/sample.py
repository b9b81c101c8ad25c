"""Samples of a run's images: small local datasets for measuring stages and trying changes.

A change that needs other data is rehearsed: the loader's own code for buckets or disks fetches the sample from memory,
and for each image reads the same number of bytes from the real bucket or disk. So a dataset of smaller images can be
tried before it is built. A trial of a cache reads nothing from the bucket, because the loader fills and reads the cache
itself.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dataprep.adoption import AdoptRequest, Quiet, adopt
from dataprep.builder.images import CheckedImage, ImagePolicy, check_image
from dataprep.dataset.adopted import open_data
from dataprep.dataset.randomness import permutation
from dataprep.errors import ImageError, StorageError
from dataprep.formats.tars import BLOCK_BYTES, members_around
from dataprep.host.cpu import available_cores
from dataprep.storage import open_storage
from loaders.dataset import Dataset, open_dataset
from loaders.decode.decoders import open_decoder
from loaders.diagnosis.observed_run import RunSetup
from loaders.fetch.index import DEADLINE_S, SplitIndex, with_deadline
from loaders.loader import Loader, loader_of

if TYPE_CHECKING:
    from dataprep.storage.base import Storage

SAMPLE_IMAGES = 512
"""Number of images in a sample: their mean cost is within a few percent of the dataset's."""
SAMPLE_QUALITY = 90
MIN_SHRUNK, MAX_SHRUNK = 64, 256
"""Smallest and largest number of images in a shrunk sample."""
SHRINKING_S = 3.0
"""Time limit for shrinking a sample, which continues until MIN_SHRUNK images are shrunk."""
SPLIT = "train"


def write_sample(images: Sequence[bytes], folder: Path, short_side: int | None = None, *, is_built: bool = True) -> str:
    """Write some images as a local dataset, one shard like a build's, and return its URL.

    Loading it takes as much CPU time for an image as loading the dataset itself. A file for each image and an index
    without sizes would cost 10 us more an image, a tenth of decoding a small one.

    Args:
        images: Encoded images.
        folder: Folder of the dataset; it must not exist yet.
        short_side: Short side to which the images are shrunk as a build would; by default they stay as they are.
        is_built: Whether the index has sizes and checksums of the images, like a build's, or neither, like the index of
            most adopted data.

    Raises:
        StorageError: None of the images can be shrunk.
    """
    shard, index = folder / "shards" / SPLIT / "sample.tar", folder / "index"
    shard.parent.mkdir(parents=True)
    written = 0
    with shard.open("wb") as stream:
        for image in images if short_side is None else _shrunk(images, short_side):
            fields = {b".json": _sides(image)} if is_built else {}
            head, tail = members_around(b"%06d" % written, _suffix(image), len(image), fields)
            stream.writelines((head, image, tail))
            written += 1
        stream.write(bytes(2 * BLOCK_BYTES))
    if not written:
        raise StorageError(f"{folder}: none of the images could be kept as a sample; run `dataprep verify --deep`")
    request = AdoptRequest(url=str(folder / "shards"), index_url=str(index), labels="none", digest=is_built)
    adopt(request, Quiet())
    return str(index)


def pixels_left(images: Sequence[bytes], short_side: int) -> float:
    """Return the share of pixels that remains if the images are stored with a short side; 1 if none is shrunk.

    Args:
        images: Encoded images; only their headers are read, and unreadable ones do not count.
        short_side: Short side to which larger images are shrunk, pixels.
    """
    sizes = [size for image in images if (size := _size(image)) is not None]
    left = [height * width * min(1.0, short_side / min(height, width)) ** 2 for height, width in sizes]
    return sum(left) / sum(height * width for height, width in sizes) if sizes else 1.0


def _size(image: bytes) -> tuple[int, int] | None:
    """Return height and width in pixels; None if the image cannot be read."""
    try:
        return open_decoder().image_size(image)
    except ImageError:
        return None


def _sides(image: bytes) -> bytes:
    """Return height and width as JSON; an empty object if the image cannot be read."""
    if (size := _size(image)) is None:
        return b"{}"
    height, width = size
    return json.dumps({"height": height, "width": width}).encode()


def sample_streams(num_streams: int, *, samples: int, of_sample: int) -> int:
    """Return the number of streams for planning a sample, so that each has as many images as a stream of the split.

    Planning a stream costs as much time as a few images, whatever its length. With all streams of the split, planning
    an image of a small sample would take several times as long.
    """
    return max(1, min(num_streams, round(num_streams * of_sample / samples)))


def _shrunk(images: Sequence[bytes], short_side: int) -> Iterator[bytes]:
    """Yield shrunk images until the time is over; images that cannot be decoded are left out."""
    policy = ImagePolicy(short_side=short_side, quality=SAMPLE_QUALITY)
    until_s = time.perf_counter() + SHRINKING_S
    threads = available_cores()
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, min(len(images), MAX_SHRUNK), threads):
            if first >= MIN_SHRUNK and time.perf_counter() > until_s:
                return
            for found in pool.map(lambda image: check_image("", image, policy), images[first : first + threads]):
                if isinstance(found, CheckedImage):
                    yield found.image


def _suffix(data: bytes) -> bytes:
    return b".png" if data.startswith(b"\x89PNG") else b".webp" if data[8:12] == b"WEBP" else b".jpg"


def mean_image_bytes(sample_url: str) -> float:
    """Return the mean size of a sample's images."""
    return open_dataset(sample_url, SPLIT).open_index(DEADLINE_S).mean_image_bytes()


MAX_PLACES = 1024
"""Maximum number of places in one shard that are read in turn."""
DISK_SHARDS = 64
"""Maximum number of shards on a disk that have such places: more than a trial reads, because a second read would come
from the page cache."""
_PLACES_APART = 7919
"""Distance, in places, between the starts of successive processes: a prime."""


class Place(NamedTuple):
    """A place in a bucket or on a disk where bytes can be read."""

    file: str
    offset: int
    most_bytes: int
    """Number of bytes from the offset to the end of the object."""


@dataclass(frozen=True, slots=True)
class Source:
    """Bucket or disk that is read only for the time it takes; the images come from a local sample."""

    dataset: Dataset
    places: tuple[Place, ...]
    deadline_s: float
    """Deadline of a read, seconds."""
    images_per_read: int = 1
    """Number of images that one read brings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsalSetup(RunSetup):
    """A run on a sample; `url` is the result of `write_sample`."""

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
    """Return places of images in the first shards with images, in an order that makes a disk's read-ahead useless; a
    read may extend to the end of the shard.
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
    """Storage of the sample, in memory; with a source, each read also reads as many bytes from it."""

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
