"""What a shard format can do: samples to the bytes of one shard, and back. Knows nothing of where bytes lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from dataprep.records import Placement, Sample


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetInfo:
    """What a format's own metadata files need to know of the whole dataset."""

    name: str
    """As users write it, e.g. `coco-dup5`; formats derive their own spelling."""
    description: str
    citation: str
    licence: str
    classes: tuple[str, ...]
    shard_samples: Mapping[str, tuple[int, ...]]
    """For each split, the samples of each shard, in order."""
    split_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StoredSample:
    """A sample as read back from a shard, with its place in it."""

    sample: Sample
    placement: Placement


class ShardWriter(Protocol):
    """Writes samples one after the other to a stream it does not own."""

    def write(self, sample: Sample) -> Placement:
        """Append one sample. The bytes depend on the sample alone."""

    def close(self) -> None:
        """Write what ends a shard (a tar's two zero blocks). Leaves the stream open."""


class ShardFormat(Protocol):
    """A format whose shard is one file (WebDataset, TFRecord); the image folder is in imagefolder.py."""

    name: str

    def shard_file(self, dataset: str, split: str, index: int, total: int) -> str:
        """The shard's name relative to the dataset's root (design.md, section 3)."""

    def open_writer(self, stream: BinaryIO, *, has_classes: bool) -> ShardWriter:
        """A writer at the start of an empty stream."""

    def read_shard(self, stream: BinaryIO, *, classes: tuple[str, ...]) -> Iterator[StoredSample]:
        """The samples of one shard in order, in bounded memory. Reads hostile bytes: raises FormatError, with the
        offset, for anything that its writer would not have written (truncation, a bad checksum, a field missing,
        repeated or unknown, an absurd length)."""

    def metadata_files(self, info: DatasetInfo) -> dict[str, bytes]:
        """The dataset's own metadata, name to content; empty where the format has none."""
