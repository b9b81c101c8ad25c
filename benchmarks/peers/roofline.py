"""(a) The roofline: read, decode, digest, write and fsync in a plain loop, and nothing else.

No format, no plan, no index, no repair: what the disk, the decoder and the digests leave possible. Each of the spawned
processes writes a contiguous part of the shards.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
from pathlib import Path

import google_crc32c
from contest import Entry, Task, print_samples, read_task

BUFFER_BYTES = 1 << 18  # as dataprep/build/shard.py has it


def main() -> None:
    task = read_task()
    task.out.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=write_part, args=(task, index)) for index in range(task.processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.exitcode != 0:
            raise SystemExit(f"a process of the roofline ended with code {worker.exitcode}")
    print_samples(sum(len(shard) for shard in task.shards))


def write_part(task: Task, index: int) -> None:
    """The plain loop over one process's shards."""
    task.folder(index).mkdir(parents=True, exist_ok=True)
    for number, shard in enumerate(task.part(index)):
        write_shard(task.folder(index) / f"{number:05d}.bin", shard, decode=task.check == "decode")


def write_shard(target: Path, shard: list[Entry], *, decode: bool) -> None:
    """One shard's images, one after the other."""
    if decode:
        import simplejpeg
    sha256, crc32c = hashlib.sha256(), 0
    image_crc32cs = []
    with open(target, "wb", buffering=BUFFER_BYTES) as out:
        for path, _, _ in shard:
            with open(path, "rb", buffering=0) as file:
                data = file.read()
            if decode:
                # The call of dataprep/build/images.py; what is no plain JPEG costs our build a repair besides.
                with contextlib.suppress(ValueError):
                    simplejpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1, min_factor=1, strict=True)
            image_crc32cs.append(google_crc32c.value(data))
            sha256.update(data)
            crc32c = google_crc32c.extend(crc32c, data)
            out.write(data)
        out.flush()
        os.fsync(out.fileno())


if __name__ == "__main__":
    main()
