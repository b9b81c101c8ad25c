"""Rounds of our loader on every dataset of a request, and their result; data without a manifest are indexed first.

Rates are images/s, MB are 10^6 bytes. `to_document` is the JSON that `--json` prints.

with tempfile.TemporaryDirectory() as folder:
    table = run_bench(BenchRequest(urls=("shards",)), Path(folder), progress)
"""

from __future__ import annotations

import os
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from glob import escape
from pathlib import Path, PurePosixPath
from typing import Protocol

from dataprep.adoption import AdoptRequest, adopt
from dataprep.adoption import Progress as AdoptProgress
from dataprep.arguments import IMAGES, READ, WHERE, Request, Texts, option, request, texts
from dataprep.dataset.adopted import open_linked
from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.views import address
from dataprep.errors import DataprepError, UsageError
from dataprep.host.cpu import available_cores, background_cores
from dataprep.host.measure import CommandError
from dataprep.host.versions import MachineDocument, machine_document
from dataprep.storage import open_storage
from loaders.bench.round import STAGE_TIMES, Job, Round, last_line, run_round
from loaders.dataset import Dataset, open_dataset, refuse_mixture
from loaders.fetch.index import DEADLINE_S, with_deadline
from loaders.metrics.earlier import SCHEMA_VERSION

INDEX_DEADLINE_S = 60.0
WARM_UP_BATCHES = 2
_DEFAULT_SECONDS = 5.0
SAMPLED_SHARDS = 64
"""Maximum number of shards from which the mean size of an image is estimated."""
_BRACES = re.compile(r"\{([^{}]*)\}")
_FIELD = re.compile(r"`[a-z_]+`")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class StageShare:
    """Shares of time that the threads of one stage worked and waited; the three shares add up to 1."""

    name: str
    busy_share: float
    get_wait_share: float
    """Share of the time that the stage's threads waited for the stage before it."""
    put_wait_share: float
    """Share of the time that the stage's threads waited for the stage after it."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchTable:
    """Results on all datasets."""

    sections: tuple[BenchSection, ...]
    settings: dict[str, object]
    """Settings of all rounds."""
    machine: MachineDocument


def to_document(table: BenchTable) -> dict[str, object]:
    """Return a table as JSON values."""
    return {"schema_version": SCHEMA_VERSION, **asdict(table)}


class Progress(AdoptProgress, Protocol):
    """Progress of a measurement."""

    def running(self, what: str, done: int, total: int) -> None:
        """Report that `done` of `total` rounds are finished, and that the next one has begun."""


@request
class BenchRequest(Request):
    """Measure how fast the loader delivers the images of each URL.

    A URL is a dataprep dataset, an image folder, tars (several tars are one dataset, and `{000..146}` is expanded), or
    a TFDS directory. Each round is a separate process; the table shows medians. The scripts in benchmarks/ compare our
    loader with others.
    """

    urls: Texts = option("Datasets of any kind.", metavar="URL...", kw_only=False, group=READ)
    split: str = option("Split to read.", default="train", group=READ)
    batch_size: int = option("Images per batch.", default=128, low=1, group=IMAGES)
    image_size: int = option("Side of the cropped images, in pixels.", default=224, low=1, group=IMAGES)
    workers: int = option(
        "Number of loader threads, and of cores that the loader may use.",
        default_factory=available_cores,
        low=1,
        shown="number of cores",
        group=WHERE,
    )
    seconds: float | None = option(
        "Seconds to measure in each round, after the first batches.",
        default=None,
        low=0,
        open_low=True,
        shown="5",
    )
    batches: int | None = option("Length of each round, in batches, instead of `seconds`.", default=None, low=1)
    rounds: int = option("Number of rounds.", default=5, low=1)
    compare: Path | None = option(
        "Compare the rates with an earlier run's --json output in this file.", default=None, metavar="FILE"
    )

    def __post_init__(self) -> None:
        """Check each value, and their combination."""
        super().__post_init__()
        if self.seconds is not None and self.batches is not None:
            raise UsageError("`seconds` and `batches` both set the length of a round; give only one")

    @property
    def round_s(self) -> float:
        """Seconds of a round; 0 if batches are counted."""
        return 0.0 if self.batches else self.seconds or _DEFAULT_SECONDS


def run_bench(asked: BenchRequest, work: Path, progress: Progress) -> BenchTable:
    """Measure our loader on every dataset of a request.

    Raises:
        DataprepError: A dataset cannot be read, or the loader failed.
    """
    machine = machine_document(background_cores())
    sections = []
    for number, urls in enumerate(grouped(texts(asked.urls))):
        progress.step(f"opening {urls[0]}")
        dataset = open_data(urls, asked.split, work / str(number), progress, asked.workers)
        sections.append(_section(" ".join(urls), dataset, asked, progress))
    return BenchTable(
        sections=tuple(sections),
        settings={
            "batch_size": asked.batch_size,
            "image_size": asked.image_size,
            "workers": asked.workers,
            "rounds": asked.rounds,
            "seconds": asked.round_s or None,
            "batches": asked.batches,
        },
        machine=machine,
    )


def _section(url: str, dataset: Dataset, asked: BenchRequest, progress: Progress) -> BenchSection:
    samples, split = dataset.split.samples, dataset.split.name
    if samples < asked.batch_size:
        raise UsageError(
            f"{url}: {samples:,} images in {split}, but a batch takes {asked.batch_size:,}; choose `batch_size` "
            f"{max(1, samples // asked.workers)}"
        )
    job = Job(
        url=dataset.url,
        split=split,
        batch_size=asked.batch_size,
        image_size=asked.image_size,
        workers=asked.workers,
        seconds=asked.round_s,
        images=(asked.batches or 0) * asked.batch_size,
    )
    try:
        progress.running("warming up", 0, asked.rounds)
        run_round(replace(job, seconds=0.0, images=WARM_UP_BATCHES * job.batch_size))  # into the page cache
        rounds = []
        for number in range(asked.rounds):
            progress.running(f"round {number + 1} of {asked.rounds}", number, asked.rounds)
            rounds.append(run_round(job))
    except CommandError as error:
        raise DataprepError(f"{url}: {last_line(error.stderr)}") from error
    return section_of(url, dataset, rounds, _bytes_per_image(dataset))


def section_of(url: str, dataset: Dataset, rounds: Sequence[Round], bytes_per_image: float) -> BenchSection:
    """Return the medians of the rounds on one dataset."""

    def median(name: str) -> float:
        return float(statistics.median(getattr(each, name) for each in rounds))

    rates = [each.images_per_s for each in rounds]
    return BenchSection(
        url=url,
        split=dataset.split.name,
        layout=dataset.manifest.format,
        samples=dataset.split.samples,
        bytes_per_image=bytes_per_image,
        images_per_s=median("images_per_s"),
        slowest_images_per_s=min(rates),
        fastest_images_per_s=max(rates),
        mb_per_s=median("images_per_s") * bytes_per_image / 1e6,
        cpu_ms_per_image=median("cpu_ms_per_image"),
        first_batch_s=median("first_batch_s"),
        largest_mb=median("largest_mb"),
        sum_mb=median("sum_mb"),
        rounds_images_per_s=tuple(rates),
        stages=stage_shares(rounds),
    )


def stage_shares(rounds: Sequence[Round]) -> tuple[StageShare, ...]:
    """Return the shares of time that the threads of each stage worked and waited, over all rounds."""
    totals: dict[str, Counter[str]] = {}
    for each in rounds:
        for name, sums in each.stages.items():
            totals.setdefault(name, Counter()).update(sums)
    if "fetch" in totals and "decode" in totals:
        totals["decode"]["get_wait_s"] += totals["fetch"]["get_wait_s"]  # the same threads wait for the bytes
    images, shares = sum(each.images for each in rounds), []
    for name, total in totals.items():
        total_s = sum(total[each] for each in STAGE_TIMES) or 1.0
        part = {each.replace("_s", "_share"): total[each] / total_s for each in STAGE_TIMES}
        shares.append(StageShare(name=name, busy_ms_per_image=1e3 * total["busy_s"] / images, **part))
    return tuple(shares)


def _bytes_per_image(dataset: Dataset) -> float:
    index = dataset.open_index(INDEX_DEADLINE_S)
    shards = [number for number, entry in enumerate(dataset.split.shards) if entry["samples"]]
    some = shards[:: -(-len(shards) // SAMPLED_SHARDS) or 1]
    num_bytes = sum(int(index.shard(shard).image_bytes.sum()) for shard in some)
    return num_bytes / sum(int(dataset.split.shards[shard]["samples"]) for shard in some)


# The data


def grouped(urls: Sequence[str]) -> list[tuple[str, ...]]:
    """Group URLs into datasets: all tars together are one dataset, and every other URL is one. Braces are expanded."""
    expanded = [each for url in urls for each in expand_braces(url)]
    groups: dict[str, list[str]] = {}
    for url in dict.fromkeys(expanded):
        groups.setdefault("" if url.endswith(".tar") else url, []).append(url)
    return [tuple(group) for group in groups.values()]


def expand_braces(text: str) -> Iterator[str]:
    """Expand `{000..146}` and `{a,b}` as shells and webdataset do."""
    braces = _BRACES.search(text)
    if braces is None:
        yield text
        return
    numbers = _RANGE.fullmatch(braces[1])
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        parts = [f"{number:0{len(numbers[1])}d}" for number in range(first, last + 1)]
    else:
        parts = braces[1].split(",")
    for part in parts:
        yield from expand_braces(text[: braces.start()] + part + text[braces.end() :])


def open_data(urls: tuple[str, ...], split: str, index: Path, progress: Progress, workers: int) -> Dataset:
    """Open a dataset; data without a manifest are indexed first, in a local folder.

    Raises:
        UsageError: The data or the split do not exist.
        SourceError: The data are damaged.
    """
    if urls[0].endswith(".tar"):
        root, names = _common_folder(urls)
        there = {info.name for info in open_linked(root).list()}
        missing = [name for name in names if name not in there]
        if missing:
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise UsageError(f"{root}/{missing[0]}{more}: not found; check the name")
        splits = tuple((split, escape(name)) for name in names)
        return _adopted(AdoptRequest(url=root, index_url=str(index), splits=splits), split, progress, workers)
    if not address(urls[0])[1] and read_manifest(with_deadline(open_storage(urls[0]), DEADLINE_S)) is None:
        refuse_mixture(urls[0])
        return _adopted(AdoptRequest(url=urls[0], index_url=str(index)), split, progress, workers)
    return open_dataset(urls[0], split)


def _adopted(asked: AdoptRequest, split: str, progress: Progress, workers: int) -> Dataset:
    try:
        url = adopt(asked, progress, workers=workers).url
    except UsageError as error:
        if not _FIELD.search(str(error)):
            raise
        raise UsageError(
            f"{error}. These are options of `dataprep adopt`: run it, and give the index instead"
        ) from error
    return open_dataset(url, split)


def _common_folder(urls: tuple[str, ...]) -> tuple[str, list[str]]:
    """Return the folder that holds all files, and their names in it."""
    scheme, colon, _ = urls[0].rpartition("://")
    paths = [PurePosixPath(url.removeprefix(scheme + colon)) if scheme else Path(url).absolute() for url in urls]
    root = os.path.commonpath([path.parent for path in paths])
    return scheme + colon + root, [str(path.relative_to(root)) for path in paths]
