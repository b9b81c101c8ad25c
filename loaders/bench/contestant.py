"""One run of one loader in a process of its own: take batches as fast as they come, and print one line of JSON.

The job comes as JSON on stdin. The clock starts some batches after the first one: by then everything is imported and
running, every worker has delivered, and every queue is as empty as it is at the end.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from dataprep.host.cpu import own_cpu_s
from dataprep.host.processes import end_with
from loaders.bench.peers import PeerConfig, peer_named
from loaders.bench.table import OURS

if TYPE_CHECKING:
    from loaders.decode.decoders import Interpolation
    from loaders.engine.stats import StageTimes

ROOFLINE = "decode"
"""Name of the roofline: full JPEG decoding, in plain threads, of images that are in memory already."""
STALL_S = 120
"""Seconds without a batch after which a run fails; importing TensorFlow takes 20 s on two busy cores."""
DECODED_IMAGES = 4096
"""Maximum number of images that the roofline holds in memory."""
DECODED_AT_ONCE = 32
"""Number of images that the roofline decodes in one task."""

Stages: TypeAlias = "Mapping[str, StageSums]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Description of one run, which the parent sends to its process."""

    loader: str
    """Name of the loader: `dataprep`, `decode`, or one that `peer_named` knows."""
    root: str
    """URL of the dataset for our loader, a folder for the others."""
    split: str
    """Split that our loader reads."""
    files: tuple[str, ...] = ()
    """Shards that the others read: see `PeerConfig.files`."""
    interpolation: Interpolation
    """Interpolation of our loader, and of peers that have several."""
    image_size: int
    batch_size: int
    workers: int
    """Number of processes or threads of the loader, and of the cores that it may use."""
    seconds: float = 0.0
    """Minimum length of the run."""
    images: int = 0
    """Minimum number of images in the run."""
    started_s: float
    """Time at which the parent started this process, by time.monotonic()."""


def main() -> None:
    """Read the job, run it, and print the result."""
    end_with(os.getppid())  # if the parent ended before this line, stdin has ended, too
    job = Job(**json.load(sys.stdin))
    # The same cores for every contender, so that threads beyond its workers gain nothing.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job.workers])
    print(json.dumps(run(job)), flush=True)


class StageSums(TypedDict):
    """Sums of one stage of our loader; a time that the stage does not measure is 0."""

    items: int
    busy_s: float
    get_wait_s: float
    put_wait_s: float


class Measured(TypedDict):
    """One round of a loader."""

    images: int
    elapsed_s: float
    cpu_s: float
    first_batch_s: float
    stages: Stages
    """Stages of our loader; empty for the others."""
    version: str


def run(job: Job) -> Measured:
    """Run one round."""
    batches, stages = _opened(job)
    taken = _watched(batches)
    next(taken)
    first_batch_s = time.monotonic() - job.started_s
    for _ in range(job.workers):
        next(taken)
    images, before = 0, stages()
    started_s, cpu_started_s = time.perf_counter(), own_cpu_s()
    while images < max(1, job.images) or time.perf_counter() - started_s < job.seconds:
        images += next(taken)
    elapsed_s, cpu_s = time.perf_counter() - started_s, own_cpu_s() - cpu_started_s
    return {
        "images": images,
        "elapsed_s": elapsed_s,
        "cpu_s": cpu_s,
        "first_batch_s": first_batch_s,
        "stages": _difference(before, stages()),
        "version": _version(job.loader),
    }


def _watched(batches: Iterator[int]) -> Iterator[int]:
    """Yield the items of an iterator, and end the process if none comes for STALL_S."""
    while True:
        faulthandler.dump_traceback_later(STALL_S, exit=True)
        yield next(batches)


def _opened(job: Job) -> tuple[Iterator[int], Callable[[], Stages]]:
    """Return an endless iterator over the sizes of batches, and a function that returns the stages' sums so far."""
    if job.loader == OURS:
        return _ours(job)
    if job.loader == ROOFLINE:
        return _decoded(Path(job.root), job.workers), dict
    config = PeerConfig(
        root=Path(job.root),
        files=tuple(job.files),
        image_size=job.image_size,
        batch_size=job.batch_size,
        workers=job.workers,
        interpolation=job.interpolation,
    )
    peer = peer_named(job.loader)(config)
    return (_checked(images, labels, job) for images, labels in peer.iterate()), dict


def _ours(job: Job) -> tuple[Iterator[int], Callable[[], Stages]]:
    from loaders import open_loader
    from loaders.config import MAX_THREADS

    processes = 0 if job.workers <= MAX_THREADS else job.workers // 8
    loader = open_loader(
        job.root,
        job.split,
        batch_size=job.batch_size,
        shuffle=True,
        image_size=job.image_size,
        interpolation=job.interpolation,
        threads=job.workers // max(1, processes),
        processes=processes,
    )

    def stages() -> Stages:
        return {name: _sums(times) for name, times in loader.snapshot().stages.items()}

    epochs = itertools.chain.from_iterable(itertools.repeat(loader))
    return (_checked(batch.images, batch.labels, job) for batch in epochs), stages


def _decoded(root: Path, workers: int) -> Iterator[int]:
    import simplejpeg

    files = itertools.islice(sorted(root.glob("*/*")), DECODED_IMAGES)
    images = [path.read_bytes() for path in files]

    def decode(first: int) -> int:
        for number in range(first, first + DECODED_AT_ONCE):
            simplejpeg.decode_jpeg(images[number % len(images)], "RGB")
        return DECODED_AT_ONCE

    with ThreadPoolExecutor(workers) as pool:
        under_way: deque[Future[int]] = deque()
        for first in itertools.count(step=DECODED_AT_ONCE):
            under_way.append(pool.submit(decode, first))
            if len(under_way) > 2 * workers:
                yield under_way.popleft().result()


def _checked(images: Any, labels: Any, job: Job) -> int:
    expected = (job.batch_size, job.image_size, job.image_size, 3)
    found = (images.shape, str(images.dtype), labels.shape)
    if found != (expected, "uint8", expected[:1]):
        raise SystemExit(f"got images and labels {found}, expected uint8 images {expected} with one label each")
    return len(images)


def _difference(before: Stages, after: Stages) -> Stages:
    """Return what the stages did between two looks at them."""
    nothing: StageSums = {"items": 0, "busy_s": 0.0, "get_wait_s": 0.0, "put_wait_s": 0.0}
    return {name: _less(stage, before.get(name, nothing)) for name, stage in after.items()}


def _sums(times: StageTimes) -> StageSums:
    return {
        "items": times.items,
        "busy_s": times.busy_s.sum_s,
        "get_wait_s": times.get_wait_s.sum_s,
        "put_wait_s": times.put_wait_s.sum_s,
    }


def _less(stage: StageSums, before: StageSums) -> StageSums:
    return {
        "items": stage["items"] - before["items"],
        "busy_s": stage["busy_s"] - before["busy_s"],
        "get_wait_s": stage["get_wait_s"] - before["get_wait_s"],
        "put_wait_s": stage["put_wait_s"] - before["put_wait_s"],
    }


def _version(loader: str) -> str:
    from importlib.metadata import PackageNotFoundError, packages_distributions, version

    if loader in (OURS, ROOFLINE):
        package = distribution = OURS
    else:
        package, distribution = next(iter(peer_named(loader).packages.items()))
    try:
        return version(distribution)
    except PackageNotFoundError:  # another distribution has the package, such as tensorflow for tensorflow-cpu
        distributions = packages_distributions().get(package)
        return version(distributions[0]) if distributions else ""
