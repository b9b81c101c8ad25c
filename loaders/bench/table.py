"""Result of `dataprep bench`: a section for each dataset, with a row for each loader.

Rates are images/s, MB are 10^6 bytes. `to_document` is the JSON that `--json` prints.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, TypedDict

from dataprep.host.versions import MachineDocument

SCHEMA_VERSION = 1

OURS = "dataprep"
"""Name of our loader among the others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageShare:
    """Where the threads of one stage of our loader spent their time; the three shares add up to 1."""

    name: str
    busy_share: float
    get_wait_share: float
    """Share of the time in which the stage's threads waited for the stage before it."""
    put_wait_share: float
    """Share of the time in which the stage's threads waited for the stage after it."""
    busy_ms_per_image: float
    """Working time for one image, summed over all threads of the stage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRow:
    """One loader on one dataset: medians of the rounds."""

    loader: str
    """Name of the loader: `dataprep`, or one of `loaders.bench.peers.PEERS`."""
    layout: str
    """Layout that it read: `imagefolder`, `webdataset`, `tfrecord`, `mds` or `array_record`."""
    data: Literal["original", "copy"]
    """Whether it read the dataset's own files, or a copy of some images that was made for the comparison."""
    interpolation: str
    images_per_s: float
    """Median rate, not counting the first batches."""
    slowest_images_per_s: float
    fastest_images_per_s: float
    mb_per_s: float
    """Rate at which encoded images are read, 10^6 bytes per second."""
    cpu_ms_per_image: float
    """User and system time for one image, over all processes of the loader."""
    first_batch_s: float
    """Time from exec to the first batch, including imports."""
    largest_mb: float
    """Peak memory of the loader's largest process, 10^6 bytes."""
    sum_mb: float
    """Sum of the peaks of all processes of the loader, 10^6 bytes; pages that they share count once for each."""
    rounds_images_per_s: tuple[float, ...]
    version: str = ""
    """Version of the loader's package."""
    stages: tuple[StageShare, ...] = ()
    """Stages of our loader; empty for other loaders, which do not report theirs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """A loader without a row."""

    loader: str
    reason: str
    """Why it is left out and what to do about it, in one line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchSection:
    """Results on one dataset."""

    url: str
    """URL as it was given; several tars are joined by blanks."""
    split: str
    layout: str
    """Layout of the dataset's own files."""
    samples: int
    """Samples stored in the split."""
    bytes_per_image: float
    """Mean size of an encoded image."""
    copied_images: int
    """Images in the copy for loaders that need another layout; 0 where no copy was needed."""
    copied_bytes_per_image: float
    rows: tuple[BenchRow, ...]
    """Loaders, the fastest first."""
    left_out: tuple[LeftOut, ...]


class Settings(TypedDict):
    """How all loaders were run."""

    batch_size: int
    image_size: int
    workers: int
    rounds: int
    seconds: float | None
    """Length of a round; None where `batches` says it."""
    batches: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchTable:
    """Results on all datasets."""

    sections: tuple[BenchSection, ...]
    settings: Settings
    machine: MachineDocument


def to_document(table: BenchTable) -> dict[str, object]:
    """Return a table as JSON values."""
    return {"schema_version": SCHEMA_VERSION, **asdict(table)}
