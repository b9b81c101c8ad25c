"""Datasets of which some rows failed, fetched by us or by img2dataset, and their failed rows tried again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.builder.driver import run_build
from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.records import Manifest, ShardReceipt
from dataprep.fetched.collect import RowOptions
from dataprep.fetched.existing import Choice
from dataprep.fetched.plan import FetchRequest, TableRequest, build_options
from dataprep.fetched.retry import Engine, Retried, RetryJob, retry_failed, retry_shard
from dataprep.fetched.shards import FetchJob, ShardFetcher
from dataprep.storage import open_storage
from dataprep.verification.run import verify
from tests.support.adoption import adopt_here
from tests.support.img2dataset import write_img2dataset
from tests.support.picture_web import LIMITS, PictureWeb, picture_web
from tests.support.shared import made_once, shared_folder

ROWS = 34
SHARD_ROWS = 10
FAULTS = {2: 503, 5: 404, 11: 503, 12: 500, 13: 429, 25: 503, 30: 404}
PASSING = {number: code for number, code in FAULTS.items() if code != 404}
"""Faults that may pass, so that their rows are tried again."""
DEFAULT, ALL = Choice(), Choice(everything=True)


class Watcher:
    """Takes what builds and verifications tell."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


# Fetched by us


def build_table(
    web: PictureWeb,
    folder: Path,
    url: str,
    fmt: str,
    *,
    rows: int = ROWS,
    options: RowOptions | None = None,
    overwrite: bool = False,
) -> Manifest:
    """Build the first pictures as a dataset, ten rows a shard; with no `rows` from a table that is there already."""
    table = folder / "laion.parquet"
    if rows:
        web.write_table(table, rows)

    def fetch(job: FetchJob, indexes: Sequence[int]) -> Iterator[ShardReceipt]:
        return map(ShardFetcher(job).build, indexes)

    request = fetch_request(table, url, fmt, rows=options or RowOptions())
    return run_build(replace(request, overwrite=overwrite), fetch, Watcher()).manifest


def fetch_request(table: Path, url: str, fmt: str = "webdataset", **tables: Any) -> FetchRequest:
    """A request for the pictures of a table, ten rows a shard unless further options of TableRequest say otherwise."""
    usual = {"rows_per_shard": SHARD_ROWS, "limits": LIMITS}
    return FetchRequest(
        options=build_options(fmt),
        source_url=str(table.parent),
        output_url=url,
        max_reject_ratio=1.0,
        tables=TableRequest(sources=(str(table),), **(usual | tables)),
    )


def fetched_dataset(fmt: str, factory: pytest.TempPathFactory) -> Path:
    """Return a dataset in which FAULTS failed, made once in a run of the tests, beside its table; only ever read."""

    def make(folder: Path) -> None:
        folder.mkdir()
        with picture_web() as web:
            web.faults = dict(FAULTS)
            build_table(web, folder, str(folder / "out"), fmt)

    return made_once(shared_folder(factory) / f"fetched-{fmt}", make) / "out"


def check_built(url: str) -> None:
    """No byte is wrong, and the manifest counts the newest status of every row."""
    report = verify(url, deep=True, workers=0, progress=Watcher())
    assert report.findings == ()
    newest: dict[str, tuple[str, str]] = {}
    storage = open_storage(url)
    for name in sorted(info.name for info in storage.list("train/") if info.name.endswith(".parquet")):
        for row in pq.read_table(pa.BufferReader(storage.read(name))).to_pylist():
            newest[row["key"]] = (row["status"], row["error_message"])
    split = read_manifest(storage).splits[0]
    assert Counter(status for status, _ in newest.values()) == Counter(split.statuses)
    assert Counter(reason or status for status, reason in newest.values()) == Counter(split.reasons)


# Fetched by img2dataset


def adopted(web: PictureWeb, folder: Path, fmt: str = "webdataset", **how: Any) -> str:
    """Return the URL of an adopted dataset; nothing counts as asked for yet."""
    adopt_here(write_img2dataset(web, folder, fmt, ROWS, **how))
    web.asked.clear()
    return str(folder)


# Tried again


def retry(
    url: str,
    choice: Choice = DEFAULT,
    engine: Engine | None = None,
    *,
    log: Callable[[str], None] = lambda _: None,
) -> Retried:
    """Try failed rows again in this process."""
    progress = SimpleNamespace(shards=lambda *_: None, shard_done=lambda _: None, log=log)
    return retry_failed(url, choice, LIMITS, engine or _shards_here, progress)


def _shards_here(job: RetryJob, indexes: Sequence[int]) -> Iterator[ShardReceipt]:
    return (retry_shard(job, index) for index in indexes)


def begin_retry(url: str, choice: Choice = DEFAULT) -> RetryJob:
    """Begin a retry that is interrupted before a row is asked for; what its workers would get."""
    jobs: list[RetryJob] = []

    def interrupted(job: RetryJob, _: Sequence[int]) -> Iterator[ShardReceipt]:
        jobs.append(job)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retry(url, choice, interrupted)
    return jobs[0]
