"""Builds the shards of a table of URLs: reads rows, downloads images, writes files to an attempt's folder, and commits
them."""

from __future__ import annotations

import copy
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from dataprep.builder.cards import read_card
from dataprep.builder.output import is_over_remains, open_build
from dataprep.builder.receipts import read_receipt
from dataprep.builder.recipe import BuildJob
from dataprep.builder.shard import WritebackFile
from dataprep.dataset.paths import CROISSANT
from dataprep.dataset.records import Fetched, ShardReceipt, SidecarEntry
from dataprep.errors import FormatError, UsageError, install_hint
from dataprep.fetched.collect import MAX_SIDECAR_BYTES, Fetch
from dataprep.fetched.commit import Places, decide, put_in_place, refuse_added
from dataprep.fetched.plan import laion_of
from dataprep.fetched.shard import (
    MadeShard,
    ShardOptions,
    Streams,
    built_names,
    make_shard,
    read_shard,
)
from dataprep.sources.laion import SPLIT, Row, read_shard_rows
from dataprep.storage import Storage, disk_errors, open_originals
from dataprep.storage.checksums import HashingWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from dataprep.web.requests import Limits, Outcome, Request

LATE_PART = 20
"""When only one row in LATE_PART is left, the next shard is begun: the last rows may take minutes without using the
CPU, and the first rows of the next shard take a while to arrive."""


@dataclass(frozen=True, slots=True)
class FetchJob(BuildJob):
    """Everything that a worker on any machine needs, except a shard's index."""

    limits: Limits
    """Limits within which one worker fetches."""


class WebFetch:
    """Fetches the rows of one shard after the other, and keeps what it learns about hosts.

    Args:
        kept: Keep connections, too, while no shard is in progress.

    Raises:
        UsageError: The packages for fetching are not installed.
    """

    def __init__(self, limits: Limits, *, kept: bool = False) -> None:
        try:
            from dataprep.fetched.fetching import web_fetch
            from dataprep.web.politeness import Known
        except ImportError as error:
            raise UsageError(f"laion needs packages for fetching ({error}): {install_hint('laion')}") from error
        self.allow_networks = tuple(sorted(str(network) for network in limits.allow_networks))
        self.fetch: Fetch = web_fetch(limits, Known(), kept=kept)

    def telling(self, nearly_done: Callable[[], object]) -> WebFetch:
        """Return a copy that also calls `nearly_done` when few rows are left."""
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
        del outcome  # so that only the caller holds the body


@dataclass(frozen=True, slots=True)
class Target:
    """Storage and options of the shards."""

    storage: Storage
    places: Places
    options: ShardOptions
    check: Callable[[], None]
    """Function that raises an error if this build or retry no longer owns the output."""


class ShardFetcher:
    """Builds the shards of one job in one process, with its connections and what it learns about hosts.

    Several threads may build at once; together they keep to the limits of the job.
    """

    def __init__(self, job: FetchJob) -> None:
        self._source = open_originals(job.source_url)
        self._web = WebFetch(job.limits, kept=True)
        build = open_build(job.output_url, job.root, job.pointer)
        self._tables, options = laion_of(build.plan)
        name = build.plan.options.format
        names = built_names(build.plan.options.name, name, SPLIT, options.shard_digits)
        replaces = is_over_remains(build.storage, build.plan)
        places = Places(root=build.root, names=names, replaces=replaces)
        self._card = (read_card(build.storage, CROISSANT) or b"") if replaces else b""
        if replaces:
            refuse_added(build.storage, names, build.plan.num_shards)
        self._target = Target(build.storage, places, ShardOptions(name, options.rows, options.schema), build.check)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="dataprep-shard")

    def begin(self, index: int) -> Future[ShardReceipt]:
        """Build one shard, but return when only late rows are left, so that the next one can be begun.

        To be called by one thread of a process. At most two shards are in progress: a third call waits.
        """
        nearly_done = threading.Event()
        receipt = self._threads.submit(self._build, index, self._web.telling(nearly_done.set))
        receipt.add_done_callback(lambda _: nearly_done.set())
        nearly_done.wait()
        return receipt

    def build(self, index: int) -> ShardReceipt:
        """Build one shard, or return its existing receipt without fetching the rows again."""
        return self._build(index, self._web)

    def _build(self, index: int, web: WebFetch) -> ShardReceipt:
        found = read_receipt(self._target.storage, index, self._target.places.root)
        if found is not None:
            places = self._target.places
            receipt = places.checked(self._target.storage, index, found[0])
            put_in_place(self._target.storage, receipt, replaces=places.replaces)
            return receipt
        rows = read_shard_rows(self._source, self._tables, index)
        kept = kept_shard(self._target, index, rows, web, self._card) if self._target.places.replaces else None
        if kept is not None:
            return decide(self._target.storage, self._target.places, *kept)
        return fetch_shard(self._target, index, rows, web)


def kept_shard(
    target: Target, index: int, rows: Sequence[Row], web: WebFetch, card: bytes
) -> tuple[ShardReceipt, pa.Table] | None:
    """Return the receipt and index rows of a shard that a build has left behind; None if it is missing or damaged.

    Args:
        web: Fetcher of this run; the receipt names its networks.
        card: Content of the dataset's `croissant.json`, which has the SHA-256 digests of the shards; empty without it.
    """
    storage = target.storage
    split_index = target.places.first_shard + index
    file, parquet, stats = target.places.names.files(split_index)
    try:
        data = {name: storage.read(name, MAX_SIDECAR_BYTES) for name in (parquet, stats)}
        with storage.open(file) as stream:
            made, samples = read_shard(stream, data[parquet], split_index, rows, target.options)
    except (FileNotFoundError, FormatError):
        return None
    if made.stats != data[stats] or samples.sha256.encode() not in (card or samples.sha256.encode()):
        return None
    attempt = target.places.attempt(index, uuid.uuid4().hex)
    return _receipt(target, index, attempt, (made, samples), web), made.index


def fetch_shard(
    target: Target,
    index: int,
    rows: Sequence[Row],
    web: WebFetch,
    before: Mapping[str, dict[str, int]] | None = None,
) -> ShardReceipt:
    """Fetch rows as one shard, and commit it (dataprep/fetched/commit.py).

    Args:
        before: Earlier `statuses` and `reasons` of rows that are tried again.

    Returns:
        The valid receipt, which may be another attempt's.
    """
    storage, names = target.storage, target.places.names
    split_index = target.places.first_shard + index
    file = names.samples_file(split_index)
    attempt = target.places.attempt(index, uuid.uuid4().hex)
    made, samples = _write(target, f"{attempt}/{file}", split_index, rows, web.fetch, before)
    for name, data in _sidecars(target, split_index, made).items():
        storage.create(f"{attempt}/{name}", data)
    receipt = _receipt(target, index, attempt, (made, samples), web, before)
    # If another build owns the output now, it removes the files uploaded so far, and they can no longer be published.
    target.check()
    return decide(storage, target.places, receipt, made.index)


def _sidecars(target: Target, split_index: int, made: MadeShard) -> dict[str, bytes]:
    _, parquet, stats = target.places.names.files(split_index)
    return {parquet: made.parquet, stats: made.stats}


def _receipt(
    target: Target,
    index: int,
    attempt: str,
    written: tuple[MadeShard, WritebackFile | HashingWriter],
    web: WebFetch,
    before: Mapping[str, dict[str, int]] | None = None,
) -> ShardReceipt:
    """Return the receipt of a shard, given the shard and the digests of its samples."""
    made, samples = written
    split_index = target.places.first_shard + index
    return ShardReceipt(
        index=index,
        split=SPLIT,
        split_index=split_index,
        file=target.places.names.samples_file(split_index),
        samples=made.index.num_rows,
        num_bytes=samples.num_bytes,
        sha256=samples.sha256,
        crc32c=samples.crc32c,
        fetched=Fetched(
            attempt=attempt,
            files=tuple(_entry(name, data) for name, data in _sidecars(target, split_index, made).items()),
            statuses=made.statuses,
            reasons=made.reasons,
            allow_networks=web.allow_networks,
            before=dict(before or {}),
        ),
    )


def _write(
    target: Target,
    name: str,
    split_index: int,
    rows: Sequence[Row],
    fetch: Fetch,
    before: Mapping[str, dict[str, int]] | None,
) -> tuple[MadeShard, WritebackFile]:
    """Write the samples file, and publish it under this name."""
    storage = target.storage
    spool = storage.spool_path(name)
    try:
        with (
            disk_errors(spool),
            _nameless(storage.spool_path(f"{name}-images")) as images,
            storage.sending(spool, name) as sent,
            WritebackFile(spool, sent) as file,
        ):
            made = make_shard(rows, fetch, target.options, split_index, Streams(cast(BinaryIO, file), images), before)
    except BaseException:
        spool.unlink(missing_ok=True)
        raise
    storage.publish(spool, name, file.crc32c)
    return made, file


def _nameless(path: Path) -> BinaryIO:
    """Open a file that vanishes when it is closed, even if the process is killed."""
    file = path.open("w+b")
    path.unlink(missing_ok=True)  # a build that overwrites this one may have removed it
    return file


def _entry(name: str, data: bytes) -> SidecarEntry:
    digests = HashingWriter(None)
    digests.write(data)
    return {"file": name, "bytes": len(data), "sha256": digests.sha256, "crc32c": digests.crc32c}
