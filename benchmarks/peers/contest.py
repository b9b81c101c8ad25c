"""Code that the scripts of all contenders share: arguments, part of the samples, check and fsync.

A script writes the samples of a list, in its order and in the shards of our own build, and prints how many it wrote. It
runs as one process, as in its library's documents, or forks `--processes` processes, each with a contiguous part of the
shards and a folder of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """One original image."""

    path: str
    key: str
    label: int


class Image(NamedTuple):
    """One image to write; height, width and orientation are 0, 0 and 1 where it was not checked."""

    position: int
    """Index among all samples."""
    key: str
    label: int
    data: bytes
    height: int
    width: int
    orientation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One run of a script."""

    shards: list[list[Entry]]
    classes: list[str]
    out: Path
    check: str
    """`decode` or `none`, as in `dataprep build --check`."""
    processes: int

    def part(self, index: int) -> list[list[Entry]]:
        """Return the shards of one process."""
        count = len(self.shards)
        return self.shards[count * index // self.processes : count * (index + 1) // self.processes]

    def folder(self, index: int) -> Path:
        """Return the folder of one process, which is the output itself if there is only one process."""
        return self.out / f"{index:05d}" if self.processes > 1 else self.out

    def shard_bytes(self) -> int:
        """Return the shard size with which a writer that cuts by size makes as many shards as our build."""
        total = sum(Path(entry.path).stat().st_size for shard in self.shards for entry in shard)
        return -(-total // len(self.shards))

    def images(self, index: int) -> Iterator[Image]:
        """Read and check the samples of one process; leave out those that our build rejects."""
        before = sum(len(shard) for shard in self.shards[: len(self.shards) * index // self.processes])
        entries = (entry for shard in self.part(index) for entry in shard)
        for position, (path, key, label) in enumerate(entries, start=before):
            with open(path, "rb", buffering=0) as file:
                data = file.read()
            image = Image(position, key, label, data, 0, 0, 1)
            if self.check == "none":
                yield image
            elif (checked := _checked(image)) is not None:
                yield checked


def spawn_each(work: Callable[..., None], arguments: Iterable[tuple[Any, ...]]) -> None:
    """Run a function in a spawned process for each of its arguments, and end with an error if one of them fails."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=each) for each in arguments]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.exitcode != 0:
            raise SystemExit(f"a process of {work.__name__} ended with code {worker.exitcode}")


def read_task() -> Task:
    """Return the task of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--order", type=Path, required=True, help="JSON: classes, and shards of [path, key, label]")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--check", choices=["decode", "none"], required=True)
    parser.add_argument("--processes", type=int, required=True)
    options = parser.parse_args()
    order = json.loads(options.order.read_bytes())
    shards = [[Entry(*entry) for entry in shard] for shard in order["shards"]]
    return Task(
        shards=shards, classes=order["classes"], out=options.out, check=options.check, processes=options.processes
    )


def run_parts(task: Task, write_part: Callable[[Task, int], int]) -> None:
    """Let every process write its part and make it durable, and print the number of samples."""
    if task.processes == 1:
        counts = [_durable_part(task, write_part, 0)]
    else:
        # Forked, as in the peers' documents, so that their imports happen once.
        with multiprocessing.get_context("fork").Pool(task.processes) as pool:
            counts = pool.starmap(_durable_part, [(task, write_part, index) for index in range(task.processes)])
    print_samples(sum(counts))


def print_samples(count: int) -> None:
    """Print the last line of a script's output, which the benchmark reads."""
    print(json.dumps({"samples": count}))


def sync_file(path: str | Path) -> None:
    """Sync a file to the disk, as our build does before a shard counts as written."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _durable_part(task: Task, write_part: Callable[[Task, int], int], index: int) -> int:
    task.folder(index).mkdir(parents=True, exist_ok=True)
    count = write_part(task, index)
    for path in task.folder(index).rglob("*"):
        sync_file(path)
    return count


def _checked(image: Image) -> Image | None:
    from dataprep.builder.images import ImagePolicy, check_image
    from dataprep.dataset.records import Event

    result = check_image(image.key, image.data, ImagePolicy(check="decode"))
    if isinstance(result, Event):
        return None
    height, width, orientation = result.height, result.width, result.orientation
    return image._replace(data=result.image, height=height, width=width, orientation=orientation)
