"""The interface of a format: samples to the bytes of one shard, and back. A format does not know where bytes are
stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, ClassVar, Protocol

from dataprep.dataset.features import NO_FEATURES, Features
from dataprep.dataset.records import Placement, Sample


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetInfo:
    """Facts about the whole dataset that a format's own metadata files repeat."""

    name: str
    """Name as users write it, e.g. `coco-dup5`; formats derive their own spelling."""
    description: str
    citation: str
    licence: str
    classes: tuple[str, ...]
    shard_samples: Mapping[str, Sequence[int]]
    """By split, the number of samples of each shard, in order."""
    split_bytes: Mapping[str, int]
    """By split, bytes of all its shards."""
    features: Features = field(default_factory=dict)
    """Types of the values that each sample has besides image, key and label."""


@dataclass(frozen=True, slots=True)
class StoredSample:
    """A sample as it was read back from a shard, and its place there."""

    sample: Sample
    placement: Placement


class ShardWriter(Protocol):
    """Writes samples one after the other to a stream that it does not own."""

    def write(self, sample: Sample) -> Placement:
        """Append one sample, whose bytes depend on the sample alone, and return where it lies."""

    def close(self) -> None:
        """Write what ends a shard (a tar's two zero blocks). Leaves the stream open."""


class ShardFormat(ABC):
    """How the samples of a shard become bytes: packed into one file, or for an image folder a file each."""

    name: ClassVar[str]
    one_file_per_image: ClassVar[bool] = False
    """Whether every image is a stored object of its own, and a shard only a named group of images."""

    @abstractmethod
    def shard_file(self, dataset: str, split: str, index: int, total: int) -> str:
        """Return the shard's name relative to the dataset's root (the docstring of dataprep/dataset).

        Args:
            dataset: Name of the dataset, as users write it.
            split: Name of the split.
            index: Position of the shard in its split.
            total: Number of the split's shards.
        """

    def stored_files(self, shard_file: str) -> tuple[str, ...]:
        """Return the stored objects that follow from a shard's name: the file itself; none for an image folder."""
        return (shard_file,)

    def image_root(self, split: str, stored: int) -> str:
        """Return the folder below which the images of a split lie, one file each.

        Args:
            split: Name of the split.
            stored: Passes of an epoch that are stored.
        """
        return split

    def passes_written(self, stored: int) -> int:
        """Return how many of the stored passes are written as bytes; an image folder writes one, and links stand for
        the rest."""
        return stored

    @abstractmethod
    def open_writer(self, stream: BinaryIO, *, has_classes: bool, features: Features = NO_FEATURES) -> ShardWriter:
        """Return a writer at the start of an empty stream."""

    @abstractmethod
    def read_shard(
        self, stream: BinaryIO, *, classes: tuple[str, ...], features: Features = NO_FEATURES
    ) -> Iterator[StoredSample]:
        """Yield the samples of one shard in order, in bounded memory.

        Raises:
            FormatError: The bytes are not what the writer would have written: they end early, a checksum is wrong, a
                field is missing, repeated or unknown, a length is absurd. The text names the offset.
        """

    @abstractmethod
    def metadata_files(self, info: DatasetInfo) -> dict[str, bytes]:
        """Return the dataset's own metadata files, name to content; empty where the format has none."""
