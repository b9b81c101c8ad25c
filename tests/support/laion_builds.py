"""`dataprep build laion` as a user runs it, and what became of each row."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dataprep.web.requests import Status
from tests.support.builds import command
from tests.support.web_server import Case
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
