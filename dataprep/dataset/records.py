"""Values that pass between the stages of a build, frozen and picklable; labels and the names of their classes.

A value that every sample has is a tuple, which is made in a third of a dataclass's time.

SampleRef -> (plan) -> ShardPlan -> (build) -> Sample, Placement, Event -> ShardReceipt -> (merge) -> Manifest
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, NotRequired, Protocol, TypedDict

from msgspec import Meta

from dataprep.arrays import NDArray, np
from dataprep.dataset.documents import Count, JsonObject
from dataprep.dataset.features import Feature, Features
from dataprep.messages import shortened

NO_LABEL = -1
MISSING = -1
"""Offset of an image that did not exist when the build was planned."""
ALL_FILES = "*"
"""Name in a plan's sources for image files that have no common folder, or that tables name by path."""
MAX_KEY_BYTES = 200
MAX_REPEATS = 1_000
"""Maximum number of passes in an epoch."""
_DIGITS = 20
"""Number of leading digits of a class name that are compared and shown."""
_EXAMPLES = 3


class FileEntry(TypedDict):
    """A file of a dataset, as its manifest lists it."""

    file: str
    """Path relative to the dataset's root."""
    bytes: Count
    sha256: str
    """Hexadecimal."""


class IndexPart(FileEntry):
    """One of several files of an index."""

    shards: Count
    """Number of its shards, which follow the shards of the part before."""


class IndexEntry(FileEntry):
    """The index of a split, as its manifest lists it; see dataprep/dataset/index.py."""

    parts: NotRequired[list[IndexPart]]
    """Files of a large index; `file` is the pattern of their names then, `bytes` the sum of their sizes, and `sha256` a
    digest of their digests."""


class ShardEntry(TypedDict):
    """A shard of a dataset, as its manifest lists it; the digests of adopted shards may be empty."""

    file: str
    samples: Count
    bytes: Count
    sha256: str
    crc32c: str
    """Base64 of the big-endian value, as Cloud Storage writes it."""


class SidecarEntry(FileEntry):
    """A sidecar of a shard, as the shard's receipt lists it."""

    crc32c: str


class PlannedSource(TypedDict):
    """An original file, as a plan lists it by split: an archive or folder, or a table of URLs."""

    name: str
    bytes: Count
    rows: NotRequired[Count]
    sha256: NotRequired[str]
    """Digest of a table."""


class SourceEntry(PlannedSource):
    """An original file, as the manifest lists it."""

    split: str
    enumeration_sha256: NotRequired[str]
    """Hash of what was found in all archives of the split; a table has none."""


class Head(TypedDict):
    """Samples that a folder's index lists first, so that a loader can start before the others are listed."""

    shards: Annotated[int, Meta(ge=1)]
    samples: Annotated[int, Meta(ge=1)]
    plan: str
    """Hash of everything that determines their order."""


class AdoptedOptions(TypedDict, total=False):
    """The option `adopted` of a manifest: how the data of another tool were adopted."""

    kind: str
    """Tool or layout that the data come from."""
    data_url: str | None
    """URL of the data; None if they are next to the manifest."""
    labels: str | None
    splits: list[tuple[str, str]]
    """Names of splits, each with the pattern of its files."""
    digest: bool
    """Whether the index has the CRC32C of every image."""
    fields: dict[str, Count]
    """Fields next to the image, such as a caption, each with the number of samples that lack it. The count stays right
    when `retry-failed` adds images, because they have all fields."""
    heads: list[Head]
    """Samples of the split `train` that are listed first, each head including the earlier ones."""


class Repeats(TypedDict):
    """Numbers of passes of an epoch over a split."""

    count: Annotated[int, Meta(ge=1, le=MAX_REPEATS)]
    stored: Annotated[int, Meta(ge=1, le=MAX_REPEATS)]
    """Passes of an epoch whose samples are stored."""


class SampleRef(NamedTuple):
    """Place of one original image: a byte range of an archive, or a complete file."""

    key: str
    """Unique in its split ignoring case; characters `[A-Za-z0-9_/-]`, other bytes as `=XX`; at most 200 bytes."""
    source: str
    """File that holds the image, relative to the source root, e.g. `train2017.zip` or `train/n01440764/x.JPEG`."""
    offset: int
    """First byte of the image in `source`; MISSING for an image that does not exist, which the build rejects."""
    num_bytes: int
    label: int = NO_LABEL
    """Position in the sorted class list, or NO_LABEL."""
    annotations: bytes = b""
    """Values of the dataset's features for this sample (dataprep/dataset/features.py); empty if it has none."""
    crc32c: int | None = None
    """CRC32C that the image must have; None if unknown."""
    version: int = 0
    """Version of `source` that holds the image (`ObjectInfo.version`); 0 if unknown, or if `crc32c` is known."""


class References(Protocol):
    """References that are counted and read in their order: a list, or more than fit into memory."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[SampleRef]: ...


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One original archive, or one unpacked folder."""

    name: str
    """Relative to the source root."""
    num_bytes: int
    """Size of the archive; of a folder the sum of its image files."""
    sha256: str = ""
    """Hexadecimal digest of a table: of a parquet file's footer, or of all bytes of a text file; empty for others."""
    is_unpacked: bool = False
    """Whether its images are unpacked below the output (dataprep/sources/unpacked.py)."""
    version: int = 0
    """Version of an archive (`ObjectInfo.version`); 0 if unknown."""


@dataclass(frozen=True, slots=True)
class Enumeration:
    """All references of one split, in the order of the originals."""

    refs: References
    """The references: a list, or `SpilledReferences` (dataprep/dataset/spill.py), which take no memory."""
    sources: list[SourceFile]
    classes: tuple[str, ...] = ()
    """Names of the classes, sorted: a label is a position here. Empty where the dataset has no classes."""
    features: Features = field(default_factory=dict)
    """Types of the annotations."""
    is_checked: bool = False
    """Whether references have checksums of their images, where these are known."""
    notes: tuple[str, ...] = ()
    """Messages for the user about what was found; they are not stored."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard to build: its name, and its samples in their order."""

    index: int
    """Position among all shards of all splits; row group of `_build/plan.parquet`."""
    split: str
    split_index: int
    """Position among the shards of its split."""
    file: str
    refs: tuple[SampleRef, ...]


class Sample(NamedTuple):
    """One checked image, ready to be written by any format."""

    key: str
    image: bytes
    """A JPEG file."""
    label: int
    class_name: str
    """Empty where the dataset has no classes."""
    height: int
    """Pixels; 0 where images are not checked (`check` none)."""
    width: int
    orientation: int
    """EXIF orientation 1..8 as recorded in the file; 1 where there is none."""
    annotations: bytes = b""
    """Values of the dataset's features, as canonical JSON; empty if it has none."""


class Placement(NamedTuple):
    """Place of a sample inside its shard, in bytes from the shard's start."""

    record_offset: int
    record_bytes: int
    image_offset: int
    image_bytes: int


@dataclass(frozen=True, slots=True)
class Event:
    """An image that was repaired or rejected instead of copied."""

    key: str
    kind: str
    """`repaired` (written, re-encoded) or `rejected` (not written)."""
    reason: str
    """A short fixed word, e.g. `png`, `cmyk`, `truncated`; counted in the manifest."""
    detail: str
    """One line for people."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """Part of a shard's receipt for images that come from the web.

    A download cannot be repeated byte for byte, so the receipt decides which attempt becomes the shard
    (dataprep/fetched/shards.py).
    """

    attempt: str
    """Folder that holds the attempt's files, under their own names, until they are put in place."""
    files: tuple[SidecarEntry, ...]
    """Sidecars of the shard: the files that belong to the file of samples."""
    statuses: dict[str, Count]
    """Number of rows by status, i.e. by how they ended."""
    reasons: dict[str, Count]
    """Number of rows by reason; `success` for rows without a reason."""
    allow_networks: tuple[str, ...] = ()
    """Networks that the fetcher could reach beyond public addresses."""
    consents: tuple[str, ...] = ()
    """Policies on opt-outs under which rows were fetched."""
    before: dict[str, dict[str, Count]] = field(default_factory=dict)
    """Earlier `statuses` and `reasons` of rows that were tried again."""


@dataclass(frozen=True, slots=True)
class ShardReceipt:
    """Proof that one shard is complete and in its place; a shard with `fetched` may still wait to be put there.

    The shard's index rows are stored with it in the receipt's file.
    """

    index: int
    split: str
    split_index: int
    file: str
    samples: Count
    num_bytes: Count
    sha256: str
    """Hexadecimal digest of the shard's file; for an image folder, of its images one after the other."""
    crc32c: str
    """CRC32C of the same bytes as `sha256`: base64 of the big-endian value, as Cloud Storage writes it."""
    events: tuple[Event, ...] = ()
    fetched: Fetched | None = None


@dataclass(frozen=True, slots=True)
class SplitManifest:
    """One split of a finished dataset."""

    name: str
    samples: Count
    num_bytes: Count
    shards: tuple[ShardEntry, ...]
    class_counts: tuple[Count, ...]
    """Samples per label; empty where the dataset has no classes."""
    repeats: Repeats
    repaired: dict[str, Count]
    """Repaired images by reason."""
    rejected: dict[str, Count]
    """Rejected images by reason."""
    index: IndexEntry
    events: FileEntry
    statuses: dict[str, Count] = field(default_factory=dict)
    """Number of a table's rows by status; empty if the original files are not a table."""
    reasons: dict[str, Count] = field(default_factory=dict)
    """Number of a table's rows by reason; `success` for rows without a reason."""


class KeptSamples(Protocol):
    """The samples of a split that a view keeps; see dataprep/dataset/views.py."""

    stored: tuple[int, ...]
    """Number of samples that each shard stores."""

    def numbers(self, shard: int) -> NDArray[np.int64]:
        """Return the numbers of a shard's kept samples, ascending, shape (kept,)."""


@dataclass(frozen=True, slots=True)
class ViewedSplit(SplitManifest):
    """A split as if only the kept samples were stored: it counts these, but sizes of files stay."""

    kept: KeptSamples = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Change:
    """Change that a revision made to one split; see dataprep/dataset/revisions.py."""

    revision: Count
    """The revision that it made."""
    split: str
    kind: Literal["added", "removed"]
    shards: Count
    """Number of the split's shards before."""
    samples: Count
    """Number of its samples before."""
    removed: FileEntry | None = None
    """The list of the removed samples; None if shards were added."""


@dataclass(frozen=True, slots=True)
class DatasetHead:
    """The fields of a manifest that a loader needs."""

    name: str
    schema_version: str
    """`major.minor`; readers refuse an unknown major version, and always read older ones."""
    revision: Count
    format: str
    plan_hash: str
    order_version: Count
    options: JsonObject
    """Options that decided the dataset's bytes; for adopted data, `adopted`."""
    sources: tuple[SourceEntry, ...]
    codecs: dict[str, str]
    licence: str
    origin: str
    classes: tuple[str, ...]
    shuffled: bool
    checked: str
    """`decode`, `header` or `none`."""
    partial: bool
    """True if `allow_partial` let counts differ from the published ones."""
    splits: tuple[SplitManifest, ...]
    features: dict[str, Feature] = field(default_factory=dict)
    """Types of each sample's values other than image, key and label; the document omits an empty field."""
    converted_from: str = ""
    """URL, or folder name on a disk, of the dataset that this one was converted from; omitted if empty."""
    changes: tuple[Change, ...] = ()
    """Changes of the revisions after the first, the earliest first; the document omits an empty field."""


@dataclass(frozen=True, slots=True)
class Manifest(DatasetHead):
    """`dataset.json`: if it exists, the dataset is complete."""

    files: tuple[FileEntry, ...] = ()
    """The dataset's own metadata files (TFDS), and the sidecars of its shards."""


def class_name_of(label: int, classes: tuple[str, ...]) -> str | None:
    """Return the name of a label's class: empty if the dataset has no classes, None if no class has this label."""
    if not classes:
        return "" if label == NO_LABEL else None
    return classes[label] if 0 <= label < len(classes) else None


def labelled(manifest: Manifest) -> int:
    """Return the number of samples of all splits that have a label."""
    return sum(sum(split.class_counts) for split in manifest.splits)


def unlabelled(manifest: Manifest) -> dict[str, int]:
    """Return the number of samples without a label by split; splits without such samples are left out.

    Only data of other tools mix samples with and without a label.
    """
    counts = {split.name: split.samples - sum(split.class_counts) for split in manifest.splits}
    return {name: count for name, count in counts.items() if count > 0}


def renumbering(classes: tuple[str, ...]) -> str:
    """Return a line for the user if names of classes are integers other than the labels; else an empty text."""
    if not all(name.isascii() and name.isdecimal() for name in classes):
        return ""
    other = [(name, label) for label, name in enumerate(classes) if int(name[:_DIGITS]) != label]
    if not other:
        return ""
    listed = ", ".join(f"{shortened(name, _DIGITS)} is {label}" for name, label in other[:_EXAMPLES])
    return (
        f"labels are renumbered, 0 to {len(classes) - 1:,} in the order of the names of the classes: {listed}"
        f"{', ...' if len(other) > _EXAMPLES else ''}; dataset.json lists the names in classes, by label"
    )
