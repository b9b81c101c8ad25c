"""Kill builds and retries of a table of URLs, and hold what they leave against what the server knows."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from dataprep.dataset.index import open_index
from dataprep.dataset.manifest import read_manifest
from dataprep.host.cpu import children
from dataprep.storage import open_storage
from tests.support.builds import command, dataprep, digests, is_finished
from tests.support.crashes import receipts_of, stop_everywhere, workers_of
from tests.support.picture_web import WEB, PictureWeb, laion_arguments, picture_web
from tests.support.waiting import end_soon

ROWS_PER_SHARD = 10
LONGEST_S = 2.5


def kill_fetching(rng: random.Random, web: PictureWeb, table: Path, output: Path, fmt: str, kills: int) -> str:
    """Kill builds at random until so many kills have hit, run them again, and check every dataset that comes of it.

    The server's answers change all the while: what stands must be what it said last, and of what has a receipt nothing
    may be asked for again.
    """
    arguments = command(*laion_arguments(table, output, fmt, "--workers", 2))
    left, finished, asked = kills, 0, {}
    while left > 0:
        left -= _run_and_kill(rng, arguments)
        if is_finished(output):
            check_fetched(web, arguments, output, asked)
            finished += 1
            shutil.rmtree(output)
            asked = {}
            continue
        for shard in receipts_of(output):
            first = shard * ROWS_PER_SHARD
            for row in range(first, first + ROWS_PER_SHARD):
                asked.setdefault(row, web.asked[row])
    check_fetched(web, arguments, output, asked)
    return f"{kills} kills, {finished + 1} datasets, {len(asked)} rows of the last one kept over kills"


def check_fetched(web: PictureWeb, arguments: list[str], output: Path, asked: dict[int, int]) -> None:
    """Finish a build, and compare all of it with what the server answered."""
    run = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=800)
    assert run.returncode == 0, run.stderr[-2000:]
    again = {row: (times, web.asked[row]) for row, times in asked.items() if web.asked[row] != times}
    assert not again, f"asked for again after a receipt: {again}"
    rows = list(newest_rows(output))
    for number, row in enumerate(rows):
        code, sha256 = web.answered[number]
        due = ("success", None, sha256) if code == 200 else ("failed_to_download", f"http {code}", None)
        assert (row["status"], row["error_message"], row["sha256"]) == due, f"row {number}"
    statuses = json.loads(run.stdout)["splits"][0]["statuses"]
    assert sum(statuses.values()) == len(rows)
    assert statuses["success"] == sum(row["status"] == "success" for row in rows)
    assert not (output / "_build").exists()
    verified = dataprep("verify", output, "--deep")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def newest_rows(output: Path) -> Iterator[dict]:
    """Every row with its newest status, in the order of the table."""
    found = {}
    for path in sorted(output.glob("train/*.parquet")):
        found |= {row["key"]: row for row in pq.read_table(path).to_pylist()}
    for key in sorted(found):
        yield found[key]


def reader_faults(output: Path) -> list[str]:
    """What a reader of the manifest, or of TFDS's dataset_info.json, would miss at this moment."""
    storage = open_storage(str(output))
    manifest = read_manifest(storage)
    if manifest is None:
        return ["no manifest"]
    split = manifest.splits[0]
    named = {shard["file"]: shard["bytes"] for shard in split.shards}
    beside = (entry for entry in manifest.files if not entry["file"].endswith(("info.json", "features.json")))
    named |= {entry["file"]: entry["bytes"] for entry in beside}
    faults = [name for name, num_bytes in named.items() if (output / name).stat().st_size != num_bytes]
    groups = open_index(storage, split).group_rows
    if groups[: len(split.shards)] != [shard["samples"] for shard in split.shards]:
        faults.append(f"index of {len(groups)} row groups")
    if manifest.format == "tfrecord":
        info = json.loads((output / "dataset_info.json").read_text())
        entry, words = info["splits"][0], {"DATASET": info["name"], "SPLIT": "train", "FILEFORMAT": "tfrecord"}
        for number in range(len(entry["shardLengths"])):
            name = entry["filepathTemplate"].format(**words, SHARD_INDEX=f"{number:05d}")
            faults += [] if (output / name).exists() else [name]
    return faults


def crash_cases() -> Iterator[tuple[str, Callable[[Path], str]]]:
    """For the soak."""
    for fmt in ("webdataset", "tfrecord"):
        yield f"50 kills, {fmt}", partial(_fifty_kills, fmt)
        yield f"builds stopped at every commit boundary, {fmt}", partial(_every_boundary, fmt)
        yield f"retries stopped at every commit boundary, {fmt}", partial(_every_retry_boundary, fmt)


def _fifty_kills(fmt: str, folder: Path) -> str:
    with picture_web() as web:
        web.changing, web.latency_s = True, 0.05
        return kill_fetching(
            random.Random(fmt), web, web.write_table(folder / "t.parquet", 120), folder / "out", fmt, 50
        )


def _every_boundary(fmt: str, folder: Path) -> str:
    with picture_web() as web:
        web.faults = {3: 404}
        arguments = laion_arguments(web.write_table(folder / "t.parquet", 25), folder / "out", fmt)
        assert dataprep(*arguments).returncode == 0
        expected = digests(folder / "out")
        shutil.rmtree(folder / "out")
        return f"{stop_everywhere(arguments, folder / 'out', expected)} stops"


def _every_retry_boundary(fmt: str, folder: Path) -> str:
    return f"{stop_retries_of(fmt, folder, 1)} stops"


def stop_retries_of(fmt: str, folder: Path, every: int) -> int:
    """Stop `retry-failed` at every n-th boundary, for a table of which every third row failed at first.

    A reader finds a whole dataset each time, and the same command goes on to the same end. Returns the stops made.
    """
    output = folder / "out"
    with picture_web() as web:
        web.faults = dict.fromkeys(range(0, 40, 3), 503)
        assert dataprep(*laion_arguments(web.write_table(folder / "t.parquet", 40), output, fmt)).returncode == 0
        web.faults = {9: 404}
        arguments = ["retry-failed", output, *WEB, "--workers", 1, "--json"]
        before = shutil.copytree(output, output.with_name("before"))
        assert dataprep(*arguments).returncode == 0
        expected = digests(output)

        def start_over() -> None:
            shutil.rmtree(output)
            shutil.copytree(before, output)

        start_over()
        faults = partial(reader_faults, output)
        return stop_everywhere(arguments, output, expected, every, faults=faults, start_over=start_over)


def _run_and_kill(rng: random.Random, arguments: list[str]) -> bool:
    """Kill everything, sometimes one worker first; whether the command was still running."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline_s = time.monotonic() + rng.uniform(0.4, LONGEST_S)
    if rng.random() < 0.3:
        time.sleep(rng.uniform(0.4, 1.0))
        for worker in workers_of(process.pid)[:1]:
            os.kill(worker, signal.SIGKILL)
    while process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.01)
    hit = process.poll() is None
    parents = (process.pid, *children(process.pid)) if hit else ()
    descendants = [child for parent in parents for child in children(parent)]
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        hit = False
    process.wait()
    assert end_soon(descendants)
    return hit
