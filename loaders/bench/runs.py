"""Runs of one loader, each in a process of its own, and the row of the table that they make."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dataprep.errors import UsageError
from dataprep.host.cpu import available_cores
from dataprep.host.measure import measure
from loaders.bench.contestant import Job, Measured, Stages
from loaders.bench.table import BenchRow, StageShare
from loaders.engine.stats import StageTimes, Stats

if TYPE_CHECKING:
    from loaders.decode.decoders import Interpolation

ROOT = Path(__file__).resolve().parents[2]
"""Folder of the packages `loaders` and `dataprep`."""
OUR_INTERPOLATION: Interpolation = "bicubic"
WARM_UP_BATCHES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchSettings:
    """Settings of every run.

    Raises:
        UsageError: A value is out of its range.
    """

    batch_size: int = 128
    image_size: int = 224
    workers: int = 0
    """Number of processes or threads of each loader, and of the cores that it may use; 0: all cores."""
    seconds: float = 5.0
    """Length of a run after the first batches."""
    images: int = 0
    """Minimum number of images in a run."""

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("image_size", 1), ("workers", 0), ("seconds", 0), ("images", 0)):
            if not getattr(self, name) >= least:
                raise UsageError(f"{name} must be {least} or more, got {getattr(self, name)}")
        if not self.workers:
            object.__setattr__(self, "workers", available_cores())


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One loader, and the data that it reads."""

    loader: str
    """Name of the loader: `dataprep`, one of `loaders.bench.peers.PEERS`, or `loaders.bench.contestant.ROOFLINE`."""
    layout: str
    root: str
    """URL of the dataset for our loader, a folder for the others."""
    split: str = "train"
    files: tuple[str, ...] = ()
    data: Literal["original", "copy"] = "original"
    interpolation: Interpolation = OUR_INTERPOLATION
    python: Path | str = sys.executable


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Measurements of one run."""

    images_per_s: float
    cpu_ms_per_image: float
    first_batch_s: float
    largest_mb: float
    sum_mb: float
    images: int
    stages: Stages
    """Stages of our loader: see `loaders.engine.stats`."""
    version: str


def run_once(contender: Contender, settings: BenchSettings) -> Run:
    """Run a loader once.

    Raises:
        CommandError: The run failed; its `stderr` says how.
    """
    job = Job(
        loader=contender.loader,
        root=contender.root,
        split=contender.split,
        files=contender.files,
        interpolation=contender.interpolation,
        image_size=settings.image_size,
        batch_size=settings.batch_size,
        workers=settings.workers,
        seconds=settings.seconds,
        images=settings.images,
        started_s=time.monotonic(),
    )
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    measured = measure(
        module_command(contender.python, "loaders.bench.contestant"), environment, json.dumps(asdict(job))
    )
    said: Measured = json.loads(measured.stdout.strip().splitlines()[-1])
    return Run(
        images_per_s=said["images"] / said["elapsed_s"],
        cpu_ms_per_image=1e3 * said["cpu_s"] / said["images"],
        first_batch_s=said["first_batch_s"],
        largest_mb=measured.largest_bytes / 1e6,
        sum_mb=measured.sum_bytes / 1e6,
        images=said["images"],
        stages=said["stages"],
        version=said["version"],
    )


def warm_up(contender: Contender, settings: BenchSettings) -> None:
    """Load a few batches, so that code and data are in the page cache. Raises CommandError."""
    run_once(contender, replace(settings, seconds=0.0, images=WARM_UP_BATCHES * settings.batch_size))


def row_of(contender: Contender, runs: Sequence[Run], bytes_per_image: float) -> BenchRow:
    """Return the medians of one contender's rounds."""

    def median(name: str) -> float:
        return float(statistics.median(getattr(run, name) for run in runs))

    rates = [run.images_per_s for run in runs]
    return BenchRow(
        loader=contender.loader,
        layout=contender.layout,
        data=contender.data,
        interpolation=contender.interpolation,
        images_per_s=median("images_per_s"),
        slowest_images_per_s=min(rates),
        fastest_images_per_s=max(rates),
        mb_per_s=median("images_per_s") * bytes_per_image / 1e6,
        cpu_ms_per_image=median("cpu_ms_per_image"),
        first_batch_s=median("first_batch_s"),
        largest_mb=median("largest_mb"),
        sum_mb=median("sum_mb"),
        rounds_images_per_s=tuple(rates),
        version=runs[0].version,
        stages=stage_shares(runs),
    )


def stage_shares(runs: Sequence[Run]) -> tuple[StageShare, ...]:
    """Return where the threads of each stage spent their time, over all rounds."""
    totals = Stats()
    for run in runs:
        for name, stage in run.stages.items():
            totals.add(name, **stage)
    images, stages = sum(run.images for run in runs), totals.times()
    if "fetch" in stages and "decode" in stages:
        stages["decode"].get_wait_s.merge(stages["fetch"].get_wait_s)  # the same threads wait for the bytes
    return tuple(_share(name, times, images) for name, times in stages.items())


def _share(name: str, times: StageTimes, images: int) -> StageShare:
    busy_s, get_wait_s, put_wait_s = times.busy_s.sum_s, times.get_wait_s.sum_s, times.put_wait_s.sum_s
    total_s = busy_s + get_wait_s + put_wait_s or 1.0
    return StageShare(
        name=name,
        busy_share=busy_s / total_s,
        get_wait_share=get_wait_s / total_s,
        put_wait_share=put_wait_s / total_s,
        busy_ms_per_image=1e3 * busy_s / images,
    )


def module_command(python: Path | str, module: str, *arguments: object) -> list[str]:
    """Return a command that runs one of our modules in any environment, whose own packages are imported first."""
    code = f"import sys; sys.path.append({str(ROOT)!r}); from {module} import main; main()"
    return [str(python), "-P", "-c", code, *map(str, arguments)]


def last_line(stderr: str) -> str:
    """Return the last line that a failed process wrote to stderr, or the line of its watchdog."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()] or ["no output"]
    return next((line for line in lines if line.startswith("Timeout (")), lines[-1])[:300]
