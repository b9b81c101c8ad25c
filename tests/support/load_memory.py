"""Many epochs in one process: what its memory grows by, and what is left when the loader is closed.

python -m tests.support.load_memory URL EPOCHS '{"batch_size": 64, "processes": 0}'     -> one line of JSON
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys

import psutil

from loaders import open_loader

SETTLED = 5
"""Epochs until threads, caches and the allocator have what they need."""


def resident_bytes() -> int:
    """Return the resident memory of this process and its workers."""
    process = psutil.Process()
    return process.memory_info().rss + sum(child.memory_info().rss for child in process.children())


def held() -> dict[str, object]:
    """File handles, shared memory, threads and processes."""
    return {
        "handles": len(os.listdir("/proc/self/fd")),
        "shared memory": sorted(os.listdir("/dev/shm")),
        "threads": len(os.listdir("/proc/self/task")),
        "processes": len(multiprocessing.active_children()),
    }


def load(url: str, epochs: int, settings: dict[str, object]) -> list[int]:
    """Resident bytes after each epoch."""
    sizes = []
    with open_loader(url, **settings) as loader:
        for _ in range(epochs):
            for batch in loader:
                del batch
            sizes.append(resident_bytes())
    return sizes


def main() -> None:
    url, epochs, settings = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    load(url, 1, settings)  # what stays for good is imported
    before = held()
    sizes = load(url, epochs, settings)
    gc.collect()
    print(json.dumps({"bytes": sizes, "grown": sizes[-1] / sizes[SETTLED - 1] - 1, "before": before, "after": held()}))


if __name__ == "__main__":
    main()
