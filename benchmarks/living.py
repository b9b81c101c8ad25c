"""Memory of a rank that loads a view of a large dataset, and of one that goes on in it in the middle of an epoch.

    python benchmarks/living.py --rows 400000000 --json living.json

The datasets are those of large_index.py, whose shards are empty space: no image is read. The view leaves out every
second sample. Each figure is of a process of its own: what it takes more than after its imports. The last line is
arithmetic: memory grows with the number of samples in shards of the same size.
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
from benchmarks.large_index import SHARD_ROWS, current_bytes, peak_bytes, reset_peak, write_dataset

SETTINGS: dict[str, Any] = {"batch_size": 4096, "world_size": 32, "region_policy": "off"}
PICKS = 4096
MORE_ROWS = 5_000_000_000


def write_view(folder: Path, shards: int) -> None:
    """Write the view `half` of a dataset of equal shards."""
    from dataprep.dataset.columns import table_of
    from dataprep.dataset.index import publish_row_groups
    from dataprep.dataset.manifest import read_manifest
    from dataprep.dataset.views import VIEW_JSON, Choice, View, ViewSplit, split_file, view_file, view_schema
    from dataprep.storage import open_storage

    storage = open_storage(str(folder))
    manifest = read_manifest(storage, sidecars=False)
    assert manifest is not None
    group = table_of([[None, "sample"] * (SHARD_ROWS // 2)], view_schema())
    entry = publish_row_groups(storage, view_file("half", "train"), (group for _ in range(shards)), view_schema())
    file = split_file("half", "train", entry["sha256"])
    (folder / entry["file"]).rename(folder / file)
    split = ViewSplit("train", {**entry, "file": file}, (SHARD_ROWS // 2,) * shards, (), {})
    view = View(version=1, name="half", plan_hash=manifest.plan_hash, revision=1, choice=Choice(), splits=(split,))
    (folder / view_file("half", VIEW_JSON)).write_text(json.dumps(asdict(view)))


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
    begin_bytes, started_s = reset_peak(), time.perf_counter()
    loader = open_loader(folder if what == "whole" else f"{folder}@half", **SETTINGS)
    position = loader.order.num_samples // 2
    if state is not None:
        loader.load_state_dict(state)
        position = state["position"]
    picks = list(islice(loader.order.every(SETTINGS["world_size"], position), PICKS))
    return {
        "seconds": time.perf_counter() - started_s,
        "peak_mb": (peak_bytes() - begin_bytes) / 1e6,
        "kept_mb": (current_bytes() - begin_bytes) / 1e6,
        "picks": len(picks),
    }


def main() -> None:
    """Write a dataset, and one of a tenth; measure in both."""
    parser = common_options(__doc__)
    parser.add_argument("--rows", type=int, default=400_000_000)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return
    found = []
    with work_folder(options, "living") as work:
        for rows in (options.rows // 10, options.rows):
            folder, shards = work / str(rows), max(1, rows // SHARD_ROWS)
            write_dataset(folder, shards, SHARD_ROWS)
            write_view(folder, shards)
            for what in ("whole", "view", "resumed"):
                command = [sys.executable, __file__, "--measure", str(folder), what]
                run = subprocess.run(command, check=True, capture_output=True, text=True)
                found.append({"rows": shards * SHARD_ROWS, "what": what} | json.loads(run.stdout))
                print("{rows:>13,} samples, {what:8}{seconds:7.1f} s, peak {peak_mb:7,.0f} MB".format(**found[-1]))
    for small, large in zip(found[:3], found[3:], strict=True):
        each = (large["peak_mb"] - small["peak_mb"]) / (large["rows"] - small["rows"])
        peak_mb = large["peak_mb"] + each * (MORE_ROWS - large["rows"])
        print(f"{MORE_ROWS:>13,} samples, {large['what']:8} by arithmetic: peak {peak_mb:,.0f} MB")
    report("living", {"table": found}, options)


if __name__ == "__main__":
    main()
