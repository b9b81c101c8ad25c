"""What `dataprep bench` measures: a section for each dataset, in it a row for each loader. Values only.

Rates are images/s, MB are 10^6 bytes. `to_document` is the JSON that `--json` prints.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

SCHEMA_VERSION = 1

OURS = "dataprep"
"""The name of our loader among the others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageShare:
    """One stage of our loader: where its threads spent their time. The three shares add up to 1."""

    name: str
    busy_share: float
    get_wait_share: float
    """Waited for the stage before."""
    put_wait_share: float
    """Waited for the stage after."""
    busy_ms_per_image: float
    """Of all its threads together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRow:
    """One loader on one dataset: medians of the rounds."""

    loader: str
    """`dataprep`, or a name of `loaders.peers.PEERS`."""
    layout: str
    """What it read: `imagefolder`, `webdataset`, `tfrecord`, `mds` or `array_record`."""
    data: Literal["original", "copy"]
    """The dataset's own files, or a copy of some of its images that was made for the comparison."""
    interpolation: str
    images_per_s: float
    """After the first batches."""
    slowest_images_per_s: float
    fastest_images_per_s: float
    mb_per_s: float
    """Of encoded images."""
    cpu_ms_per_image: float
    """User and system time of all its processes."""
    first_batch_s: float
    """From exec to the first batch, imports included."""
    largest_mb: float
    """Peak memory of its largest process."""
    sum_mb: float
    """Of the peaks of all its processes; pages that they share count once for each."""
    rounds_images_per_s: tuple[float, ...]
    version: str = ""
    """Of its package."""
    stages: tuple[StageShare, ...] = ()
    """Of our loader; nobody else counts them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """A loader without a row."""

    loader: str
    reason: str
    """One line, with what to do about it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchSection:
    """One dataset."""

    url: str
    """As it was given; several tars are joined by blanks."""
    split: str
    layout: str
    """Of the dataset's own files."""
    samples: int
    """Stored in the split."""
    bytes_per_image: float
    """Encoded, mean."""
    copied_images: int
    """Of the copy for those that read another layout; 0 where none was needed."""
    copied_bytes_per_image: float
    rows: tuple[BenchRow, ...]
    """The fastest first."""
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchTable:
    """Everything that a report shows."""

    sections: tuple[BenchSection, ...]
    settings: dict[str, Any]
    """`batch_size`, `image_size`, `workers`, `rounds`, and `seconds` or `batches` of a round; the other is None."""
    machine: dict[str, Any]
    """`cores`, `python`, `platform`, `memory_bytes` and versions."""


def to_document(table: BenchTable) -> dict[str, Any]:
    """JSON values."""
    return {"schema_version": SCHEMA_VERSION, **asdict(table)}
