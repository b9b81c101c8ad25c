"""Tries failed rows of a finished dataset again, and adds their images as new shards after the last one.

    which rows ─▶ shards, receipts ─▶ index ─▶ dataset_info.json ─▶ dataset.json ─▶ cards ─▶ `_retry/` is removed

    _retry/plan.json              create-only; the revision at the beginning, the chosen rows, and the id
    _retry/<id>/rows.parquet      rows to try: a row group for each new shard
    _retry/<id>/receipts/, tmp/   as in a build (shards.py)

A new shard has its own parquet file and stats, with the rows that were tried and their new status; the old entries of
these rows stay as history. So the newest status of a row is in the last shard whose parquet file has its key. The
manifest counts every row once, by its newest status: the entry `before` in a shard's stats holds the counts to
subtract.

Three files of the dataset are replaced, each atomically and only if it has not changed since it was read: the index,
which begins with all row groups of the old one; dataset_info.json, which lists published shards; and last dataset.json,
which lists all of them. Readers see a complete dataset between any two of these steps, and the steps can be repeated.
After an interruption the same command continues with the stored plan, which is removed first at the end.
"""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Protocol, TypedDict

from msgspec import Meta

from dataprep.arrays import pa
from dataprep.builder.cards import own_cards, replace_cards
from dataprep.builder.plan import refuse_other_codecs
from dataprep.builder.receipts import finished_shards, read_receipts
from dataprep.dataset import index as indexes
from dataprep.dataset import manifest as manifests
from dataprep.dataset.columns import table_of
from dataprep.dataset.documents import Count, decode, decoder
from dataprep.dataset.paths import RETRY, RETRY_JSON
from dataprep.dataset.records import IndexEntry, Manifest, ShardReceipt, SplitManifest
from dataprep.errors import ConflictError, FormatError, UsageError
from dataprep.fetched import collect
from dataprep.fetched.existing import Choice, FetchedDataset, Place, open_fetched, rows_to_try
from dataprep.fetched.plan import laion_codecs
from dataprep.fetched.shard import ShardNames, ShardOptions
from dataprep.fetched.shards import Places, Target, WebFetch, entries_of, fetch_shard, fetched, placing
from dataprep.formats.img2dataset import OTHER, SUCCESS
from dataprep.messages import did_you_mean, quoted
from dataprep.sources.laion import Row
from dataprep.storage import ObjectInfo, Storage
from dataprep.storage.base import read_bounded
from dataprep.storage.checksums import digests_of
from dataprep.storage.parquet import open_parquet, read_columns
from dataprep.web.requests import Status

if TYPE_CHECKING:
    from dataprep.web.requests import Limits


HTTP_CODE = re.compile(r"http (?!200)[1-5]\d\d")
"""Pattern of the reason for an answer whose status code is not 200."""
FAILURES = tuple(
    dict.fromkeys(
        (
            *(collect.status_reason(status) for status in Status if status not in (Status.SUCCESS, Status.HTTP)),
            collect.HASH_MISMATCH,
            collect.NO_ANSWER,
            *collect.FAULT_REASONS.values(),
            collect.CANNOT_BE_ENCODED,
            *collect.SIZE_REASONS,
            OTHER,
        )
    )
)
"""Reasons of failed downloads and failed resizing, without the HTTP statuses."""
_CODE = re.compile(r"(?<!\d)\d{3}(?!\d)")
_NEAR = 0.5
"""Minimum similarity of a suggestion; `404` and `http 404` are just similar enough."""
MAX_PLAN_BYTES = 64 << 20
"""Maximum size of the plan; it has a number for each new shard."""
_ADVICE = f"remove {RETRY}/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Retried:
    """The dataset after a retry, and this run's work on it."""

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
        """The new shards have these numbers of rows; the shards in `done` are already done."""

    def shard_done(self, receipt: ShardReceipt) -> None:
        """One more shard is done."""

    def log(self, line: str) -> None:
        """Show a line to the user."""


def retry_failed(url: str, choice: Choice, limits: Limits, engine: Engine, progress: RetryProgress) -> Retried:
    """Try failed rows again, or continue an interrupted retry. Raises UsageError if there is no dataset of a table of
    URLs, or no row can have failed for a chosen reason, and ConflictError if another process has changed the dataset
    meanwhile.

    Args:
        choice: Choice of rows; an interrupted retry keeps its own choice.
        limits: Limits of all workers together.
        engine: Runs `retry_shard` for many indexes, and divides the job's limits among its workers.
    """
    dataset = open_fetched(url)
    check_reasons(choice, dataset.manifest)
    dataset.storage.remove_stale_spools()
    begun = read_plan(dataset.storage)
    is_gone = begun is not None and dataset.storage.stat(rows_file(begun.root)) is None  # it was being removed
    if begun is not None and (is_gone or begun.manifest_sha256 != dataset.sha256):
        if _tidy_up(dataset, begun, progress):
            return Retried(manifest=dataset.manifest, rows=0, came=0, shards=0)
        begun = None
    plan = _begin(dataset, choice) if begun is None else begun
    if begun is not None and begun.first_shard != dataset.num_shards:
        after = f"after {dataset.num_shards:,} shards"
        raise no_plan(dataset.storage, f"its first shard is number {begun.first_shard}, {after}")
    if plan is None:
        return Retried(manifest=dataset.manifest, rows=0, came=0, shards=0)
    rows = dataset.options.rows
    if plan.choice != _document(choice):
        text = ", ".join(f"{name} {value}" for name, value in plan.choice.items() if value)
        progress.log(f"continuing with the options of an interrupted run: {text or 'none'}")
    done = finished_shards(dataset.storage, plan.root)
    progress.shards(plan.shard_rows, done)
    missing = [index for index in range(len(plan.shard_rows)) if index not in done]
    if missing:
        job = RetryJob(
            dataset.storage.url, plan.root, plan.manifest_sha256, plan.first_shard, rows, limits, plan.codecs
        )
        for receipt in engine(job, missing):
            progress.shard_done(receipt)
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
    """Revision of the manifest at the beginning of the retry."""
    manifest_sha256: str
    choice: ChoiceEntry
    shard_rows: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=1, max_length=manifests.MAX_SHARDS)]
    first_shard: Count
    codecs: dict[str, str]
    """Versions of libraries that every worker must have."""
    cards: dict[str, str] = field(default_factory=dict)
    """SHA-256 digests of the dataset's unedited cards, by name; these cards are replaced."""

    @property
    def root(self) -> str:
        return f"{RETRY}/{self.id}"

    def files(self, names: ShardNames) -> Iterator[str]:
        for index in range(self.first_shard, self.first_shard + len(self.shard_rows)):
            yield from names.files(index)


def read_plan(storage: Storage) -> RetryPlan | None:
    """Read the plan of an interrupted or running retry; None if there is none. Raises FormatError."""
    data = read_bounded(storage, RETRY_JSON, MAX_PLAN_BYTES, advice=_ADVICE)
    if data is None:
        return None
    return decode(data, RetryPlan, where=f"{storage.url_of(RETRY_JSON)}: not a plan of a retry", advice=_ADVICE)


def retried_files(storage: Storage, names: ShardNames) -> Iterator[str]:
    """Yield the names of files that an interrupted or running retry may have put in place; they need not exist."""
    plan = read_plan(storage)
    if plan is not None:
        yield from plan.files(names)


def id_of_plan(storage: Storage) -> str:
    """Return the id of the stored plan. Raises FileNotFoundError, or ValueError or FormatError for a malformed plan."""
    return decoder(_Named).decode(storage.read(RETRY_JSON, MAX_PLAN_BYTES)).id


def no_plan(storage: Storage, problem: str) -> FormatError:
    return FormatError(f"{storage.url_of(RETRY_JSON)}: not a plan of a retry: {problem}; {_ADVICE}")


def rows_file(root: str) -> str:
    return f"{root}/rows.parquet"


def rows_schema() -> pa.Schema:
    """Return the columns of `rows.parquet`: the shard that last tried a row, and the row's position there."""
    return pa.schema([("shard", pa.int32()), ("row", pa.int32())])


def row_tables(places: Iterator[Place], rows_per_shard: int, shard_rows: list[int]) -> Iterator[pa.Table]:
    """Yield a table for each new shard, and append its number of rows to `shard_rows`."""
    while held := list(islice(places, rows_per_shard)):
        shard_rows.append(len(held))
        yield table_of([[place.shard for place in held], [place.row for place in held]], rows_schema())


def clean_up(storage: Storage, plan: RetryPlan, names: ShardNames) -> None:
    """Remove files that a retry has put in place and the manifest does not list, and then the retry's own files.

    The plan is removed after the files that it names, so that the same command continues an interrupted removal. If the
    stored plan is another retry's, nothing is removed.
    """
    try:
        if id_of_plan(storage) != plan.id:
            return
    except FileNotFoundError:
        pass
    else:
        storage.take_away(plan.root)  # after this no worker of the retry can put a file in place
        manifest = manifests.read_manifest(
            storage
        )  # not the manifest at the retry's beginning: another process may have ended the retry
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
    rows: collect.RowOptions
    limits: Limits
    """Limits of the worker; in an engine's job, limits of all workers together."""
    codecs: dict[str, str] = field(hash=False)
    """Versions of libraries that a worker must have."""


Engine = Callable[[RetryJob, list[int]], Iterator[ShardReceipt]]


def retry_shard(job: RetryJob, index: int) -> ShardReceipt:
    """Make one new shard, or return its existing receipt without fetching the rows again."""
    return _retrier(job).build(index)


def publish_revision(dataset: FetchedDataset, root: str, new: Sequence[ShardReceipt]) -> Manifest:
    """Publish the revision of a dataset with these additional shards. Raises ConflictError if another process has
    changed the dataset meanwhile.

    Args:
        new: Receipts of the shards; shards that are not published yet are published now.

    Returns:
        The manifest of the new revision.
    """
    storage, manifest = dataset.storage, dataset.manifest
    place = placing(storage)
    for receipt in new:
        place(receipt)
    split = _grown(manifest.splits[0], new, _replace_index(storage, root, len(new), manifest.splits[0]))
    before, described = dataset.tfds_files(manifest.splits[0]), dataset.tfds_files(split)
    files = {entry["file"]: entry for entry in manifest.files}
    files |= {entry["file"]: entry for receipt in new for entry in entries_of(receipt)}
    files |= {name: manifests.bytes_entry(name, content) for name, content in described.items()}
    networks = set(manifest.options.get("allow_networks", ()))
    networks |= {network for receipt in new for network in fetched(receipt).allow_networks}
    grown = replace(
        manifest,
        schema_version=manifests.schema_version(manifest.splits),
        revision=manifest.revision + 1,
        options=manifest.options | {"allow_networks": sorted(networks)},
        splits=(split,),
        files=tuple(files[name] for name in sorted(files)),
    )
    for name, content in described.items():
        _replace(storage, name, content, before[name])
    _replace(storage, manifests.MANIFEST, manifests.manifest_bytes(grown), dataset.data)
    return grown


def changed(storage: Storage) -> str:
    """Return the error text for a dataset that another process has changed."""
    return f"{storage.url}: another process has changed the dataset meanwhile; run the same command again"


def _tidy_up(dataset: FetchedDataset, begun: RetryPlan, progress: RetryProgress) -> bool:
    """Remove an interrupted but finished retry; return whether it had published the existing revision."""
    revision = dataset.manifest.revision
    if revision > begun.revision:
        progress.log(f"revision {begun.revision + 1} exists: an earlier run was interrupted after publishing it")
    is_published = revision == begun.revision + 1
    if is_published:
        replace_cards(dataset.storage, dataset.manifest, begun.cards)
    clean_up(dataset.storage, begun, dataset.names)
    return is_published


def _begin(dataset: FetchedDataset, choice: Choice) -> RetryPlan | None:
    """Choose the rows and store the plan; None if there are no rows to try."""
    storage, shards = dataset.storage, dataset.num_shards
    chosen = rows_to_try(dataset, choice)
    first = next(chosen, None)
    if first is None:
        storage.delete_tree(RETRY)  # files of an interrupted cleanup
        return None
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
    shard_rows: list[int] = []
    tables = row_tables(chain([first], chosen), dataset.options.rows_per_shard, shard_rows)
    indexes.publish_row_groups(storage, rows_file(plan.root), tables, rows_schema())
    plan = replace(plan, shard_rows=tuple(shard_rows))
    total = shards + len(plan.shard_rows)
    if len(str(total)) > dataset.names.digits:
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
    return {"reasons": list(choice.reasons), "everything": choice.everything}


def _finish(dataset: FetchedDataset, plan: RetryPlan) -> Retried:
    """Publish the next revision, or remove the new shards if no row became an image."""
    storage, manifest = dataset.storage, dataset.manifest
    places = Places(root=plan.root, names=dataset.names, first_shard=plan.first_shard)
    found = enumerate(read_receipts(storage, range(len(plan.shard_rows)), plan.root))
    new = [places.checked(storage, index, pair[0]) for index, pair in found if pair is not None]
    if len(new) != len(plan.shard_rows):
        raise ConflictError(f"{storage.url}: receipts of this retry are gone; another process has finished it")
    rows = sum(plan.shard_rows)
    came = sum(receipt.samples for receipt in new)
    if came:
        manifest = publish_revision(dataset, plan.root, new)
        replace_cards(storage, manifest, plan.cards)
    clean_up(storage, plan, dataset.names)
    return Retried(manifest=manifest, rows=rows, came=came, shards=len(new) if came else 0)


@dataclass(frozen=True, slots=True)
class _Named:
    """The part of a retry's plan that distinguishes it from others."""

    id: str


@lru_cache(maxsize=1)
def _retrier(job: RetryJob) -> _Retrier:
    """Return this process's retrier of a job, which keeps its knowledge about hosts from shard to shard."""
    return _Retrier(job)


class _Retrier:
    def __init__(self, job: RetryJob) -> None:
        refuse_other_codecs(job.codecs)
        dataset = open_fetched(job.url)
        self._job, self._storage, self._dataset = job, dataset.storage, dataset
        if dataset.sha256 != job.manifest_sha256:
            raise ConflictError(changed(self._storage))
        check = partial(_refuse_overtaken, self._storage, job)
        places = Places(root=job.root, names=dataset.names, first_shard=job.first_shard)
        staged = self._storage.staged(job.root, check)
        self._target = Target(
            staged, places, ShardOptions(dataset.manifest.format, job.rows, dataset.options.schema), check
        )
        self._web = WebFetch(job.limits)
        self._places = open_parquet(self._storage, rows_file(job.root))

    def build(self, index: int) -> ShardReceipt:
        done = self._target.done(index)
        if done is not None:
            return done
        pairs = self._rows_of(index)
        rows: list[Row] = []
        statuses: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        for shard, group in groupby(pairs, key=itemgetter(0)):
            table = read_columns(self._storage, self._dataset.names.parquet_file(shard))
            places = [row for _, row in group]
            if not 0 <= min(places) <= max(places) < table.num_rows:
                raise no_plan(self._storage, f"row {max(places)} of {table.num_rows:,} in shard {shard}")
            for fields in table.take(places).to_pylist():
                rows.append(self._dataset.row_of(fields))
                statuses[fields["status"]] += 1
                reasons[fields["error_message"] or ""] += 1
        before = {"statuses": dict(sorted(statuses.items())), "reasons": dict(sorted(reasons.items()))}
        return fetch_shard(self._target, index, rows, self._web, before)

    def _rows_of(self, index: int) -> list[tuple[int, int]]:
        """Return the old shard and position of each row in a new shard."""
        try:
            table = self._places.read_row_group(index)
            pairs = list(zip(table.column("shard").to_pylist(), table.column("row").to_pylist(), strict=True))
        except (IndexError, KeyError, ValueError, OSError) as error:
            raise no_plan(self._storage, f"its rows of shard {index} cannot be read: {error}") from error
        shards = self._dataset.num_shards
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
        shards=(*split.shards, *(manifests.shard_entry(receipt) for receipt in new)),
        index=index,
        statuses=dict(statuses),
        reasons={reason: count for reason, count in sorted(reasons.items()) if count},
    )


def _replace_index(storage: Storage, root: str, new_shards: int, split: SplitManifest) -> IndexEntry:
    """Replace the index, or its last part, with one that has the unchanged old row groups, then one for each new
    shard."""
    last = indexes.index_files(split)[-1]
    name, first = last["file"], sum(part["shards"] for part in split.index.get("parts", [])[:-1])
    with storage.open(name) as stream:
        existing = digests_of(stream)
    table = indexes.open_index(storage, split)

    def groups() -> Iterator[pa.Table]:
        for number in range(first, len(split.shards)):
            yield table.read_group(number)
        for found in read_receipts(storage, range(new_shards), root):
            if found is None:
                raise ConflictError(changed(storage))
            yield found[1]

    spool, digests = indexes.spool_row_groups(storage, name, groups(), indexes.index_schema())
    expected = ObjectInfo(name, existing.num_bytes, existing.crc32c)
    ours = existing.sha256 in (last["sha256"], digests.sha256)
    if not ours or not storage.replace_file(spool, name, digests.crc32c, expected):
        spool.unlink(missing_ok=True)
        raise ConflictError(changed(storage))
    return indexes.grown_entry(split, {"file": name, "bytes": digests.num_bytes, "sha256": digests.sha256}, new_shards)


def _replace(storage: Storage, name: str, data: bytes, before: bytes) -> None:
    if data != before and not storage.replace(name, data, before) and storage.read(name) != data:
        raise ConflictError(changed(storage))
