"""The web at its worst, built twice: every row ends as it must, and answers in another order give the same shards."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.fetching import SLOW_HOST
from tests.support.laion_builds import (
    FAST,
    LOOPBACK,
    QUICK,
    build_laion,
    end_of,
    ends_of,
    rows_of,
    shard_digests,
    write_table,
)
from tests.support.web_pages import own_picture
from tests.support.web_server import Case, mixture, web_server_process

RUNS = (("--workers", 2, "--in-flight", 64), ("--workers", 1, "--in-flight", 48))
"""More in flight wait longer for two busy cores than for a host that stalls. Answers take other times in each, too."""


TRIES = 3
"""Builds of one table, while the machine stands still for so long that good hosts seem slow."""


def build_twice(folder: Path, fmt: str, *, rows: int, hosts: int, rows_per_shard: int) -> str:
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
