"""`dataprep build laion` as a user runs it, and what became of each row."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dataprep.web.requests import Status
from tests.support.builds import command
from tests.support.fetching import SLOW_HOST
from tests.support.web_pages import own_picture
from tests.support.web_server import Case, mixture, web_server_process
from tests.support.words import replaced

CONTACT = "mailto:tests@example.org"
LOOPBACK = ("--allow-network", "127.0.0.0/8")
FAST = ("--host-per-second", "1000", "--address-per-second", "1000")
"""Gentle to nobody."""
PATIENT = ("--connect-seconds", "100", "--read-seconds", "100", "--answer-seconds", "200", "--row-seconds", "600")
QUICK = ("--read-seconds", "5", "--answer-seconds", "9")
"""About hosts that stall."""
_HTTP_CODES = {"missing": 404, "broken": 500, "unavailable": 503, "overloaded": 429}
"""By kind of path, or sort of host."""

End = tuple[str, str]
"""A row's status and reason."""


def write_table(path: Path, urls: Sequence[str]) -> Path:
    """A table of these URLs, each with a caption of its own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"URL": urls, "TEXT": [f"caption {row}" for row in range(len(urls))]}), path)
    return path


def laion_arguments(table: object, output: object, fmt: str, *more: object) -> list[object]:
    words = ["build", "laion", "--source", table, "--output", output, "--format", fmt, "--contact", CONTACT, "--json"]
    return replaced(words, *more)


def build_laion(table: object, output: object, fmt: str, *more: object, timeout_s: float = 800) -> dict[str, Any]:
    """Build, which must succeed; the JSON that it prints."""
    words = command(*laion_arguments(table, output, fmt, *more))
    run = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, env={**os.environ}, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    printed: dict[str, Any] = json.loads(run.stdout)
    return printed


def rows_of(output: Path) -> list[dict[str, Any]]:
    """All rows of a dataset, in the table's order: the files beside the shards."""
    import pyarrow.parquet as pq

    return [row for path in sorted(output.glob("train/*.parquet")) for row in pq.read_table(path).to_pylist()]


def end_of(row: dict[str, Any]) -> End:
    return row["status"], row["error_message"] or ""


def ends_of(case: Case) -> frozenset[End]:
    """Return the outcomes of which a row of `mixture` must have one."""
    url = urlsplit(case.url)
    sort = (url.hostname or "").partition("-")[0]
    kind = sort if sort in _HTTP_CODES else url.path.split("/")[1]
    return frozenset(_end(kind, status) for status in case.expected)


def shard_digests(output: Path) -> dict[str, str]:
    """SHA-256 of the shards by their names."""
    shards = [*output.glob("train/*.tar"), *output.glob("*.tfrecord-*")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in shards}


def _end(kind: str, status: Status) -> End:
    if status is Status.SUCCESS:
        return ("failed_to_resize", "truncated") if kind == "corrupt" else ("success", "")
    reason = f"http {_HTTP_CODES[kind]}" if status is Status.HTTP else status.value.replace("_", " ")
    reason += ": X-Robots-Tag" if status is Status.OPT_OUT else ""
    return "failed_to_download", reason


RUNS = (("--workers", 2, "--in-flight", 64), ("--workers", 1, "--in-flight", 48))
"""More in flight wait longer for two busy cores than for a host that stalls. Answers take other times in each, too."""


TRIES = 3
"""Builds of one table, while the machine stands still for so long that good hosts seem slow."""


def build_twice(fmt: str, folder: Path, *, rows: int, hosts: int, rows_per_shard: int) -> str:
    """Build a table of all kinds in two ways, and check both; a line that says what there was."""
    with web_server_process(latency_s=0.02, jitter_s=0.1) as web:
        cases = mixture(web.port, rows, hosts)
        table = write_table(folder / "table.parquet", [case.url for case in cases])
        outputs = [folder / f"run-{number}" for number in range(len(RUNS))]
        for output, more in zip(outputs, RUNS, strict=True):
            fixed = (
                "--nameserver",
                web.nameserver,
                "--rows-per-shard",
                rows_per_shard,
                *LOOPBACK,
                *FAST,
                *QUICK,
                "--max-body",
                "1MiB",
            )
            for _ in range(TRIES):
                shutil.rmtree(output, ignore_errors=True)
                printed = build_laion(table, output, fmt, *fixed, *more, timeout_s=1_800)
                if not seemed_slow(cases, output):
                    break
            check_rows(cases, output, printed)
            if fmt == "webdataset":
                check_images(output)
    digests = [shard_digests(output) for output in outputs]
    assert digests[0] == digests[1]
    counts = Counter(end_of(row) for row in rows_of(outputs[0]))
    return f"{rows:,} rows, {len(digests[0])} shards equal, {len(counts)} ends, {counts['success', '']:,} images"


def seemed_slow(cases: list[Case], output: Path) -> bool:
    """Whether a host seemed slow that is not, because the machine was."""
    slow = {status.value.replace("_", " ") for status in SLOW_HOST}
    ends = zip(cases, map(end_of, rows_of(output)), strict=True)
    return any(reason in slow and (status, reason) not in ends_of(case) for case, (status, reason) in ends)


def check_rows(cases: list[Case], output: Path, printed: dict[str, Any]) -> None:
    """Every row is there, in its place, with one of the ends that it may have; the counts are those of the rows."""
    found = rows_of(output)
    assert [row["url"] for row in found] == [case.url for case in cases]
    wrong = [
        (case.url, end_of(row)) for case, row in zip(cases, found, strict=True) if end_of(row) not in ends_of(case)
    ]
    assert wrong == [], f"{len(wrong)} rows, {wrong[:5]}"
    (split,) = printed["splits"]
    assert nonzero(split["statuses"]) == Counter(row["status"] for row in found)
    assert nonzero(split["reasons"]) == Counter(row["error_message"] or row["status"] for row in found)


def check_images(output: Path) -> None:
    """Each image that is its URL's own lies beside that URL."""
    checked = 0
    for path in output.glob("train/*.tar"):
        with tarfile.open(path) as tar:
            members = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        for name, content in members.items():
            if name.endswith(".json"):
                url = urlsplit(json.loads(content)["url"])
                if url.path.startswith("/own/"):
                    assert members[name.removesuffix("json") + "jpg"] == own_picture(url.path)
                    checked += 1
    assert checked


def nonzero(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


GROUP_ROWS = 1_000_000
SMALL_ROWS = 100_000
ALLOWED_GROWTH_BYTES = 12_000_000
"""From the small table to any other; 5,000 shards' row counts and byte positions are some of it."""

_WITH_PEAK = """
import os, sys
from dataprep.cli import main
from dataprep.host.measure import peak_bytes
try:
    main()
finally:
    print(peak_bytes(os.getpid()), file=sys.stderr)
"""


def plan_flat(kind: str, folder: Path, rows: int) -> str:
    """Plan a small table and one of so many rows, which must take no more memory; a line that says how much."""
    small_rows, small_bytes, _ = planning(write_rows(folder, kind, SMALL_ROWS))
    large_rows, large_bytes, large_s = planning(write_rows(folder, kind, rows))
    assert (small_rows, large_rows) == (SMALL_ROWS, rows)
    assert large_bytes < small_bytes + ALLOWED_GROWTH_BYTES, f"{small_bytes:,} bytes, then {large_bytes:,}"
    return f"{rows:,} rows in {large_s:.1f} s: {large_bytes / 1e6:.0f} MB, {small_bytes / 1e6:.0f} MB of {SMALL_ROWS:,}"


def write_rows(folder: Path, kind: str, rows: int) -> Path:
    """A table whose URLs come back, so that it is written in seconds; a plan looks at none of them."""
    path = folder / f"{rows}.{kind}"
    if kind == "parquet":
        _write_parquet(path, rows)
    else:
        _write_lines(path, rows)
    return path


def planning(table: Path) -> tuple[int, int, float]:
    """Rows and peak bytes of `dataprep build laion --dry-run`, and the seconds that it took."""
    words = laion_arguments(table, table.parent / "out", "webdataset", "--dry-run")
    began_s = time.perf_counter()
    command = [sys.executable, "-c", _WITH_PEAK, *(str(word) for word in words)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    elapsed_s = time.perf_counter() - began_s
    files = json.loads(run.stdout)["laion"]["tables"]["files"]
    return sum(file["rows"] for file in files), int(run.stderr.splitlines()[-1]), elapsed_s


def _write_parquet(path: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    urls = [f"https://images.example.org/{row}.jpg" for row in range(min(rows, GROUP_ROWS))]
    table = pa.table({"URL": urls, "TEXT": ["a photograph"] * len(urls), "WIDTH": [640] * len(urls)})
    with pq.ParquetWriter(path, table.schema) as writer:
        for first in range(0, rows, GROUP_ROWS):
            writer.write_table(table.slice(0, min(GROUP_ROWS, rows - first)), row_group_size=GROUP_ROWS)


def _write_lines(path: Path, rows: int) -> None:
    line = b'{"URL": "https://images.example.org/a.jpg", "TEXT": "a"}\n'
    with path.open("wb") as stream:
        for first in range(0, rows, GROUP_ROWS):
            stream.write(line * min(GROUP_ROWS, rows - first))
