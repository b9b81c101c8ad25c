"""Builds the shards of a table of URLs: reads rows, downloads images, writes files to an attempt's folder, and commits
them. The receipt decides which attempt is valid, because a second download may give other bytes.

    nothing ──fetch──▶ attempt ──receipt──▶ decided ──put in place──▶ done

nothing    There is no receipt. If a worker was killed while writing, its spool file has no owner, and the next run
           removes it.
attempt    The three files of the shard are complete and durable in their own folder, `tmp/<shard>-<uuid>/`, under their
           final names. Nothing refers to the folder: after a kill in this state the shard is fetched again, and the
           folder is removed with `_build/` at the end.
decided    The create-only receipt names the folder, and the sizes and digests of the three files. After this no process
           fetches the shard again. If there are two attempts, only one can write the receipt; the other removes its own
           folder and continues with the winner's.
done       The three files are published under their final names, create-only: by hard links on disk, by the server's
           copies in a bucket. Any number of processes may do this at once. Published files are not changed; files that
           still wait are removed.

A worker publishes its shard itself. If it was killed, the process that finds the receipt publishes the shard: a rerun's
worker, or the merge of all receipts. A rerun that finds the manifest only cleans up.
"""

from __future__ import annotations

import copy
import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from dataprep.arrays import pa
from dataprep.builder.cards import read_card
from dataprep.builder.output import is_over_remains, open_build
from dataprep.builder.receipts import read_receipt, receipt_file, write_receipt
from dataprep.builder.recipe import BuildJob
from dataprep.builder.shard import WritebackFile
from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.paths import CROISSANT
from dataprep.dataset.records import Fetched, FileEntry, ShardReceipt, SidecarEntry, SplitManifest
from dataprep.errors import AccessError, BuildError, ConflictError, FormatError, StorageError, needing
from dataprep.fetched import shard as shard_files
from dataprep.fetched.collect import Fetch
from dataprep.fetched.plan import laion_of
from dataprep.sources.laion import SPLIT, Row, read_shard_rows
from dataprep.storage import ObjectInfo, Storage, disk_errors, open_originals, open_storage
from dataprep.storage.checksums import HashingWriter
from dataprep.storage.copies import check_same, copy_object

if TYPE_CHECKING:
    from dataprep.web.requests import Limits, Outcome, Request


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Names of the waiting and published shards of a build or retry, to which its receipts must keep.

    A receipt may come from a stranger, like the rest of the dataset: it is compared with these names before any file
    that it names is moved or removed.
    """

    root: str
    """Folder of the receipts, below `_build` or `_change`."""
    names: shard_files.ShardNames
    first_shard: int = 0
    """Position in the split of the first receipt's shard."""
    replaces: bool = False
    """Whether files of a dataset whose manifest is gone may have these names; they are replaced by the shards."""

    def attempt(self, index: int, uuid_hex: str) -> str:
        """Return the folder where the files of one attempt at a shard wait for publication."""
        return f"{self.root}/tmp/{index:05d}-{uuid_hex}"

    def checked(self, storage: Storage, index: int, receipt: ShardReceipt) -> ShardReceipt:
        """Return a receipt. Raises FormatError if it names other files than this shard's."""
        what, shard = fetched(receipt), self.first_shard + index
        file, *sidecars = self.names.files(shard)
        pairs = {
            "index": (receipt.index, index),
            "split": (receipt.split, SPLIT),
            "split_index": (receipt.split_index, shard),
            "file": (receipt.file, file),
            "files": (sorted(str(entry.get("file")) for entry in what.files), sorted(sidecars)),
        }
        wrong = next(((name, *pair) for name, pair in pairs.items() if pair[0] != pair[1]), None)
        attempt = self.attempt(index, "")
        if wrong is None and not re.fullmatch(rf"{re.escape(attempt)}[0-9a-f]{{32}}", str(what.attempt)):
            wrong = "attempt", what.attempt, f"{attempt}<32 hexadecimal digits>"
        if wrong is not None:
            name, got, expected = wrong
            raise FormatError(
                f"{storage.url_of(receipt_file(index, self.root))}: its {name} is {str(got)[:200]!r}, expected "
                f"{expected!r}; dataprep did not write it: remove {self.root}/ and run the same command again"
            )
        return receipt


def decide(storage: Storage, places: Places, receipt: ShardReceipt, rows: pa.Table) -> ShardReceipt:
    """Decide whether this attempt or an earlier one becomes the shard, and publish it. Raises ConflictError if another
    run has finished and cleaned up, or another object has the shard's name, and StorageError if the files could not be
    put in place; the receipt is stored, and a rerun continues.

    Takes the receipt of this attempt, whose folder has all its files, and returns the valid one.
    """
    try:
        write_receipt(storage, receipt, rows, places.root)
    except ConflictError:
        storage.delete_tree(fetched(receipt).attempt)
        winner = read_receipt(storage, receipt.index, places.root)
        if winner is None:
            raise
        receipt = places.checked(storage, receipt.index, winner[0])
    put_in_place(storage, receipt, replaces=places.replaces)
    return receipt


def put_in_place(storage: Storage, receipt: ShardReceipt, *, replaces: bool = False) -> None:
    """Publish the files that a receipt names, unless they are published already; see `Places.replaces`. Raises
    ConflictError if another object has the name, and StorageError if a file is neither published nor in the folder that
    the receipt names."""
    attempt = fetched(receipt).attempt
    for info in files_of(receipt):
        _put(storage, attempt, info, replaces=replaces)
    with suppress(AccessError):  # in a bucket without permission to delete
        storage.delete_tree(attempt)


def placing(storage: Storage, *, replaces: bool = False) -> Callable[[ShardReceipt], None]:
    """List the storage once, and return a function like `put_in_place` that needs requests and reads only for shards
    that are not in place.

    A bucket's listing has the digests. On disk the attempt's folder is enough, without reading the shard: it has files
    until all three were put in place, each compared with an existing file of its name.
    """
    existing = {info.name: info for info in storage.list()}

    def is_in_place(info: ObjectInfo, attempt: str) -> bool:
        found = existing.get(info.name)
        if found is None or found.num_bytes != info.num_bytes:
            return False
        return found.crc32c == info.crc32c if found.crc32c else f"{attempt}/{info.name}" not in existing

    def place(receipt: ShardReceipt) -> None:
        attempt = fetched(receipt).attempt
        if not all(is_in_place(info, attempt) for info in files_of(receipt)):
            put_in_place(storage, receipt, replaces=replaces)

    return place


def are_lost(storage: Storage, receipt: ShardReceipt) -> bool:
    """Return whether any file in a receipt is neither in place, with its bytes, nor waiting."""
    attempt = fetched(receipt).attempt
    for info in files_of(receipt):
        with suppress(ConflictError):
            if _is_there(storage, info):
                continue
        if storage.stat(f"{attempt}/{info.name}") is None:
            return True
    return False


def refuse_added(storage: Storage, names: shard_files.ShardNames, shards: int) -> None:
    """Raise BuildError if there is a shard after the build's own, which only the missing manifest listed."""
    name = names.samples_file(shards)
    if storage.stat(name) is not None:
        raise BuildError(
            f"{storage.url_of(name)}: retry-failed added this shard, but the {MANIFEST} that lists it is gone: "
            "restore that file, or remove this shard and those after it, with their .parquet and _stats.json, and run "
            "the same command and then retry-failed, which fetches their rows again"
        )


def files_of(receipt: ShardReceipt) -> Iterator[ObjectInfo]:
    """Yield name, size and CRC32C of a shard's samples file and of its sidecars."""
    yield ObjectInfo(receipt.file, receipt.num_bytes, receipt.crc32c)
    for entry in fetched(receipt).files:
        yield ObjectInfo(entry["file"], entry["bytes"], entry["crc32c"])


def entries_of(receipt: ShardReceipt) -> Iterator[FileEntry]:
    """Yield `{file, bytes, sha256}` of the sidecars, as the manifest lists them."""
    for entry in fetched(receipt).files:
        yield {"file": entry["file"], "bytes": entry["bytes"], "sha256": entry["sha256"]}


def fetched(receipt: ShardReceipt) -> Fetched:
    """Return the part of a receipt that only fetched shards have. Raises StorageError for other receipts."""
    if receipt.fetched is None:
        raise StorageError(f"shard {receipt.index}: its receipt is not a fetched shard's; start over with `overwrite`")
    return receipt.fetched


def recounted(split: SplitManifest, receipts: Iterable[ShardReceipt]) -> SplitManifest:
    """Return a split with the rows of these shards counted by their new statuses and reasons, not the earlier ones."""
    statuses, reasons = Counter(split.statuses), Counter(split.reasons)
    for what in map(fetched, receipts):
        for name, counts, now in (("statuses", statuses, what.statuses), ("reasons", reasons, what.reasons)):
            counts.update(now)
            counts.subtract(what.before[name])
    return replace(
        split,
        statuses=dict(statuses),
        reasons={reason: count for reason, count in sorted(reasons.items()) if count},
    )


def _is_there(storage: Storage, info: ObjectInfo) -> bool:
    """Return whether a file is in place. Raises ConflictError if another object has its name."""
    existing = storage.stat(info.name)
    if existing is not None:
        check_same(storage, info, existing)
    return existing is not None


def _put(storage: Storage, attempt: str, info: ObjectInfo, *, replaces: bool) -> None:
    try:
        if _is_there(storage, info):
            return
    except ConflictError:
        if not replaces:
            raise
        _remove_other(storage, info)
    waiting = f"{attempt}/{info.name}"
    try:
        if storage.is_local:
            storage.publish(Path(storage.url_of(waiting)), info.name, str(info.crc32c))
        else:
            copy_object(open_storage(storage.url_of(attempt)), storage, info, lambda num_bytes: None)
    except (StorageError, FileNotFoundError) as error:
        if not _is_there(storage, info):  # another process may have been quicker, and removed the waiting files
            what = f"could not be put in place from {waiting} ({error})"
            raise StorageError(f"{storage.url_of(info.name)}: {what}; run the same command again") from error


def _remove_other(storage: Storage, info: ObjectInfo) -> None:
    """Remove the object with this name, unless another process has put the expected one there in the meantime."""
    with storage.alone():
        existing = storage.stat(info.name)
        if existing is None:
            return
        try:
            check_same(storage, info, existing)
        except ConflictError:
            storage.delete_exactly(existing)


LATE_PART = 20
"""The next shard is begun when 1 / LATE_PART of the rows is left: the last rows may take minutes without using the CPU,
and the first rows of the next shard take a while to arrive."""


@dataclass(frozen=True, slots=True)
class FetchJob(BuildJob):
    """Everything that a worker on any machine needs in addition to a shard's index."""

    limits: Limits
    """Limits for one worker's downloads."""


class WebFetch:
    """Fetches the rows of one shard after the other, and remembers hosts. Raises UsageError if the packages for
    fetching are not installed. With `kept`, connections are also kept while no shard is in progress."""

    def __init__(self, limits: Limits, *, kept: bool = False) -> None:
        with needing("laion", "laion"):
            from dataprep.fetched.fetching import web_fetch
            from dataprep.web.politeness import Known
        self.consents = (str(limits.consent),)
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
    """Storage and options for shards."""

    storage: Storage
    places: Places
    options: shard_files.ShardOptions
    check: Callable[[], None]
    """Function that raises an error if this build or retry no longer owns the output."""

    def done(self, index: int) -> ShardReceipt | None:
        """Return the receipt of a shard, after putting its files in place; None while the shard is not decided."""
        found = read_receipt(self.storage, index, self.places.root)
        if found is None:
            return None
        receipt = self.places.checked(self.storage, index, found[0])
        put_in_place(self.storage, receipt, replaces=self.places.replaces)
        return receipt


class ShardFetcher:
    """Builds the shards of one job in one process, with shared connections and knowledge about hosts.

    Several threads may build at once; they share the limits of the job.
    """

    def __init__(self, job: FetchJob) -> None:
        self._source = open_originals(job.source_url)
        self._web = WebFetch(job.limits, kept=True)
        build = open_build(job.output_url, job.root, job.pointer)
        self._tables, options = laion_of(build.plan)
        name = build.plan.options.format
        names = shard_files.built_names(build.plan.options.name, name, SPLIT, options.shard_digits)
        replaces = is_over_remains(build.storage, build.plan)
        places = Places(root=build.root, names=names, replaces=replaces)
        self._card = (read_card(build.storage, CROISSANT) or b"") if replaces else b""
        if replaces:
            refuse_added(build.storage, names, build.plan.num_shards)
        self._target = Target(
            build.storage, places, shard_files.ShardOptions(name, options.rows, options.schema), build.check
        )
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="dataprep-shard")

    def begin(self, index: int) -> Future[ShardReceipt]:
        """Build one shard, but return when only late rows are left, so that the next shard can begin.

        Call it from one thread of a process only. At most two shards are in progress: a third call waits.
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
        done = self._target.done(index)
        if done is not None:
            return done
        rows = read_shard_rows(self._source, self._tables, index)
        kept = kept_shard(self._target, index, rows, web, self._card) if self._target.places.replaces else None
        if kept is not None:
            return decide(self._target.storage, self._target.places, *kept)
        return fetch_shard(self._target, index, rows, web)


def kept_shard(
    target: Target, index: int, rows: Sequence[Row], web: WebFetch, card: bytes
) -> tuple[ShardReceipt, pa.Table] | None:
    """Return the receipt and index rows of a shard left by an earlier build; None if it is missing or damaged.

    The receipt names the networks of this run. The card `croissant.json`, empty if absent, has the shards' SHA-256.
    """
    storage = target.storage
    split_index = target.places.first_shard + index
    file, parquet, stats = target.places.names.files(split_index)
    try:
        data = {name: storage.read(name, shard_files.MAX_SIDECAR_BYTES) for name in (parquet, stats)}
        with storage.open(file) as stream:
            made, samples = shard_files.read_shard(stream, data[parquet], split_index, rows, target.options)
    except (FileNotFoundError, FormatError):
        return None
    if made.stats != data[stats] or samples.sha256.encode() not in (card or samples.sha256.encode()):
        return None
    attempt = target.places.attempt(index, uuid.uuid4().hex)
    return _receipt(target, index, attempt, (made, samples), web), made.index


def fetch_shard(
    target: Target, index: int, rows: Sequence[Row], web: WebFetch, before: Mapping[str, dict[str, int]] | None = None
) -> ShardReceipt:
    """Fetch rows into one shard, and commit it; return the valid receipt, which may be another attempt's."""
    storage, split_index = target.storage, target.places.first_shard + index
    attempt = target.places.attempt(index, uuid.uuid4().hex)
    file = f"{attempt}/{target.places.names.samples_file(split_index)}"
    spool = storage.spool_path(file)
    try:
        with (
            disk_errors(spool),
            _nameless(storage.spool_path(f"{file}-images")) as images,
            storage.sending(spool, file) as sent,
            WritebackFile(spool, sent) as samples,
        ):
            streams = shard_files.Streams(cast(BinaryIO, samples), images)
            made = shard_files.make_shard(rows, web.fetch, target.options, split_index, streams, before)
    except BaseException:
        spool.unlink(missing_ok=True)
        raise
    storage.publish(spool, file, samples.digests.crc32c)
    for name, data in _sidecars(target, split_index, made).items():
        storage.create(f"{attempt}/{name}", data)
    receipt = _receipt(target, index, attempt, (made, samples.digests), web, before)
    # If another build owns the output now, it removes the uploaded files, and they can no longer be published.
    target.check()
    return decide(storage, target.places, receipt, made.index)


def _sidecars(target: Target, split_index: int, made: shard_files.MadeShard) -> dict[str, bytes]:
    _, parquet, stats = target.places.names.files(split_index)
    return {parquet: made.parquet, stats: made.stats}


def _receipt(
    target: Target,
    index: int,
    attempt: str,
    written: tuple[shard_files.MadeShard, HashingWriter],
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
            consents=web.consents,
            before=dict(before or {}),
        ),
    )


def _nameless(path: Path) -> BinaryIO:
    """Open a file that vanishes when it is closed, even if the process is killed."""
    file = path.open("w+b")
    path.unlink(missing_ok=True)  # a build that overwrites this one may have removed it
    return file


def _entry(name: str, data: bytes) -> SidecarEntry:
    digests = HashingWriter()
    digests.write(data)
    return {"file": name, "bytes": len(data), "sha256": digests.sha256, "crc32c": digests.crc32c}
