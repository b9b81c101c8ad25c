"""(a) The roofline: read, decode, digest, write and fsync in a plain loop, and nothing else.

No format, no plan, no index, no repair: only the disk, the decoder and the digests limit the rate. Each of the spawned
processes writes a contiguous part of the shards.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from importlib import import_module
from pathlib import Path

import google_crc32c
from contest import Entry, Task, print_samples, read_task, spawn_each

BUFFER_BYTES = 1 << 18  # as in dataprep/builder/shard.py


def main() -> None:
    task = read_task()
    task.out.mkdir(parents=True, exist_ok=True)
    spawn_each(write_part, [(task, index) for index in range(task.processes)])
    print_samples(sum(len(shard) for shard in task.shards))


def write_part(task: Task, index: int) -> None:
    """Write the shards of one process in a plain loop."""
    task.folder(index).mkdir(parents=True, exist_ok=True)
    for number, shard in enumerate(task.part(index)):
        write_shard(task.folder(index) / f"{number:05d}.bin", shard, decode=task.check == "decode")


def write_shard(target: Path, shard: list[Entry], *, decode: bool) -> None:
    """Write the images of one shard, one after the other."""
    if decode:
        import simplejpeg

        sys.path.append(str(Path(__file__).parents[2] / "dataprep/formats"))
        read_sound = import_module("_check").read_sound  # without the package, which imports more than a loop needs
    sha256, crc32c = hashlib.sha256(), 0
    image_crc32cs = []
    with open(target, "wb", buffering=BUFFER_BYTES) as out:
        for path, _, _ in shard:
            with open(path, "rb", buffering=0) as file:
                data = file.read()
            if decode and read_sound(data) is None:
                # The same calls as in dataprep/builder/images.py; a build also repairs what is not a plain JPEG.
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
