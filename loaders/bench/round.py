"""One round: a separate process takes batches as fast as they come, and prints one line of JSON.

The job comes as JSON on stdin. The clock starts some batches after the first one: by then everything is imported, every
worker has delivered, and the queues are in the same state as at the end.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict

from dataprep.host.cpu import available_cores, own_cpu_s
from dataprep.host.measure import measure
from dataprep.host.processes import end_with

if TYPE_CHECKING:
    from loaders.decode.decoders import Interpolation

ROOT = Path(__file__).resolve().parents[2]
"""Folder of the packages `loaders` and `dataprep`."""
STALL_S = 120
"""Seconds without a batch after which a round fails; importing TensorFlow takes 20 s on two busy cores."""
STAGE_TIMES = ("busy_s", "get_wait_s", "put_wait_s")

Stages: TypeAlias = Mapping[str, Mapping[str, float]]
"""Sums of each stage: `items`, `busy_s`, `get_wait_s` and `put_wait_s`; a time that the stage does not measure is 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Description of one round, which the parent sends to its process."""

    url: str
    split: str = "train"
    batch_size: int = 128
    image_size: int = 224
    workers: int = 0
    """Number of threads of the loader, and of the cores that it may use; 0: all cores."""
    seconds: float = 0.0
    """Minimum length of the round, after the first batches."""
    images: int = 0
    """Minimum number of images in the round."""
    interpolation: Interpolation = "bicubic"
    started_s: float = 0.0
    """Time at which the parent started the process, by time.monotonic()."""

    def __post_init__(self) -> None:
        if not self.workers:
            object.__setattr__(self, "workers", available_cores())


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """Measurements of one round."""

    images_per_s: float
    cpu_ms_per_image: float
    first_batch_s: float
    largest_mb: float
    sum_mb: float
    images: int
    stages: Stages
    """Stages of our loader: see `loaders.engine.stats`."""
    version: str = ""
    """Version of the loader's package, if the command prints it."""


def run_round(job: Job) -> Round:
    """Run one round in a new process. Raises CommandError, with the process's `stderr`, if it fails."""
    code = f"import sys; sys.path.append({str(ROOT)!r}); from loaders.bench.round import main; main()"
    return measure_round([sys.executable, "-P", "-c", code], asdict(replace(job, started_s=time.monotonic())))


def measure_round(command: list[str], job: Mapping[str, object]) -> Round:
    """Run a command that reads a job and prints the result of `take_batches`. Raises CommandError if it fails."""
    measured = measure(command, {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, json.dumps(job))
    taken: Taken = json.loads(measured.stdout.strip().splitlines()[-1])
    return Round(
        images_per_s=taken["images"] / taken["elapsed_s"],
        cpu_ms_per_image=1e3 * taken["cpu_s"] / taken["images"],
        first_batch_s=taken["first_batch_s"],
        largest_mb=measured.largest_bytes / 1e6,
        sum_mb=measured.sum_bytes / 1e6,
        images=taken["images"],
        stages=taken["stages"],
        version=taken.get("version", ""),
    )


def last_line(stderr: str) -> str:
    """Return the last line that a failed process wrote to stderr, or the line of its watchdog."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()] or ["no output"]
    return next((line for line in lines if line.startswith("Timeout (")), lines[-1])[:300]


# In the process of a round


class Taken(TypedDict):
    """Figures that the process of a round prints."""

    images: int
    elapsed_s: float
    cpu_s: float
    first_batch_s: float
    stages: Stages
    version: NotRequired[str]


def main() -> None:
    """Read the job, run it, and print the result."""
    end_with(os.getppid())  # if the parent ended before this line, so has stdin
    job = Job(**json.load(sys.stdin))
    hold_to_cores(job.workers)
    print(json.dumps(take_batches(*open_loader_of(job), job)), flush=True)


def hold_to_cores(count: int) -> None:
    """Restrict this process to `count` cores, the same in every round, so that further threads gain nothing."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def take_batches(batches: Iterator[int], stages: Callable[[], Stages], job: Job) -> Taken:
    """Take batches from an endless iterator for the length of a round; only their sizes matter."""
    taken = _watched(batches)
    next(taken)
    first_batch_s = time.monotonic() - job.started_s
    for _ in range(job.workers):
        next(taken)
    images, before = 0, stages()
    started_s, cpu_started_s = time.perf_counter(), own_cpu_s()
    while images < max(1, job.images) or time.perf_counter() - started_s < job.seconds:
        images += next(taken)
    return {
        "images": images,
        "elapsed_s": time.perf_counter() - started_s,
        "cpu_s": own_cpu_s() - cpu_started_s,
        "first_batch_s": first_batch_s,
        "stages": {
            name: {key: value - before.get(name, {}).get(key, 0) for key, value in sums.items()}
            for name, sums in stages().items()
        },
    }


def _watched(batches: Iterator[int]) -> Iterator[int]:
    """Yield the items of an iterator, and end the process if none comes for STALL_S."""
    while True:
        faulthandler.dump_traceback_later(STALL_S, exit=True)
        yield next(batches)


def open_loader_of(job: Job) -> tuple[Iterator[int], Callable[[], Stages]]:
    """Open our loader: the sizes of its batches without end, and a function that returns its stages' sums so far."""
    from loaders import open_loader
    from loaders.config import MAX_THREADS

    processes = 0 if job.workers <= MAX_THREADS else job.workers // 8
    loader = open_loader(
        job.url,
        job.split,
        batch_size=job.batch_size,
        shuffle=True,
        image_size=job.image_size,
        interpolation=job.interpolation,
        threads=job.workers // max(1, processes),
        processes=processes,
    )

    def stages() -> Stages:
        return {
            name: {"items": times.items} | {each: times.by_name()[each].sum_s for each in STAGE_TIMES}
            for name, times in loader.snapshot().stages.items()
        }

    epochs = itertools.chain.from_iterable(itertools.repeat(loader))
    return (checked(batch.images, batch.labels, job) for batch in epochs), stages


def checked(images: Any, labels: Any, job: Job) -> int:
    """Return the number of images of a batch, or end the process if it is not what the job asks for."""
    expected = (job.batch_size, job.image_size, job.image_size, 3)
    found = (images.shape, str(images.dtype), labels.shape)
    if found != (expected, "uint8", expected[:1]):
        raise SystemExit(f"got images and labels {found}, expected uint8 images {expected} with one label each")
    return len(images)
