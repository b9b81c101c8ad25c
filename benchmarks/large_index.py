"""What a rank takes to open the index of a large dataset, in time and memory.

    python benchmarks/large_index.py --rows 414080000 --json large_index.json

The dataset has a manifest and an index. Its shards are empty space of the right size: opening a loader looks at their
sizes, and reads none. Parts of the same number of shards are links to one file, since the loader takes nothing from one
part to another. A small dataset shows what opening takes at least: modules, buffers of pyarrow. Memory is what the
process takes more than after its imports.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import common_options, in_turns, report, work_folder

SHARD_ROWS = 10_000
IMAGE_BYTES = 20_000
SIDECARS = ("parquet", "_stats.json")
PICKED_SHARDS = 400
SMALL_SHARDS = 8
"""Shards of the dataset that shows what opening takes at least."""
SEED = 7


def write_dataset(folder: Path, shards: int, shard_rows: int) -> None:
    """Write manifest and index of a dataset of equal shards, with two sidecars each."""
    from dataprep.dataset.index import index_schema, publish_index, publish_row_groups
    from dataprep.dataset.manifest import MANIFEST, manifest_bytes, schema_version
    from dataprep.dataset.records import FileEntry, Manifest, SplitManifest
    from dataprep.storage import open_storage

    folder.mkdir(parents=True)
    storage, group = open_storage(str(folder)), row_group(shard_rows)
    written: dict[int, FileEntry] = {}

    def put(name: str, part: range) -> FileEntry:
        if len(part) not in written:
            groups = (group for _ in part)
            written[len(part)] = publish_row_groups(storage, name, groups, index_schema())
        else:
            (folder / name).hardlink_to(folder / written[len(part)]["file"])
        return {**written[len(part)], "file": name}

    samples = [shard_rows] * shards
    split = SplitManifest(
        name="train",
        samples=sum(samples),
        num_bytes=shards * shard_rows * IMAGE_BYTES,
        shards=tuple(
            {
                "file": f"train/laion-train-{number:05d}-of-{shards:05d}.tar",
                "samples": shard_rows,
                "bytes": shard_rows * IMAGE_BYTES,
                "sha256": digest(number),
                "crc32c": "AAAAAA==",
            }
            for number in range(shards)
        ),
        class_counts=(),
        repeats={"count": 1, "stored": 1},
        repaired={},
        rejected={},
        index=publish_index("train", samples, put),
        events={"file": "index/train-events.parquet", "bytes": 1, "sha256": digest("events")},
    )
    manifest = Manifest(
        name="laion",
        schema_version=schema_version([split]),
        revision=1,
        format="webdataset",
        plan_hash=digest("plan"),
        order_version=1,
        options={},
        sources=(),
        codecs={},
        licence="",
        origin="",
        classes=(),
        shuffled=True,
        checked="decode",
        partial=False,
        splits=(split,),
        files=tuple(
            {"file": f"train/laion-train-{number:05d}-of-{shards:05d}.{end}", "bytes": 1, "sha256": digest(end)}
            for number in range(shards)
            for end in SIDECARS
        ),
    )
    (folder / split.name).mkdir()
    for shard in split.shards:
        path = folder / shard["file"]
        path.touch()
        os.truncate(path, shard["bytes"])
    (folder / MANIFEST).write_bytes(manifest_bytes(manifest))


def row_group(rows: int) -> Any:
    """Return the index rows of a shard."""
    import numpy as np
    import pyarrow as pa

    from dataprep.dataset.index import index_schema

    draw = np.random.default_rng(SEED)
    at = np.arange(rows, dtype=np.int64) * IMAGE_BYTES
    columns = {
        "key": pa.array([f"{number:09d}" for number in draw.integers(0, 10**9, rows)]),
        "shard": np.zeros(rows, np.int32),
        "record_offset": at,
        "record_bytes": np.full(rows, IMAGE_BYTES, np.int64),
        "image_offset": at + 1024,
        "image_bytes": draw.integers(IMAGE_BYTES // 2, IMAGE_BYTES - 1024, rows),
        "image_crc32c": draw.integers(0, 2**32, rows, np.uint32),
        "label": np.full(rows, -1, np.int32),
        "height": draw.integers(200, 257, rows, np.int32),
        "width": draw.integers(200, 257, rows, np.int32),
    }
    return pa.table(columns, schema=index_schema())


def digest(value: object) -> str:
    """Return a hash that stands for that of a file."""
    return hashlib.sha256(str(value).encode()).hexdigest()


def measure(folder: str) -> dict[str, float]:
    """Open a loader in this process, then the rows of some shards, and return what each took."""
    import random

    import numpy as np
    import pyarrow.parquet  # noqa: F401  imported by every loader

    from loaders import open_loader

    np.zeros(1)
    begin_bytes = reset_peak()
    started_s, cpu_s = time.perf_counter(), time.process_time()
    loader = open_loader(folder, batch_size=4096, world_size=32, region_policy="off")
    opened_s, opened_cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    open_bytes = peak_bytes() - begin_bytes
    kept_bytes = current_bytes() - begin_bytes
    chosen = random.Random(SEED).choices(range(len(loader.dataset.split.shards)), k=PICKED_SHARDS)
    times = list(shard_times(loader, chosen))
    index_peak = peak_bytes() - begin_bytes
    return {
        "open_s": opened_s,
        "open_cpu_s": opened_cpu_s,
        "open_peak_mb": open_bytes / 1e6,
        "open_kept_mb": kept_bytes / 1e6,
        "shard_cpu_ms": 1e3 * statistics.median(times),
        "shards_peak_mb": index_peak / 1e6,
    }


def shard_times(loader: Any, shards: list[int]) -> Iterator[float]:
    """Yield the processor time that the rows of each shard take, in seconds."""
    for shard in shards:
        started_s = time.process_time()
        loader.index.shard(shard)
        yield time.process_time() - started_s


def reset_peak() -> int:
    """Let the peak of this process's memory begin anew, and return what it takes now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return current_bytes()


def current_bytes() -> int:
    """Return the memory of this process in bytes."""
    return status_bytes("VmRSS")


def peak_bytes() -> int:
    """Return the largest memory of this process since `reset_peak`, in bytes."""
    return status_bytes("VmHWM")


def status_bytes(name: str) -> int:
    """Return a size from `/proc/self/status`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    """Write the datasets, and open each in turn."""
    parser = common_options(__doc__)
    parser.add_argument("--rows", type=int, default=414_080_000)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    shards = max(1, options.rows // SHARD_ROWS)
    with work_folder(options, "large-index") as work:
        folders = {name: work / name.replace(" ", "-") for name in ("parts", "small dataset")}
        write_dataset(folders["parts"], shards, SHARD_ROWS)
        write_dataset(folders["small dataset"], SMALL_SHARDS, SHARD_ROWS)

        def opened(folder: Path) -> dict[str, float]:
            command = [sys.executable, __file__, "--measure", str(folder)]
            figures: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            return figures

        runs = {name: partial(opened, folder) for name, folder in folders.items()}
        rounds = in_turns(runs, options.rounds, warm_up=False)
        files = {name: len(list((folder / "index").iterdir())) for name, folder in folders.items()}
    rows = [
        {"index": name, "files": files[name]}
        | {key: statistics.median(each[key] for each in found) for key in found[0]}
        for name, found in rounds.items()
    ]
    report("large-index", {"rows": shards * SHARD_ROWS, "shards": shards, "table": rows}, options)


if __name__ == "__main__":
    main()
