"""Memory that views of large datasets take: a rank that loads one, or goes on in it in the middle of an epoch, and
`dataprep select`, with a condition and with near duplicates.

    python benchmarks/living.py --rows 400000000 --json living.json

The datasets are those of large_index.py, whose shards are empty space: no image is read. The view leaves out every
second sample; hashes are random. Each figure is of a process of its own: what it takes more than after its imports.
Each command is measured with three sizes. The table has a line through the first two beside what the third one takes,
and its arithmetic for 5 billion samples: memory grows with the number of samples in shards of the same size.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import common_options, report, work_folder
from benchmarks.large_index import SHARD_ROWS, peak_bytes, reset_peak, write_dataset

SETTINGS: dict[str, Any] = {"batch_size": 4096, "world_size": 32, "region_policy": "off"}
PICKS = 4096
RANKS, COMMANDS = ("whole", "view", "resumed"), ("select", "near")
SHARES = {**dict.fromkeys(RANKS, (40, 4, 1)), **dict.fromkeys(COMMANDS, (800, 200, 50))}
"""By what is measured: the rows are divided by these, so that `select`, which reads all, ends in minutes."""


def write_view(folder: Path) -> None:
    """Write the view `half` of a dataset of equal shards."""
    from dataprep.dataset.columns import table_of
    from dataprep.dataset.index import publish_row_groups
    from dataprep.dataset.manifest import read_manifest
    from dataprep.dataset.views import VIEW_JSON, Choice, View, ViewSplit, split_file, view_file, view_schema
    from dataprep.storage import open_storage

    storage = open_storage(str(folder))
    manifest = read_manifest(storage, sidecars=False)
    assert manifest is not None
    shards = len(manifest.splits[0].shards)
    group = table_of([[None, "sample"] * (SHARD_ROWS // 2)], view_schema())
    entry = publish_row_groups(storage, view_file("half", "train"), (group for _ in range(shards)), view_schema())
    file = split_file("half", "train", entry["sha256"])
    (folder / entry["file"]).rename(folder / file)
    split = ViewSplit("train", {**entry, "file": file}, (SHARD_ROWS // 2,) * shards, (), {})
    view = View(version=1, name="half", plan_hash=manifest.plan_hash, revision=1, choice=Choice(), splits=(split,))
    (folder / view_file("half", VIEW_JSON)).write_text(json.dumps(asdict(view)))


def write_hashes(folder: Path) -> None:
    """Write a column of random hashes, and say that the data were adopted: `select` checks the names of others."""
    import numpy as np

    from dataprep.dataset import column_files as columns
    from dataprep.dataset.manifest import MANIFEST, read_manifest
    from dataprep.storage import open_storage

    storage, kind = open_storage(str(folder)), columns.ColumnType("array", "uint64")
    document = json.loads((folder / MANIFEST).read_text()) | {"options": {"adopted": {"data_url": None}}}
    (folder / MANIFEST).write_text(json.dumps(document))
    manifest = read_manifest(storage, sidecars=False)
    assert manifest is not None
    (split,), files, draw = manifest.splits, [], np.random.default_rng(0)
    for number in range(len(split.shards)):
        data = columns.arrow_file(kind, draw.integers(0, 2**64, SHARD_ROWS, np.uint64))
        files.append(columns.placed(kind, data, columns.shard_id(split, number), "phash", split.name))
        columns.publish_values(storage, files[-1], data)
    column = columns.Column(
        version=columns.COLUMN_VERSION,
        name="phash",
        plan_hash=manifest.plan_hash,
        function="random",
        function_version="",
        type=kind,
        splits={split.name: tuple(files)},
    )
    (folder / columns.column_file("phash", columns.COLUMN_JSON)).write_text(json.dumps(asdict(column)))


def measure_select(folder: str, what: str) -> dict[str, float]:
    """Make a view in this process."""
    import duckdb  # noqa: F401
    import numpy as np
    import pyarrow.parquet  # noqa: F401

    from dataprep.dataset.views import Choice
    from dataprep.selection import select

    np.zeros(1)
    choice = Choice(dedup="phash<=4") if what == "near" else Choice(where=("image_bytes > 15000",))
    begin_bytes, started_s = reset_peak(), time.process_time()
    select(folder, what, choice)
    return {"seconds": time.process_time() - started_s, "peak_mb": (peak_bytes() - begin_bytes) / 1e6}


def measure(folder: str, what: str) -> dict[str, float]:
    """Open a loader in this process, go to the middle of an epoch, and plan the first samples from there."""
    import numpy as np
    import pyarrow.parquet  # noqa: F401  imported by every loader

    import loaders.order
    from loaders import open_loader

    np.zeros(1)
    state: Any = None
    if what == "resumed":
        with open_loader(folder, **SETTINGS) as loader:
            middle = loader.order.num_samples // 2 // SETTINGS["batch_size"] * SETTINGS["batch_size"]
            state = json.loads(json.dumps(loader.state_dict() | {"position": middle}))
        del loader
        loaders.order._blocks.cache_clear()
    begin_bytes, started_s = reset_peak(), time.process_time()
    loader = open_loader(folder if what == "whole" else f"{folder}@half", **SETTINGS)
    position = loader.order.num_samples // 2
    if state is not None:
        loader.load_state_dict(state)
        position = state["position"]
    picks = list(islice(loader.order.every(SETTINGS["world_size"], position), PICKS))
    return {
        "seconds": time.process_time() - started_s,
        "peak_mb": (peak_bytes() - begin_bytes) / 1e6,
        "picks": len(picks),
    }


def main() -> None:
    """Write datasets of all sizes, and measure in each."""
    parser = common_options(__doc__)
    parser.add_argument("--rows", type=int, default=400_000_000)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        folder, what = options.measure
        print(json.dumps((measure if what in RANKS else measure_select)(folder, what)))
        return
    found = []
    with work_folder(options, "living") as work:
        for whats, write in ((RANKS, write_view), (COMMANDS, write_hashes)):
            for share in SHARES[whats[0]]:
                shards = max(1, options.rows // share // SHARD_ROWS)
                folder = work / f"{whats[0]}-{shards}"
                write_dataset(folder, shards, SHARD_ROWS)
                write(folder)
                for what in whats:
                    command = [sys.executable, __file__, "--measure", str(folder), what]
                    run = subprocess.run(command, check=True, capture_output=True, text=True)
                    found.append({"rows": shards * SHARD_ROWS, "what": what} | json.loads(run.stdout))
                    line = "{rows:>13,} samples, {what:8}{seconds:7.1f} s, peak {peak_mb:7,.0f} MB"
                    print(line.format(**found[-1]), file=sys.stderr)
    report("living", {"table": found}, options)


if __name__ == "__main__":
    main()
