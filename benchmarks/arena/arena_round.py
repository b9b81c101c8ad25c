"""One round of a contender of the arena, in a process of its own, measured as `dataprep bench` measures our loader.

The contender is our loader, a full decode of images that are in memory, or a peer; the job comes as JSON on stdin.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
from arena_peers import PeerConfig, peer_named

from dataprep.host.processes import end_with
from loaders.bench.round import Job, Stages, checked, hold_to_cores, open_loader_of, take_batches

OURS, ROOFLINE = "dataprep", "decode"
DECODED_IMAGES = 4096
"""Maximum number of images that the full decode holds in memory."""
DECODED_AT_ONCE = 32
"""Number of images that the full decode decodes in one task."""


def main() -> None:
    """Read the job, run it, and print the result."""
    end_with(os.getppid())  # if the parent ended before this line, stdin has ended, too
    words = json.load(sys.stdin)
    loader = words.pop("loader")
    job = Job(**words)
    hold_to_cores(job.workers)
    taken = take_batches(*opened(loader, job), job)
    print(json.dumps(taken | {"version": version_of(loader)}), flush=True)


def opened(loader: str, job: Job) -> tuple[Iterator[int], Callable[[], Stages]]:
    """Return an endless iterator over the sizes of batches, and a function that returns the stages' sums so far."""
    if loader == OURS:
        return open_loader_of(job)
    if loader == ROOFLINE:
        return decoded(Path(job.url), job.workers), dict
    config = PeerConfig(
        root=Path(job.url),
        image_size=job.image_size,
        batch_size=job.batch_size,
        workers=job.workers,
        interpolation=job.interpolation,
    )
    peer = peer_named(loader)(config)
    return (checked(images, labels, job) for images, labels in peer.iterate()), dict


def decoded(root: Path, workers: int) -> Iterator[int]:
    """Decode complete JPEGs in plain threads, without end."""
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


def version_of(loader: str) -> str:
    """Return the version of a contender's package."""
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


if __name__ == "__main__":
    main()
