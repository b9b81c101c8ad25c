"""Tables of any length, made on the fly, and what planning a build of them takes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from tests.support.laion_builds import laion_arguments

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


def plan_flat(folder: Path, kind: str, rows: int) -> str:
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
