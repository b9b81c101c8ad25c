"""Tries failed rows of a finished dataset again; their images are added as new shards after the last one.

    which rows ─▶ shards, receipts ─▶ index ─▶ dataset_info.json ─▶ dataset.json ─▶ cards ─▶ `_retry/` is removed

    _retry/plan.json              create-only; the revision that it begins with, the chosen rows, and the id
    _retry/<id>/rows.parquet      rows to try: a row group for each new shard
    _retry/<id>/receipts/, tmp/   as in a build (commit.py)

A new shard has its own parquet file and stats, with the rows that were tried and their new status; the old entries of
these rows stay as history. So the newest status of a row is in the last shard whose parquet file has its key. The
manifest counts every row once, by its newest status: the entry `before` in a shard's stats holds the counts to
subtract.

Three files of the dataset are replaced, each atomically and only if it has not changed since it was read: the index,
which begins with all row groups of the old one; dataset_info.json, which lists shards that are published already; and
last dataset.json, which lists all of them. Readers see a complete dataset between any two of these steps, and the steps
can be repeated. After an interruption the same command continues with the stored plan, which is the first file that is
removed at the end.
"""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Protocol, TypedDict

from msgspec import Meta

from dataprep.builder.cards import own_cards, replace_cards
from dataprep.builder.plan import refuse_other_codecs
from dataprep.builder.receipts import finished_shards, read_receipt, read_receipts
from dataprep.dataset.documents import Count, decode, decoder
from dataprep.dataset.index import (
    grown_entry,
    index_files,
    index_schema,
    open_index,
    publish_row_groups,
    spool_row_groups,
)
from dataprep.dataset.manifest import (
    MANIFEST,
    MAX_SHARDS,
    bytes_entry,
    manifest_bytes,
    read_manifest,
    schema_version,
    shard_entry,
)
from dataprep.dataset.paths import RETRY, RETRY_JSON
from dataprep.dataset.records import IndexEntry, Manifest, ShardReceipt, SplitManifest
from dataprep.errors import ConflictError, FormatError, UsageError
from dataprep.fetched.collect import HASH_MISMATCH, NO_ANSWER, RowOptions, status_reason
from dataprep.fetched.commit import Places, entries_of, fetched, placing, put_in_place
from dataprep.fetched.encode import CANNOT_BE_ENCODED, FAULT_REASONS, SIZE_REASONS
from dataprep.fetched.existing import Choice, FetchedDataset, RowPlaces, open_fetched, rows_to_try
from dataprep.fetched.plan import laion_codecs, laion_options
from dataprep.fetched.shard import ShardNames, ShardOptions
from dataprep.fetched.shards import Target, WebFetch, fetch_shard
from dataprep.formats.img2dataset import OTHER, SUCCESS
from dataprep.messages import did_you_mean, quoted
from dataprep.sources.laion import Row
from dataprep.storage import ObjectInfo, Storage
from dataprep.storage.base import read_bounded
from dataprep.storage.checksums import digests_of
from dataprep.storage.parquet import ParquetFile, open_parquet, read_columns
from dataprep.web.requests import Status

if TYPE_CHECKING:
    import pyarrow as pa

    from dataprep.web.requests import Limits


HTTP_CODE = re.compile(r"http (?!200)[1-5]\d\d")
"""Pattern of the reason for an answer with another status code than 200."""
FAILURES = tuple(
    dict.fromkeys(
        (
            *(status_reason(status) for status in Status if status not in (Status.SUCCESS, Status.HTTP)),
            HASH_MISMATCH,
            NO_ANSWER,
            *FAULT_REASONS.values(),
            CANNOT_BE_ENCODED,
            *SIZE_REASONS,
            OTHER,
        )
    )
)
"""Reasons of rows that failed to download or to be resized, without the HTTP statuses."""
_CODE = re.compile(r"(?<!\d)\d{3}(?!\d)")
_NEAR = 0.5
"""Minimum similarity of the suggestion: `404` is so near to `http 404`."""
MAX_PLAN_BYTES = 64 << 20
"""Maximum size of the plan; it has a number for each new shard."""
_ADVICE = f"remove {RETRY}/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Retried:
    """The dataset after a retry, and the work of this run on it."""

    manifest: Manifest
    rows: int
    """Number of rows that were tried."""
    came: int
    """Number of rows that became images."""
    shards: int
    """Number of new shards; 0 if no row became an image."""


class RetryProgress(Protocol):
    """Receiver of a retry's progress reports."""

    def shards(self, samples: Sequence[int], done: set[int]) -> None:
        """The new shards have these numbers of rows; the shards in `done` are done already."""

    def shard_done(self, receipt: ShardReceipt) -> None:
        """One more shard is done."""

    def log(self, line: str) -> None:
        """Show a line to the user."""


def retry_failed(
    url: str,
    choice: Choice,
    limits: Limits,
    engine: Engine,
    progress: RetryProgress,
) -> Retried:
    """Try failed rows again, or continue an interrupted retry.

    Args:
        choice: Which rows are tried; an interrupted retry keeps its own choice.
        limits: Limits of all workers together.
        engine: Runs `retry_shard` for many indexes, and divides the job's limits among its workers.

    Raises:
        UsageError: There is no dataset of a table of URLs, or no row can have failed for a chosen reason.
        ConflictError: Another process has changed the dataset meanwhile.
    """
    dataset = open_fetched(url)
    check_reasons(choice, dataset.manifest)
    dataset.storage.remove_stale_spools()
    begun = read_plan(dataset.storage)
    if begun is not None and _is_over(dataset, begun):
        if _tidy_up(dataset, begun, progress):
            return Retried(manifest=dataset.manifest, rows=0, came=0, shards=0)
        begun = None
    plan = _begin(dataset, choice) if begun is None else _checked_begin(dataset, begun)
    if plan is None:
        return Retried(manifest=dataset.manifest, rows=0, came=0, shards=0)
    rows = laion_options(dataset.manifest).rows
    if plan.choice != _document(choice):
        text = ", ".join(f"{name} {value}" for name, value in plan.choice.items() if value)
        progress.log(f"continuing with the options of an interrupted run: {text or 'none'}")
    _make_missing(
        RetryJob(dataset.storage.url, plan.root, plan.manifest_sha256, plan.first_shard, rows, limits, plan.codecs),
        finished_shards(dataset.storage, plan.root),
        plan.shard_rows,
        engine,
        progress,
    )
    return _finish(dataset, plan)


def check_reasons(choice: Choice, manifest: Manifest) -> None:
    """Raise UsageError for an unknown failure reason.

    Raises:
        UsageError: A reason is neither known nor occurs in a row; the text lists the known ones and the nearest.
    """
    counted = {reason for split in manifest.splits for reason in split.reasons} - {SUCCESS}
    for reason in choice.reasons:
        if reason in FAILURES or reason in counted or HTTP_CODE.fullmatch(reason):
            continue
        codes = [code for digits in _CODE.findall(reason) if HTTP_CODE.fullmatch(code := f"http {digits}")]
        known = sorted({*FAILURES, *counted})
        raise UsageError(
            f"`reason` {quoted(reason)}: no row fails for this reason, expected http and a status code such as "
            f"http 404, or one of {', '.join(known)}{did_you_mean(reason, [*codes, *known], cutoff=_NEAR)}"
        )


class ChoiceEntry(TypedDict):
    """Choice of failed rows in a retry's plan; see `Choice`."""

    reasons: list[str]
    everything: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPlan:
    """The plan of a retry, as `_retry/plan.json` holds it."""

    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    revision: Count
    """Revision of the manifest with which the retry begins."""
    manifest_sha256: str
    choice: ChoiceEntry
    shard_rows: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=1, max_length=MAX_SHARDS)]
    """Number of rows of each new shard."""
    first_shard: Count
    """Number of the first new shard."""
    codecs: dict[str, str]
    """Versions of libraries that every worker must have."""
    cards: dict[str, str] = field(default_factory=dict)
    """SHA-256 digests of the dataset's cards, by name; only unedited ones, which are replaced."""

    @property
    def root(self) -> str:
        return f"{RETRY}/{self.id}"

    def files(self, names: ShardNames) -> Iterator[str]:
        """Yield the names of the files of all new shards."""
        for index in range(self.first_shard, self.first_shard + len(self.shard_rows)):
            yield from names.files(index)


def read_plan(storage: Storage) -> RetryPlan | None:
    """Read the plan of an interrupted or running retry; None if there is none. Raises FormatError."""
    data = read_bounded(storage, RETRY_JSON, MAX_PLAN_BYTES, advice=_ADVICE)
    if data is None:
        return None
    return decode(data, RetryPlan, where=f"{storage.url_of(RETRY_JSON)}: no plan of a retry", advice=_ADVICE)


def retried_files(storage: Storage, names: ShardNames) -> Iterator[str]:
    """Yield the names of the files that an interrupted or running retry may have put in place, whether they exist or
    not."""
    plan = read_plan(storage)
    if plan is not None:
        yield from plan.files(names)


def id_of_plan(storage: Storage) -> str:
    """Return the id of the stored plan. Raises FileNotFoundError, or ValueError or FormatError for a malformed plan."""
    return decoder(_Named).decode(storage.read(RETRY_JSON, MAX_PLAN_BYTES)).id


def no_plan(storage: Storage, problem: str) -> FormatError:
    """Return the error for an invalid plan."""
    return FormatError(f"{storage.url_of(RETRY_JSON)}: no plan of a retry: {problem}; {_ADVICE}")


def rows_file(root: str) -> str:
    """Return the name of the file with the rows that a retry tries."""
    return f"{root}/rows.parquet"


def open_rows(storage: Storage, root: str) -> ParquetFile:
    """Open the rows that a retry tries: a row group for each new shard."""
    return open_parquet(storage, rows_file(root))


def clean_up(storage: Storage, plan: RetryPlan, names: ShardNames) -> None:
    """Remove what a retry has put in place and the manifest does not list, and then the retry's own files.

    The plan goes after the files that it names, so that the same command continues an interrupted removal. Nothing is
    removed if the stored plan is another's.
    """
    try:
        if id_of_plan(storage) != plan.id:
            return
    except FileNotFoundError:
        pass
    else:
        storage.take_away(plan.root)  # from here on no worker of the retry can put a file in place
        manifest = read_manifest(storage)  # not the one with which the retry began: another process may have ended it
        if manifest is not None:
            listed = {entry["file"] for split in manifest.splits for entry in split.shards}
            listed.update(entry["file"] for entry in manifest.files)
            for name in plan.files(names):
                if name not in listed:
                    storage.delete(name)
        storage.delete(RETRY_JSON)
    storage.delete_tree(RETRY)
    storage.remove_stale_spools()


@dataclass(frozen=True, slots=True)
class RetryJob:
    """Everything that a worker needs, except a shard's index."""

    url: str
    root: str
    """Folder of receipts and rows."""
    manifest_sha256: str
    first_shard: int
    rows: RowOptions
    limits: Limits
    """Limits of the worker; in the job that an engine gets, those of all workers together."""
    codecs: dict[str, str] = field(hash=False)
    """Versions of libraries that a worker must have."""


Engine = Callable[[RetryJob, list[int]], Iterator[ShardReceipt]]


def retry_shard(job: RetryJob, index: int) -> ShardReceipt:
    """Make one new shard, or return its existing receipt without fetching the rows again."""
    return _retrier(job).build(index)


def publish_revision(dataset: FetchedDataset, root: str, new: Sequence[ShardReceipt]) -> Manifest:
    """Publish the revision of a dataset that has these additional shards.

    Args:
        root: Folder of the receipts.
        new: Receipts of the shards; shards that are not published yet are published now.

    Returns:
        The manifest of the new revision.

    Raises:
        ConflictError: Another process has changed the dataset meanwhile.
    """
    storage, manifest = dataset.storage, dataset.manifest
    place = placing(storage)
    for receipt in new:
        place(receipt)
    split = _grown(manifest.splits[0], new, _replace_index(storage, root, len(new), manifest.splits[0]))
    described = dataset.layout.described(split)
    files = {entry["file"]: entry for entry in manifest.files}
    files |= {entry["file"]: entry for receipt in new for entry in entries_of(receipt)}
    files |= {name: bytes_entry(name, content.after) for name, content in described.items()}
    networks = set(manifest.options.get("allow_networks", ()))
    networks |= {network for receipt in new for network in fetched(receipt).allow_networks}
    grown = replace(
        manifest,
        schema_version=schema_version(manifest.splits),
        revision=manifest.revision + 1,
        options=manifest.options | {"allow_networks": sorted(networks)},
        splits=(split,),
        files=tuple(files[name] for name in sorted(files)),
    )
    for name, content in described.items():
        _replace(storage, name, content.after, content.before)
    _replace(storage, MANIFEST, manifest_bytes(grown), dataset.data)
    return grown


def changed(storage: Storage) -> str:
    """Return the text of the error for a dataset that another process has changed."""
    return f"{storage.url}: another process has changed the dataset meanwhile; run the same command again"


def _is_over(dataset: FetchedDataset, begun: RetryPlan) -> bool:
    """Return whether an interrupted retry is one of another manifest, or was being removed."""
    return begun.manifest_sha256 != dataset.sha256 or dataset.storage.stat(rows_file(begun.root)) is None


def _tidy_up(dataset: FetchedDataset, begun: RetryPlan, progress: RetryProgress) -> bool:
    """Remove an interrupted retry that is over; return whether it had published the existing revision."""
    revision = dataset.manifest.revision
    if revision > begun.revision:
        progress.log(f"revision {begun.revision + 1} exists: an earlier run was interrupted after publishing it")
    is_published = revision == begun.revision + 1
    if is_published:
        replace_cards(dataset.storage, dataset.manifest, begun.cards)
    clean_up(dataset.storage, begun, dataset.layout.names)
    return is_published


def _checked_begin(dataset: FetchedDataset, begun: RetryPlan) -> RetryPlan:
    """Return the plan of an interrupted retry. Raises FormatError if its shards do not follow those of the dataset."""
    shards = len(dataset.layout.parquet_files)
    if begun.first_shard != shards:
        raise no_plan(dataset.storage, f"its first shard is number {begun.first_shard}, after {shards:,} shards")
    return begun


def _make_missing(
    job: RetryJob, done: set[int], shard_rows: Sequence[int], engine: Engine, progress: RetryProgress
) -> None:
    progress.shards(shard_rows, done)
    missing = [index for index in range(len(shard_rows)) if index not in done]
    if missing:
        for receipt in engine(job, missing):
            progress.shard_done(receipt)


def _begin(dataset: FetchedDataset, choice: Choice) -> RetryPlan | None:
    """Choose the rows and store the plan; None if there are no rows to try."""
    storage, layout = dataset.storage, dataset.layout
    chosen = rows_to_try(storage, layout, choice)
    first = next(chosen, None)
    if first is None:
        storage.delete_tree(RETRY)  # files of an interrupted cleanup
        return None
    shards = len(layout.parquet_files)
    places = RowPlaces(layout.shard_rows)
    plan = RetryPlan(
        id=uuid.uuid4().hex,
        revision=dataset.manifest.revision,
        manifest_sha256=dataset.sha256,
        choice=_document(choice),
        shard_rows=(),
        first_shard=shards,
        codecs=laion_codecs(),
        cards=own_cards(storage, dataset.manifest),
    )
    tables = places.tables(chain([first], chosen))
    publish_row_groups(storage, rows_file(plan.root), tables, places.schema())
    plan = replace(plan, shard_rows=tuple(places.shard_rows))
    total = shards + len(plan.shard_rows)
    if len(str(total)) > layout.names.digits:
        storage.delete_tree(plan.root)
        raise UsageError(
            f"{storage.url}: {total:,} shards need longer numbers than the existing {shards:,}, whose names would "
            "change; build the failed rows as a separate dataset"
        )
    try:
        storage.create(RETRY_JSON, json.dumps(asdict(plan), indent=1).encode())
    except ConflictError:  # another process began at the same time
        storage.delete_tree(plan.root)
        return read_plan(storage)
    for info in list(storage.list(f"{RETRY}/")):  # files of an interrupted cleanup
        if info.name != RETRY_JSON and not info.name.startswith(f"{plan.root}/"):
            storage.delete(info.name)
    return plan


def _document(choice: Choice) -> ChoiceEntry:
    """Return a choice as the plan stores it in JSON."""
    return {"reasons": list(choice.reasons), "everything": choice.everything}


def _finish(dataset: FetchedDataset, plan: RetryPlan) -> Retried:
    """Publish the next revision, or remove the new shards if no row became an image."""
    storage, manifest = dataset.storage, dataset.manifest
    new = _sum_up(dataset, plan)
    rows = sum(plan.shard_rows)
    came = sum(receipt.samples for receipt in new)
    if came:
        manifest = publish_revision(dataset, plan.root, new)
        replace_cards(storage, manifest, plan.cards)
    clean_up(storage, plan, dataset.layout.names)
    return Retried(manifest=manifest, rows=rows, came=came, shards=len(new) if came else 0)


def _sum_up(dataset: FetchedDataset, plan: RetryPlan) -> list[ShardReceipt]:
    storage = dataset.storage
    places = Places(root=plan.root, names=dataset.layout.names, first_shard=plan.first_shard)
    found = enumerate(read_receipts(storage, range(len(plan.shard_rows)), plan.root))
    receipts = [places.checked(storage, index, pair[0]) for index, pair in found if pair is not None]
    if len(receipts) != len(plan.shard_rows):
        raise ConflictError(f"{storage.url}: receipts of this retry are gone; another process has finished it")
    return receipts


@dataclass(frozen=True, slots=True)
class _Named:
    """The part of a retry's plan that distinguishes it from others."""

    id: str


@lru_cache(maxsize=1)
def _retrier(job: RetryJob) -> _Retrier:
    """Return this process's retrier of a job, which keeps what it learns about hosts from shard to shard."""
    return _Retrier(job)


class _Retrier:
    def __init__(self, job: RetryJob) -> None:
        refuse_other_codecs(job.codecs)
        dataset = open_fetched(job.url)
        self._job, self._storage, self._layout = job, dataset.storage, dataset.layout
        if dataset.sha256 != job.manifest_sha256:
            raise ConflictError(changed(self._storage))
        names, schema = self._layout.names, self._layout.schema
        check = partial(_refuse_overtaken, self._storage, job)
        places = Places(root=job.root, names=names, first_shard=job.first_shard)
        staged = self._storage.staged(job.root, check)
        self._target = Target(staged, places, ShardOptions(dataset.manifest.format, job.rows, schema), check)
        self._web = WebFetch(job.limits)
        self._places = open_rows(self._storage, job.root)

    def build(self, index: int) -> ShardReceipt:
        found = read_receipt(self._storage, index, self._job.root)
        if found is not None:
            receipt = self._target.places.checked(self._storage, index, found[0])
            put_in_place(self._target.storage, receipt)
            return receipt
        pairs = self._rows_of(index)
        rows: list[Row] = []
        statuses: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        for shard, group in groupby(pairs, key=itemgetter(0)):
            table = read_columns(self._storage, self._layout.parquet_files[shard])
            places = [row for _, row in group]
            if not 0 <= min(places) <= max(places) < table.num_rows:
                raise no_plan(self._storage, f"row {max(places)} of {table.num_rows:,} in shard {shard}")
            for fields in table.take(places).to_pylist():
                rows.append(self._layout.row_of(fields))
                statuses[fields["status"]] += 1
                reasons[fields["error_message"] or ""] += 1
        before = {"statuses": dict(sorted(statuses.items())), "reasons": dict(sorted(reasons.items()))}
        return fetch_shard(self._target, index, rows, self._web, before)

    def _rows_of(self, index: int) -> list[tuple[int, int]]:
        """Return the old shard and position of each row that is tried in a new shard."""
        try:
            table = self._places.read_row_group(index)
            pairs = list(zip(table.column("shard").to_pylist(), table.column("row").to_pylist(), strict=True))
        except (IndexError, KeyError, ValueError, OSError) as error:
            raise no_plan(self._storage, f"its rows of shard {index} cannot be read: {error}") from error
        shards = len(self._layout.parquet_files)
        for shard, row in pairs:
            if not (isinstance(shard, int) and 0 <= shard < shards and isinstance(row, int)):
                raise no_plan(self._storage, f"shard {shard} of {shards:,}")
        return pairs


def _refuse_overtaken(storage: Storage, job: RetryJob) -> None:
    """Raise ConflictError if this retry's plan is gone: the dataset was overwritten, or another process finished."""
    try:
        current = id_of_plan(storage)
    except (FileNotFoundError, ValueError, RecursionError, FormatError):
        current = None
    if current != job.root.rpartition("/")[2]:
        raise ConflictError(changed(storage))


def _grown(split: SplitManifest, new: Sequence[ShardReceipt], index: IndexEntry) -> SplitManifest:
    """Return a split with its new shards; every row is counted by its newest status."""
    statuses, reasons = Counter(split.statuses), Counter(split.reasons)
    for receipt in new:
        what = fetched(receipt)
        for counts, now, had in (
            (statuses, what.statuses, what.before["statuses"]),
            (reasons, what.reasons, what.before["reasons"]),
        ):
            counts.update(now)
            counts.subtract(had)
    return replace(
        split,
        samples=split.samples + sum(receipt.samples for receipt in new),
        num_bytes=split.num_bytes + sum(receipt.num_bytes for receipt in new),
        shards=(*split.shards, *(shard_entry(receipt) for receipt in new)),
        index=index,
        statuses=dict(statuses),
        reasons={reason: count for reason, count in sorted(reasons.items()) if count},
    )


def _replace_index(storage: Storage, root: str, new_shards: int, split: SplitManifest) -> IndexEntry:
    """Replace the index, or its last part, by one with the old row groups, unchanged, and then one for each new
    shard."""
    last = index_files(split)[-1]
    name, first = last["file"], sum(part["shards"] for part in split.index.get("parts", [])[:-1])
    with storage.open(name) as stream:
        existing = digests_of(stream)
    table = open_index(storage, split)

    def groups() -> Iterator[pa.Table]:
        for number in range(first, len(split.shards)):
            yield table.read_group(number)
        for found in read_receipts(storage, range(new_shards), root):
            if found is None:
                raise ConflictError(changed(storage))
            yield found[1]

    spool, digests = spool_row_groups(storage, name, groups(), index_schema())
    expected = ObjectInfo(name, existing.num_bytes, existing.crc32c)
    ours = existing.sha256 in (last["sha256"], digests.sha256)
    if not ours or not storage.replace_file(spool, name, digests.crc32c, expected):
        spool.unlink(missing_ok=True)
        raise ConflictError(changed(storage))
    return grown_entry(split, {"file": name, "bytes": digests.num_bytes, "sha256": digests.sha256}, new_shards)


def _replace(storage: Storage, name: str, data: bytes, before: bytes) -> None:
    if data != before and not storage.replace(name, data, before) and storage.read(name) != data:
        raise ConflictError(changed(storage))
