"""Plans of any number of samples, and what planning them takes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import ChainMap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SMALL_SAMPLES = 6_000_000
"""A list of which every buffer is full: from here on memory grows with the number of shards only."""
SAMPLES_PER_SHARD = 2_500
ROWS_PER_FILE = 1_000_000
ALLOWED_BYTES, ALLOWED_BYTES_A_SHARD = 20_000_000, 10_000
"""Growth from SMALL_SAMPLES to any other number: a plan in memory has its shards, each with the metadata of a row group
of parquet."""

PLAN = """
import json, os, sys, time
from pathlib import Path
from tests.support.planning import request_of
from dataprep.builder.growth import ARCHIVES
from dataprep.dataset import spill
from dataprep.host.measure import peak_bytes
from dataprep.storage import open_storage
from tests.support.build_here import Quiet

asked = json.loads(sys.argv[1])
spill.MEMORY_BYTES = asked.get("memory_bytes", spill.MEMORY_BYTES)
spill.PART_BYTES = asked.get("part_bytes", spill.PART_BYTES)
request = request_of(asked)
found = {"before_bytes": peak_bytes(os.getpid())}
for run in ("first", "rerun"):
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    planned = ARCHIVES.plan(request, Quiet(), keep=True)
    found[f"{run}_s"], found[f"{run}_cpu_s"] = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    if run == "first":
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        planned.store(open_storage(request.output_url), "_build/plan")
        found["store_s"], found["store_cpu_s"] = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        first = planned.plan.plan_hash
    found[f"{run}_peak_bytes"] = peak_bytes(os.getpid())
found["same"] = planned.plan.plan_hash == first
found["samples"] = sum(sum(split.shard_samples) for split in planned.plan.splits)
print(json.dumps(found))
"""


def planning(output: Path, **asked: Any) -> dict[str, Any]:
    """Plan twice in a process of its own, the second time from the kept list; return times and peaks of memory.

    Args:
        output: Folder of the dataset, which is not built.
        asked: `samples` for a made-up list of so many, `folder` for a user's own tree of files, or `table` for a
            folder of tables; `num_shards`; `memory_bytes` and `part_bytes` to change the limits of
            dataprep/dataset/spill.py.
    """
    asked["output"] = str(output)
    run = subprocess.run([sys.executable, "-c", PLAN, json.dumps(asked)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def plan_samples(count: int, kind: str, folder: Path) -> str:
    """Plan a small list and one of so many samples, which must take no more memory; a line that says how much."""
    found, few = {}, min(SMALL_SAMPLES, count // 2)
    for samples in (few, count):
        place = folder / str(samples)
        made: dict[str, Any] = {"samples": samples}
        if kind in WRITERS:  # as many images a shard as shards of photographs have
            made = {kind: str(WRITERS[kind](place / "tiny", samples)), "num_shards": samples // SAMPLES_PER_SHARD}
        found[samples] = planning(place / "out", **made)
        assert (found[samples]["samples"], found[samples]["same"]) == (samples, True)
        shutil.rmtree(place)
    small, large = found[few], found[count]
    grown_bytes = large["rerun_peak_bytes"] - small["rerun_peak_bytes"]
    more_shards = (count - few) // SAMPLES_PER_SHARD
    assert grown_bytes < ALLOWED_BYTES + ALLOWED_BYTES_A_SHARD * more_shards, (
        f"{small['rerun_peak_bytes']:,} bytes, then {large['rerun_peak_bytes']:,} with {more_shards:,} more shards"
    )
    return (
        f"{count:,}: {large['first_s']:.0f} s, {large['store_s']:.0f} s to store, {large['rerun_s']:.0f} s again, "
        f"{large['rerun_peak_bytes'] / 1e6:.0f} MB; {few:,} take {small['rerun_peak_bytes'] / 1e6:.0f} MB"
    )


def write_tiny_files(folder: Path, count: int) -> Path:
    """Write files of one byte in a hundred class folders; a plan looks into none of them."""
    for label in range(100):
        (folder / f"class{label}").mkdir(parents=True)
    for number in range(count):
        with open(f"{folder}/class{number % 100}/{number}.jpg", "wb") as file:
            file.write(b"x")
    return folder


def write_tiny_table(folder: Path, count: int) -> Path:
    """Write parquet files of up to a million rows: an image of a few bytes, which no plan decodes, and its label."""
    folder.mkdir(parents=True)
    for first in range(0, count, ROWS_PER_FILE):
        rows = min(ROWS_PER_FILE, count - first)
        numbers = np.arange(first, first + rows)
        columns = {"image": pa.array(numbers.astype("S")), "label": pa.array(numbers % 100)}
        path = folder / f"train-{first // ROWS_PER_FILE:05}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=10_000, use_dictionary=False)
    return folder


WRITERS = {"folder": write_tiny_files, "table": write_tiny_table}


def request_of(asked: dict[str, Any]) -> Any:
    """Return the request of a build; a made-up list is a dataset of its own, known to this process alone."""
    from dataprep import sources
    from dataprep.builder.plan import BuildOptions, BuildRequest
    from dataprep.sources.base import OwnData

    own, dataset = None, next((kind for kind in WRITERS if kind in asked), "synthetic")
    if dataset == "synthetic":
        made_up = {"synthetic": _synthetic(asked["samples"])}
        sources.DATASETS = ChainMap(made_up, sources.DATASETS)
        sources.BUILT = ChainMap(made_up, sources.BUILT)
    else:
        own = OwnData(name="tiny")
    options = BuildOptions(
        dataset=dataset,
        format="webdataset",
        splits=() if own else ("train",),
        own=own,
        num_shards=asked.get("num_shards"),
    )
    source = asked.get(dataset, asked["output"])
    return BuildRequest(options=options, source_url=source, output_url=asked["output"], max_reject_ratio=0)


def _synthetic(samples: int) -> Any:
    """Return a dataset whose images exist in its list only, which is made as fast as it is read."""
    from dataclasses import dataclass

    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from dataprep.dataset.columns import from_numpy, strings
    from dataprep.dataset.records import Enumeration, SourceFile
    from dataprep.dataset.spill import REFERENCE_ROWS, SpilledReferences, spill_schema
    from dataprep.sources.base import Dataset, SplitFacts

    @dataclass(frozen=True, kw_only=True)
    class Synthetic(Dataset):
        def classes(self, root: Any, *, allow_partial: bool) -> tuple[str, ...]:
            return ()

        def _find(self, *_: Any, **__: Any) -> Enumeration:
            refs = SpilledReferences()
            for first in range(0, samples, REFERENCE_ROWS):
                numbers = np.arange(first, min(first + REFERENCE_ROWS, samples))
                prefix, dash, nothing = strings(["n", "/n", ""])
                texts = pc.cast(from_numpy(numbers), pa.string())
                keys = pc.binary_join_element_wise(prefix, texts, dash, texts, nothing)
                columns = [
                    keys,
                    strings(["imagenet21k.tar"] * len(numbers)),
                    from_numpy(numbers * 110_000),
                    from_numpy(90_000 + numbers % 40_009),
                    from_numpy(np.full(len(numbers), -1, np.int32)),
                    strings([""] * len(numbers), large=True),
                    pa.nulls(len(numbers), pa.uint32()),
                    from_numpy(np.zeros(len(numbers), np.int64)),
                ]
                refs.add_rows(pa.RecordBatch.from_arrays(columns, schema=spill_schema()))
            return Enumeration(refs, [SourceFile("imagenet21k.tar", 1)])

    return Synthetic(
        name="synthetic",
        description="A made-up list.",
        citation="",
        licence="",
        origin="",
        facts={"train": SplitFacts(samples=samples)},
        default_splits=("train",),
    )
