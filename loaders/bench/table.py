"""Result of `dataprep bench`, a section for each dataset, and its comparison with an earlier one.

Rates are images/s, MB are 10^6 bytes. `to_document` is the JSON that `--json` prints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypedDict

from dataprep.host.versions import MachineDocument
from loaders.metrics.earlier import changed, machine_differences, read_earlier

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class StageShare:
    """Shares of time that the threads of one stage worked and waited; the three shares add up to 1."""

    name: str
    busy_share: float
    get_wait_share: float
    """Share of the time in which the stage's threads waited for the stage before it."""
    put_wait_share: float
    """Share of the time in which the stage's threads waited for the stage after it."""
    busy_ms_per_image: float
    """Working time for one image, summed over all threads of the stage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchSection:
    """Loader on one dataset: medians of the rounds."""

    url: str
    """URL as it was given; several tars are joined by blanks."""
    split: str
    layout: str
    """Layout of the dataset's files: `imagefolder`, `webdataset` or `tfrecord`."""
    samples: int
    """Samples stored in the split."""
    bytes_per_image: float
    """Mean size of an encoded image."""
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
    stages: tuple[StageShare, ...]


class Settings(TypedDict):
    """Settings of all rounds."""

    batch_size: int
    image_size: int
    workers: int
    rounds: int
    seconds: float | None
    """Length of a round; None if `batches` sets it."""
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


Verdict = Literal["faster", "slower", "within the spread"]


class ComparedSection(TypedDict):
    """Loader on one dataset, before and now."""

    section: str
    """URL of the dataset as it is read now, and its split."""
    before_images_per_s: float
    now_images_per_s: float
    ratio: float
    """Median rate now over the median rate before."""
    lowest_ratio: float
    """Slowest round now over the fastest before."""
    highest_ratio: float
    """Fastest round now over the slowest before."""
    cpu_ratio: float
    """CPU time for an image now, over the CPU time before."""
    verdict: Verdict
    """`faster` if every round now is faster than every round before, `slower` if every one is slower, else `within the
    spread`."""


class Comparison(TypedDict):
    """A table next to an earlier one."""

    differences: list[str]
    """Differences of machine, versions, settings and data, each in one line. If there are several, the ratios do not
    show the effect of one."""
    rows: list[ComparedSection]
    unmatched: list[str]
    """Datasets that only one of the tables has."""


def read_table(path: Path) -> BenchTable:
    """Read what `dataprep bench --json` printed.

    Raises:
        UsageError: The file is absent, too large, or not such a table.
    """
    return read_earlier(path, BenchTable, SCHEMA_VERSION, "dataprep bench --json")


def compare(before: BenchTable, now: BenchTable) -> Comparison:
    """Compare a table with an earlier one.

    Sections are matched by URL and split; if each table has one section, they are compared although their URLs differ.
    """
    differences = [*machine_differences(before.machine, now.machine)]
    differences += changed("setting", before.settings, now.settings)
    if len(before.sections) == len(now.sections) == 1:
        pairs = [(before.sections[0], now.sections[0])]
        unmatched = []
    else:
        olds, news = ({(each.url, each.split): each for each in table.sections} for table in (before, now))
        pairs = [(olds[key], news[key]) for key in news if key in olds]
        unmatched = [f"{url} {split}: only now" for url, split in news if (url, split) not in olds]
        unmatched += [f"{url} {split}: only before" for url, split in olds if (url, split) not in news]
    for old, new in pairs:
        differences += _data_differences(old, new)
    if not pairs:
        unmatched.append("no dataset is in both tables; compare tables of the same URLs, or of one URL each")
    return {"differences": differences, "rows": [_compared(*pair) for pair in pairs], "unmatched": unmatched}


def _data_differences(old: BenchSection, new: BenchSection) -> Iterator[str]:
    names = ("url", "split", "layout", "samples")
    yield from changed("data", *({name: getattr(each, name) for name in names} for each in (old, new)))


def _compared(old: BenchSection, new: BenchSection) -> ComparedSection:
    def over(now: float, before: float) -> float:
        return now / before if before > 0 else 0.0

    return {
        "section": f"{new.url} {new.split}",
        "before_images_per_s": old.images_per_s,
        "now_images_per_s": new.images_per_s,
        "ratio": over(new.images_per_s, old.images_per_s),
        "lowest_ratio": over(new.slowest_images_per_s, old.fastest_images_per_s),
        "highest_ratio": over(new.fastest_images_per_s, old.slowest_images_per_s),
        "cpu_ratio": over(new.cpu_ms_per_image, old.cpu_ms_per_image),
        "verdict": verdict(old, new),
    }


def verdict(before: BenchSection, now: BenchSection) -> Verdict:
    """Return whether all rounds are faster than all rounds before, or slower, or neither."""
    if now.slowest_images_per_s > before.fastest_images_per_s:
        return "faster"
    if now.fastest_images_per_s < before.slowest_images_per_s:
        return "slower"
    return "within the spread"
