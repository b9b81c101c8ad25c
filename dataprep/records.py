"""The values that travel between the stages of a build: frozen, picklable, without behaviour of their own.

SampleRef -> (plan) -> ShardPlan -> (build) -> Sample, Placement, Event -> ShardReceipt -> (merge) -> Manifest
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

NO_LABEL = -1


@dataclass(frozen=True, slots=True)
class SampleRef:
    """Where one original image lies: a byte range of an archive, or a whole file."""

    key: str
    """Unique in its split ignoring case; characters `[A-Za-z0-9_/-]`, other bytes as `=XX`; at most 200 bytes."""
    source: str
    """The file that holds it, relative to the source root, e.g. `train2017.zip` or `train/n01440764/x.JPEG`."""
    offset: int
    """First byte of the image in `source`."""
    num_bytes: int
    label: int = NO_LABEL
    """Position in the sorted class list, or NO_LABEL."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One original archive, or one unpacked folder taken as a whole."""

    name: str
    """Relative to the source root."""
    num_bytes: int
    """Size of the archive; of a folder the sum of its image files."""


@dataclass(frozen=True, slots=True)
class Enumeration:
    """All references of one split, in the order of the originals."""

    refs: list[SampleRef]
    sources: list[SourceFile]
    classes: tuple[str, ...] = ()
    """Sorted: a label is a position in it. Empty where the dataset has no classes."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard to build: its name, and which samples it holds in which order."""

    index: int
    """Position among all shards of all splits; row group of `_build/plan.parquet`."""
    split: str
    split_index: int
    """Position among the shards of its split."""
    split_shards: int
    refs: tuple[SampleRef, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One checked image, ready to be written by any format."""

    key: str
    image: bytes
    """A JPEG file."""
    label: int
    class_name: str
    """Empty where the dataset has no classes."""
    height: int
    """Pixels; 0 where images are not checked (`--check none`)."""
    width: int
    orientation: int
    """EXIF orientation 1..8 as recorded in the file; 1 where there is none."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a format put a sample inside its shard, in bytes from the shard's start."""

    record_offset: int
    record_bytes: int
    image_offset: int
    image_bytes: int


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to an image that was not simply copied."""

    key: str
    kind: str
    """`repaired` (written, re-encoded) or `rejected` (not written)."""
    reason: str
    """A short fixed word, e.g. `png`, `cmyk`, `truncated`; counted in the manifest."""
    detail: str
    """One line for people."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """What the receipt of a shard says besides, where the bytes come from the web and cannot be made twice: the receipt
    decides which attempt is the shard (dataprep/laion/commit.py)."""

    attempt: str
    """Folder in which the files of that attempt wait to be put in place, under their own names."""
    files: tuple[dict[str, Any], ...]
    """The files beside the samples, each `{file, bytes, sha256, crc32c}`."""
    statuses: dict[str, int]
    """Rows by how they ended."""
    reasons: dict[str, int]
    """Rows by reason; `success` for those that have none."""
    allow_networks: tuple[str, ...] = ()
    """What was open to it beyond public addresses."""
    before: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of rows that were tried again: `statuses` and `reasons` that they had until then."""


@dataclass(frozen=True, slots=True)
class ShardReceipt:
    """Proof that one shard stands whole in its place, or, where it was `fetched`, waits to be put there; its index rows
    travel beside it in the receipt's file."""

    index: int
    split: str
    split_index: int
    file: str
    """Relative to the dataset's root."""
    samples: int
    num_bytes: int
    sha256: str
    """Hex. For an image folder: of its files' bytes, one after the other in the shard's order."""
    crc32c: str
    """Base64 of the big-endian value, as Cloud Storage writes it; the same range of bytes as `sha256`."""
    events: tuple[Event, ...] = ()
    fetched: Fetched | None = None


@dataclass(frozen=True, slots=True)
class SplitManifest:
    """One split of a finished dataset."""

    name: str
    samples: int
    num_bytes: int
    shards: tuple[dict[str, Any], ...]
    """Each `{file, samples, bytes, sha256, crc32c}`."""
    class_counts: tuple[int, ...]
    """Samples per label; empty where the dataset has no classes."""
    repeats: dict[str, int]
    """`{count, stored}`: passes an epoch makes, and how many of them are stored."""
    repaired: dict[str, int]
    rejected: dict[str, int]
    """Counts by reason."""
    index: dict[str, Any]
    """`{file, bytes, sha256}` of `index/<split>.parquet`."""
    events: dict[str, Any]
    """`{file, bytes, sha256}` of `index/<split>-events.parquet`."""
    statuses: dict[str, int] = field(default_factory=dict)
    """Of a table's rows: counts by how they ended; empty where the originals are no table."""
    reasons: dict[str, int] = field(default_factory=dict)
    """The same rows by reason, `success` for those that have none."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """`dataset.json`: it exists, therefore the dataset is whole."""

    name: str
    schema_version: str
    """`major.minor`; readers refuse an unknown major and read older ones for ever."""
    revision: int
    format: str
    plan_hash: str
    order_version: int
    options: dict[str, Any]
    sources: tuple[dict[str, Any], ...]
    """Each `{split, name, bytes, enumeration_sha256}`; of tables `{split, name, bytes, rows, sha256}`."""
    codecs: dict[str, str]
    licence: str
    origin: str
    classes: tuple[str, ...]
    shuffled: bool
    checked: str
    """`decode`, `header` or `none`."""
    partial: bool
    """True where `--allow-partial` let counts differ from the published ones."""
    splits: tuple[SplitManifest, ...]
    files: tuple[dict[str, Any], ...] = field(default=())
    """The dataset's own metadata files (TFDS), and those beside its shards: each `{file, bytes, sha256}`."""
