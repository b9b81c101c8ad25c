"""Shards of a table of URLs, one after the other: rows, web, files in a folder of their own, receipt."""

from __future__ import annotations

import copy
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from dataprep.checksums import HashingWriter
from dataprep.errors import UsageError
from dataprep.laion.collect import Fetch, RowOptions
from dataprep.laion.commit import decide, put_in_place
from dataprep.laion.make import MadeShard, make_shard
from dataprep.laion.names import ShardNames, built_names
from dataprep.laion.plan import laion_of
from dataprep.laion.shard import ShardSchema
from dataprep.records import Fetched, ShardReceipt
from dataprep.sources.laion import SPLIT, Row, read_shard_rows
from dataprep.storage import Storage, disk_errors, open_originals, open_storage
from dataprep.workspace import BUILD, read_receipt, stored_plan
from dataprep.writeback import WritebackFile

if TYPE_CHECKING:
    from dataprep.build import BuildJob
    from dataprep.web.limits import Limits
    from dataprep.web.outcomes import Outcome, Request

LATE_PART = 20
"""When one row in so many is left of a shard, the next one is begun: the last rows may take minutes and the processor
nothing, and the first ones of the next need a while, too."""


class WebFetch:
    """Asks the web for the rows of shard after shard; what it learns of hosts serves the next one.

    Raises:
        UsageError: The packages for it are not there.
    """

    def __init__(self, limits: Limits) -> None:
        try:
            from dataprep.laion.fetching import web_fetch
            from dataprep.web.caches import Known
        except ImportError as error:
            raise UsageError(f"laion needs packages for fetching ({error}): pip install 'dataprep[laion]'") from error
        self.allow_networks = tuple(sorted(str(network) for network in limits.allow_networks))
        self.fetch: Fetch = web_fetch(limits, Known())

    def telling(self, nearly_done: Callable[[], object]) -> WebFetch:
        """The same, but whoever waits for it is told when few rows are left."""
        other = copy.copy(self)
        other.fetch = partial(_fetch_telling, self.fetch, nearly_done)
        return other


def _fetch_telling(fetch: Fetch, nearly_done: Callable[[], object], requests: Iterable[Request]) -> Iterator[Outcome]:
    waiting = list(requests)
    left = len(waiting)
    for outcome in fetch(waiting):
        left -= 1
        if left == len(waiting) // LATE_PART:
            nearly_done()
        yield outcome
        del outcome  # the body is the caller's now


@dataclass(frozen=True, slots=True)
class Target:
    """Where shards go, and as what."""

    storage: Storage
    root: str
    """Folder of receipts and attempts: `_build` or `_retry`."""
    format: str
    names: ShardNames
    rows: RowOptions
    schema: ShardSchema


class ShardFetcher:
    """Builds the shards of one job: one at a time, but for the late rows of the last one."""

    def __init__(self, job: BuildJob) -> None:
        if job.limits is None:
            raise UsageError("a table of URLs is built within limits, got none; build it with dataprep build laion")
        self._source = open_originals(job.source_url)
        self._web = WebFetch(job.limits)
        storage = open_storage(job.output_url)
        plan = stored_plan(storage, job.plan_hash)
        self._tables, options = laion_of(plan)
        names = built_names(plan.options.format, SPLIT, options.shard_digits)
        self._target = Target(storage, BUILD, plan.options.format, names, options.rows, options.schema)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="dataprep-shard")

    def begin(self, index: int) -> Future[ShardReceipt]:
        """As `build`, but returns when only late rows are left, so that the next one can be begun.

        For one thread of a process. There are never more than two shards under way: the third waits here.
        """
        nearly_done = threading.Event()
        receipt = self._threads.submit(self._build, index, self._web.telling(nearly_done.set))
        receipt.add_done_callback(lambda _: nearly_done.set())
        nearly_done.wait()
        return receipt

    def build(self, index: int) -> ShardReceipt:
        """One shard, or what became of it before: nothing that has a receipt is asked for again."""
        return self._build(index, self._web)

    def _build(self, index: int, web: WebFetch) -> ShardReceipt:
        found = read_receipt(self._target.storage, index)
        if found is not None:
            put_in_place(self._target.storage, found[0])
            return found[0]
        rows = read_shard_rows(self._source, self._tables, index)
        return fetch_shard(self._target, index, index, rows, web)


def fetch_shard(
    target: Target,
    index: int,
    split_index: int,
    rows: Sequence[Row],
    web: WebFetch,
    before: Mapping[str, dict[str, int]] | None = None,
) -> ShardReceipt:
    """Fetch rows as one shard, and have it decided (dataprep/laion/commit.py).

    Args:
        target: Where it goes.
        index: Number of its receipt.
        split_index: Its place among the shards of the split.
        rows: In the table's order.
        web: Asks for them.
        before: Of rows that are tried again, `statuses` and `reasons` that they had.

    Returns:
        The receipt that counts, which may be another attempt's.
    """
    storage, names = target.storage, target.names
    file = names.samples_file(split_index)
    attempt = f"{target.root}/tmp/{index:05d}-{uuid.uuid4().hex}"
    made, samples = _write(target, f"{attempt}/{file}", split_index, rows, web.fetch, before)
    beside = {names.parquet_file(split_index): made.parquet, names.stats_file(split_index): made.stats}
    for name, data in beside.items():
        storage.create(f"{attempt}/{name}", data)
    receipt = ShardReceipt(
        index=index,
        split=SPLIT,
        split_index=split_index,
        file=file,
        samples=made.index.num_rows,
        num_bytes=samples.num_bytes,
        sha256=samples.sha256,
        crc32c=samples.crc32c,
        fetched=Fetched(
            attempt=attempt,
            files=tuple(_entry(name, data) for name, data in beside.items()),
            statuses=made.statuses,
            reasons=made.reasons,
            allow_networks=web.allow_networks,
            before=dict(before or {}),
        ),
    )
    return decide(storage, target.root, receipt, made.index)


def _write(
    target: Target,
    name: str,
    split_index: int,
    rows: Sequence[Row],
    fetch: Fetch,
    before: Mapping[str, dict[str, int]] | None,
) -> tuple[MadeShard, WritebackFile]:
    """The samples' file, put in place under this name."""
    storage = target.storage
    spool = storage.spool_path(name)
    try:
        with (
            disk_errors(spool),
            _nameless(storage.spool_path(f"{name}-images")) as images,
            storage.sending(spool, name) as sent,
            WritebackFile(spool, sent) as file,
        ):
            made = make_shard(
                rows,
                fetch,
                target.rows,
                target.schema,
                format_name=target.format,
                split_index=split_index,
                stream=cast(BinaryIO, file),
                spool=images,
                before=before,
            )
    except BaseException:
        spool.unlink(missing_ok=True)
        raise
    storage.publish(spool, name, file.crc32c)
    return made, file


def _nameless(path: Path) -> BinaryIO:
    """A file that is gone when it is closed, however this process ends."""
    file = path.open("w+b")
    path.unlink()
    return file


def _entry(name: str, data: bytes) -> dict[str, Any]:
    digests = HashingWriter(None)
    digests.write(data)
    return {"file": name, "bytes": len(data), "sha256": digests.sha256, "crc32c": digests.crc32c}
