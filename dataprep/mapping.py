"""Columns made by functions and tables: a value for each stored sample of a finished dataset.

    dataset, function ─▶ plan ─▶ engine: values and receipt of each shard ─▶ columns/<name>/column.json
    dataset, table ─▶ DuckDB joins them by key, in the order of the samples ─▶ columns/<name>/column.json

    _map/<name>/plan.json         create-only; all that decides the values, and the id of this run
    _map/<name>/<id>/type.json    create-only; the type of the values, if the function does not state it
    _map/<name>/<id>/receipts/    as in a build (receipts.py): the entry of each shard's file
    _map/<name>/<id>/tmp/         files being written

A function need not return the same bytes on every device. So a file's name holds the digest of its content, the receipt
decides which file is the shard's, and nothing is overwritten. `column.json` is replaced last, in one step; files that
it no longer names are removed after that.
"""

from __future__ import annotations

import hashlib
import json
import socket
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from dataprep.arrays import np, pa, pc
from dataprep.builder.finished import readable_manifest
from dataprep.builder.output import OvertakenError
from dataprep.builder.plan import refuse_other_codecs
from dataprep.builder.receipts import finished_shards, read_receipt, read_receipts, write_receipt
from dataprep.builder.recipe import BuildJob, Engine, ShardMaker
from dataprep.column_functions import Columns, Function, Samples, conformed, decoded, type_of
from dataprep.dataset import column_files as files
from dataprep.dataset.adopted import LINKS, check_named, links_of, open_data
from dataprep.dataset.column_files import Column, ColumnShard, ColumnType
from dataprep.dataset.columns import from_numpy, numbers_or_zero, strings
from dataprep.dataset.documents import Count, decode
from dataprep.dataset.index import open_index
from dataprep.dataset.paths import MAP
from dataprep.dataset.records import Manifest, SampleRef, ShardReceipt, SplitManifest
from dataprep.errors import BuildError, ConflictError, DataprepError, FormatError, SourceError, UsageError
from dataprep.formats import pictures
from dataprep.host.heartbeat import beat
from dataprep.host.versions import codec_versions
from dataprep.messages import counted, quoted, shown, there_are
from dataprep.sources.custom import calling
from dataprep.sources.existing import Existing, SplitReader, stored_fields
from dataprep.storage import Storage, open_originals, open_storage
from dataprep.storage.base import read_ahead, read_bounded
from dataprep.storage.checksums import crc32c_of, digests_of
from dataprep.storage.parquet import open_parquet

if TYPE_CHECKING:
    from dataprep.fetched.retry import RetryProgress
    from dataprep.selection import Engine as Database

MAX_PLAN_BYTES = 1 << 20
TABLES = (".parquet", ".csv")
_TABLE_ROWS = 1 << 16
_DECODED_AHEAD = 4
"""Images that threads decode while the function runs."""
_NAMED = 5
"""Keys that an error names."""
_ADVICE = "remove the folder"


# Plan, and one shard as a task


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnPlan:
    """`plan.json`: the same plan gives the same values."""

    id: str
    column: str
    plan_hash: str
    """The dataset's, with its revision."""
    revision: Count
    function: str
    function_version: str
    takes: Columns
    codecs: dict[str, str]
    before: str
    """Digest of the `column.json` that it replaces; empty if there is none."""

    @property
    def root(self) -> str:
        return f"{_folder(self.column)}/{self.id}"


@dataclass(frozen=True, slots=True)
class ColumnJob(BuildJob):
    """Everything that a worker needs, except a shard's index, which counts the shards of all splits."""

    column: str
    revision: int
    function: Function
    codecs: tuple[tuple[str, str], ...]


class ColumnMaker(ShardMaker):
    """Makes the values of one shard."""

    worker_modules = ("dataprep.mapping", "numpy", "pyarrow.parquet", "simplejpeg")

    def build_shard(self, job: BuildJob, index: int) -> ShardReceipt:
        with _one_shard:  # some runners have threads; a function gets one batch at a time
            return _worker(job).build(index)

    def begin_shard(self, job: BuildJob, index: int) -> Future[ShardReceipt]:
        """Make the values of one shard."""
        done: Future[ShardReceipt] = Future()
        done.set_result(self.build_shard(job, index))
        return done

    def is_over(self, job: BuildJob) -> bool:
        """Return whether the plan is gone, because the column is complete."""
        storage, column = open_storage(job.output_url), job.root.split("/")[1]
        plan = read_plan(storage, column)
        if plan is not None and plan.root != job.root:
            raise OvertakenError(_overtaken(storage, column))
        return plan is None


COLUMNS = ColumnMaker()
_one_shard = threading.Lock()


@lru_cache(maxsize=1)
def _worker(job: BuildJob) -> _Worker:
    if not isinstance(job, ColumnJob):
        raise UsageError("a column is made by a function, got none; make it with dataprep map")
    return _Worker(job)


class _Worker:
    """A process that makes values; the function is loaded once."""

    def __init__(self, job: ColumnJob) -> None:
        refuse_other_codecs(dict(job.codecs))
        storage = open_storage(job.output_url)
        self._job, self._takes, self._place = job, job.function.takes, job.function.place
        self._storage = storage.staged(job.root, partial(_refuse_overtaken, storage, job.column, job.root))
        self._manifest = readable_manifest(storage)
        if self._manifest.revision != job.revision:
            raise ConflictError(f"{storage.url}: the dataset has changed meanwhile; run the same command again")
        self._shards = _shards(self._manifest)
        self._data = LINKS[job.links](job.source_url)
        self._existing = Existing(self._manifest, storage, self._data)
        names = self._takes.fields
        known = files.column_names(storage) if names else ()
        self._columns = {name: files.read_column(storage, self._manifest, name) for name in names if name in known}
        self._stored: dict[str, Callable[[int, pa.Table], Sequence[Mapping[str, object]]]] = {}
        self._kind = self._takes.returns
        self._function = job.function.load()

    def build(self, index: int) -> ShardReceipt:
        storage, root = self._storage, self._job.root
        if (done := read_receipt(storage, index, root)) is not None:
            return done[0]
        split, number = self._shards[index]
        kind, values = self._values(split, number)
        data = files.arrow_file(kind, values)
        entry = files.placed(kind, data, files.shard_id(split, number), self._job.column, split.name)
        crc32c = files.publish_values(storage, entry, data)
        receipt = ShardReceipt(index, split.name, number, entry.file, entry.samples, entry.bytes, entry.sha256, crc32c)
        rows = pa.Table.from_arrays([strings([json.dumps(asdict(entry))])], ["entry"])
        try:
            write_receipt(storage, receipt, rows, root)
        except ConflictError:
            winner = read_receipt(storage, index, root)
            if winner is None:
                raise
            return winner[0]
        return receipt

    def _values(self, split: SplitManifest, number: int) -> tuple[ColumnType, Any]:
        """Return the values of a shard's samples, and their type."""
        rows = open_index(self._existing.index, split, compare=True).read_group(number)
        refs = list(SplitReader(self._existing, self._data, split.name).shard_refs(number, rows))
        labels = numbers_or_zero(rows.column("label"), np.int64)
        values_of = self._fields(split, number, rows)
        reads = self._takes.images != "none"
        in_flight = max(_DECODED_AHEAD, self._data.reads_in_flight)
        images = read_ahead(partial(self._image, split.name), refs if reads else (), in_flight)
        found: list[Any] = []
        for first in range(0, len(refs), self._takes.batch):
            here = slice(first, first + self._takes.batch)
            batch = tuple(islice(images, self._takes.batch))
            samples = Samples(
                keys=tuple(ref.key for ref in refs[here]),
                images=np.stack(batch) if self._takes.size else batch,
                labels=labels[here],
                fields={name: values[here] for name, values in values_of.items()},
            )
            result = self._call(samples, f"shard {number} of {split.name}")
            try:
                if self._kind is None:
                    self._kind = _settled(self._storage, self._job.root, type_of(result))
                found.append(conformed(self._kind, result, samples.keys, nan=self._takes.nan))
            except ValueError as error:
                raise BuildError(f"{self._place}: shard {number} of {split.name}: {error}") from error
            beat()
        if self._kind is None:
            raise BuildError(f"{self._place}: shard {number} of {split.name} has no sample")
        return self._kind, list(chain(*found)) if self._kind.is_free else np.concatenate(found)

    def _fields(self, split: SplitManifest, number: int, rows: pa.Table) -> Mapping[str, Sequence[Any]]:
        found: dict[str, Sequence[Any]] = {}
        names = tuple(name for name in self._takes.fields if name not in self._columns)
        if split.name not in self._stored:
            self._stored[split.name] = stored_fields(self._manifest, self._data, split, names)
        stored = self._stored[split.name](number, rows) if names else []
        for name in self._takes.fields:
            if (column := self._columns.get(name)) is None:
                found[name] = [each.get(name) for each in stored]
            else:  # an array of all values, or a list, is a sequence of them
                values: Any = files.read_values(self._existing.index, column.type, column.shard(split.name, number))
                found[name] = values
        return found

    def _image(self, split: str, ref: SampleRef) -> Any:
        data = self._data.read_range(ref.source, ref.offset, ref.num_bytes)
        if ref.crc32c is not None and crc32c_of(data) != ref.crc32c:
            raise SourceError(
                f"{self._data.url_of(ref.source)}: {shown(ref.key)} is not the image of the index; restore it"
            )
        if self._takes.images == "bytes":
            return data
        try:
            return decoded(data, self._takes.size)
        except pictures.UnusableImageError as error:
            raise SourceError(f"{self._data.url_of(ref.source)}: {shown(ref.key)} of {split}: {error}") from error

    def _call(self, samples: Samples, where: str) -> Any:
        try:
            with calling(f"{self._place}: {where}"):
                return self._function(samples)
        except ModuleNotFoundError as error:
            raise UsageError(
                f"{self._place}: it needs the package {error.name}, which {socket.gethostname()} does not have; "
                "install it on every worker"
            ) from error
        except SourceError as error:
            raise BuildError(f"{error}; {self._culprit(samples)}") from error

    def _culprit(self, samples: Samples) -> str:
        """Name the sample for which a function raises, if it does so for one alone."""
        for n, key in enumerate(samples.keys):
            alone = Samples(
                keys=(key,),
                images=samples.images[n : n + 1],
                labels=samples.labels[n : n + 1],
                fields={name: values[n : n + 1] for name, values in samples.fields.items()},
            )
            try:
                self._function(alone)
            except Exception:  # noqa: BLE001  whatever it is, it is the sample that is looked for
                return f"the sample is {shown(key)}"
        return f"its samples are {shown(samples.keys[0])} to {shown(samples.keys[-1])}"


def _settled(storage: Storage, root: str, kind: ColumnType) -> ColumnType:
    """Make the type of a value the column's, unless it has one. Raises ValueError if that is another."""
    file = f"{root}/type.json"
    try:
        storage.create(file, json.dumps(asdict(kind)).encode())
    except ConflictError:
        settled = _settled_type(storage, root)
        if settled != kind:
            raise ValueError(
                f"{kind}, other values are {settled}; say with returns=ColumnType(...) what holds"
            ) from None
    return kind


def _settled_type(storage: Storage, root: str) -> ColumnType | None:
    data = read_bounded(storage, f"{root}/type.json", MAX_PLAN_BYTES, advice=_ADVICE)
    where = storage.url_of(f"{root}/type.json")
    return None if data is None else decode(data, ColumnType, where=where, advice=_ADVICE)


# The driver


@dataclass(frozen=True, kw_only=True)
class Work:
    """A column to make: what exists of it, and the shards that it lacks."""

    storage: Storage
    manifest: Manifest
    name: str
    function: str
    version: str
    kept: Mapping[int, ColumnShard]
    """Files of values that stay, by shard, counted over all splits."""
    kind: ColumnType | None
    """Type of these values; None if no value stays."""
    before: bytes | None
    """Content of `column.json`."""
    overwrite: bool

    @cached_property
    def shards(self) -> list[tuple[SplitManifest, int]]:
        """All shards: each with its split, and its number there."""
        return _shards(self.manifest)

    @cached_property
    def samples(self) -> list[int]:
        """Samples of each shard."""
        return [split.shards[number]["samples"] for split, number in self.shards]

    @cached_property
    def wanted(self) -> list[int]:
        """Shards whose values are to be made; those without samples have none."""
        return [index for index, samples in enumerate(self.samples) if samples and index not in self.kept]

    @cached_property
    def wanted_samples(self) -> int:
        """Samples whose values are to be made."""
        return sum(self.samples[index] for index in self.wanted)


def _shards(manifest: Manifest) -> list[tuple[SplitManifest, int]]:
    return [(split, number) for split in manifest.splits for number in range(len(split.shards))]


def plan_column(url: str, name: str, function: str, version: str, *, overwrite: bool = False) -> Work:
    """Compare a column with its dataset; `overwrite` makes all values again, even if another function made them.

    Raises UsageError if there is no dataset, the name is none, or another function or version made the existing values.
    """
    storage = open_storage(url)
    manifest = readable_manifest(storage)
    files.check_column_name(name, manifest)
    found = files.find_column(storage, name)
    kept: dict[int, ColumnShard] = {}
    if found is not None and not overwrite:
        had = found[0]
        if (had.function, had.function_version) != (function, version) and had.plan_hash == manifest.plan_hash:
            raise UsageError(
                f"{storage.url}: the column {name} was made by {had.function} {quoted(had.function_version, 150)}, "
                f"this is {function} {quoted(version, 150)}: `overwrite` makes all of it again, or `version` says "
                "that the values are the same"
            )
        opened = files.opened_column(storage, manifest, *found)
        places = ((index, opened.find(split.name, number)) for index, (split, number) in enumerate(_shards(manifest)))
        kept = {index: entry for index, entry in places if entry is not None}
    return Work(
        storage=storage,
        manifest=manifest,
        name=name,
        function=function,
        version=version,
        kept=kept,
        kind=found[0].type if found is not None and kept else None,
        before=None if found is None else found[1],
        overwrite=overwrite,
    )


def map_column(work: Work, function: Function, engine: Engine, progress: RetryProgress) -> Column:
    """Make the values of a column that are lacking with a function, or continue an interrupted run.

    Raises:
        BuildError: The function raises or returns what it must not; the text names the sample.
        ConflictError: Another run has made the column in another way meanwhile.
        DataprepError: The column is not finished; the same command continues it.
    """
    storage, manifest = work.storage, work.manifest
    takes = function.takes if work.kind is None else replace(function.takes, returns=work.kind)
    wanted = work.wanted
    if not wanted:
        plan_left = read_plan(storage, work.name)
        column = _finish(work, takes.returns, {})
        if plan_left is None or plan_left.before != _digest(work.before):  # it is finished
            _tidy(storage, work.name)
        return column
    _check_fields(storage, manifest, takes.fields)
    plan = ColumnPlan(
        id=uuid.uuid4().hex,
        column=work.name,
        plan_hash=manifest.plan_hash,
        revision=manifest.revision,
        function=function.place,
        function_version=function.version,
        takes=takes,
        codecs=codec_versions(),
        before=_digest(work.before),
    )
    claimed = _claimed(storage, plan, overwrite=work.overwrite, log=progress.log)
    if (now := files.find_column(storage, work.name)) is not None and now[1] != work.before:
        if claimed == plan:  # begun after another run had finished
            _tidy(storage, work.name)
        if (again := _finished(work, function)) is not None:
            return again
        raise ConflictError(_overtaken(storage, work.name))
    plan = claimed
    named = check_named(storage, manifest)
    job = ColumnJob(
        storage.url,
        open_data(storage, manifest, named=named).url,
        plan.root,
        "columns",
        work.name,
        manifest.revision,
        replace(function, takes=takes),
        tuple(plan.codecs.items()),
        links=links_of(manifest, named=named),
    )
    storage.staged(plan.root, partial(_refuse_overtaken, storage, work.name, plan.root)).remove_stale_spools()
    done = finished_shards(storage, plan.root)
    progress.shards(work.samples, done | (set(range(len(work.samples))) - set(wanted)))
    missing = [index for index in wanted if index not in done]
    try:
        for receipt in engine(job, missing) if missing else ():
            progress.shard_done(receipt)
        entries = _entries(storage, plan.root, wanted)
        kind = takes.returns or _settled_type(storage, plan.root)
        _refuse_overtaken(storage, work.name, plan.root)
        column = _finish(work, kind, entries)
    except (DataprepError, OSError):
        # Another run of the same plan may have finished, and removed what this one needs.
        again = None if read_plan(storage, work.name) else _finished(work, function)
        if again is None:
            raise
        return again
    _tidy(storage, work.name)
    return column


def _tidy(storage: Storage, column: str) -> None:
    """Remove the files of a run: the plan first, so that no process joins what is being removed."""
    names = [info.name for info in storage.list(f"{_folder(column)}/")]
    storage.delete(_plan_file(column))
    for root in {"/".join(name.split("/")[:3]) for name in names} - {_plan_file(column)}:
        storage.take_away(root)
    storage.prune([MAP, _folder(column)])
    storage.remove_stale_spools()


def _digest(data: bytes | None) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()


def _finished(work: Work, function: Function) -> Column | None:
    """Return the column if no shard lacks values any more."""
    now = plan_column(work.storage.url, work.name, function.place, function.version)
    found = files.find_column(now.storage, now.name)
    return None if now.wanted or found is None or found[1] == work.before else found[0]


def _check_fields(storage: Storage, manifest: Manifest, names: Sequence[str]) -> None:
    known = [*manifest.features, *files.column_names(storage)]
    for name in names if manifest.features else ():
        if name not in known:
            raise UsageError(f"{storage.url}: no field {quoted(name)}{there_are(name, known)}")


def _folder(column: str) -> str:
    return f"{MAP}/{column}"


def _plan_file(column: str) -> str:
    return f"{_folder(column)}/plan.json"


def read_plan(storage: Storage, column: str) -> ColumnPlan | None:
    """Return the plan of a running or interrupted run for a column. Raises FormatError."""
    data = read_bounded(storage, _plan_file(column), MAX_PLAN_BYTES, advice=_ADVICE)
    where = storage.url_of(_plan_file(column))
    plan = None if data is None else decode(data, ColumnPlan, where=where, advice=_ADVICE)
    if plan is not None and (plan.column != column or not plan.id.isalnum()):
        raise FormatError(f"{where}: a plan of {quoted(plan.column)}; {_ADVICE}")
    return plan


def _claimed(storage: Storage, plan: ColumnPlan, *, overwrite: bool, log: Callable[[str], object]) -> ColumnPlan:
    """Begin a run, or return the one of the same plan that is under way or was interrupted."""
    found = read_plan(storage, plan.column)
    if found is not None and replace(found, id=plan.id) != plan:
        is_current = (found.plan_hash, found.revision, found.before) == (plan.plan_hash, plan.revision, plan.before)
        if is_current and not overwrite:
            raise _other_plan(storage, plan, found)
        _tidy(storage, plan.column)
        log(f"an interrupted run for the column {plan.column} had another plan; it is begun again")
        found = None
    if found is not None:
        return found
    if storage.is_local:
        storage.create(f"{plan.root}/begun", b"")  # nothing else creates the folder; see `Storage.staged`
    try:
        storage.create(_plan_file(plan.column), json.dumps(asdict(plan), indent=1).encode())
    except ConflictError:  # another process began at the same time
        storage.delete_tree(plan.root)
        found = read_plan(storage, plan.column)
        if found is None or replace(found, id=plan.id) != plan:
            raise _other_plan(storage, plan, found) from None
        return found
    return plan


def _other_plan(storage: Storage, ours: ColumnPlan, theirs: ColumnPlan | None) -> UsageError:
    names = () if theirs is None else [name for name, value in asdict(ours).items() if asdict(theirs)[name] != value]
    differing = ", ".join(name for name in names if name != "id")
    return UsageError(
        f"{storage.url}: another run for the column {ours.column} is under way (other {differing}): finish it first, "
        "or begin again with `overwrite`"
    )


def _overtaken(storage: Storage, column: str) -> str:
    return f"{storage.url}: another run has taken over the column {column}, or finished it; run the same command again"


def _refuse_overtaken(storage: Storage, column: str, root: str) -> None:
    plan = read_plan(storage, column)
    if plan is None or plan.root != root:
        raise OvertakenError(_overtaken(storage, column))


def _entries(storage: Storage, root: str, wanted: Sequence[int]) -> dict[int, ColumnShard]:
    """Return the entries of the files that receipts name."""
    entries = {}
    for index, found in zip(wanted, read_receipts(storage, wanted, root), strict=True):
        if found is None:
            raise BuildError(f"{storage.url}: the receipt of shard {index} is gone; run the same command again")
        (text,) = found[1].column("entry").to_pylist()
        entries[index] = decode(text.encode(), ColumnShard, where=storage.url_of(found[0].file), advice=_ADVICE)
    return entries


def _finish(work: Work, kind: ColumnType | None, made: Mapping[int, ColumnShard]) -> Column:
    """Put `column.json` in place, and remove the files that it does not name."""
    storage = work.storage
    if kind is None:
        raise UsageError(f"{storage.url}: no sample has a value, so the type is not known; say it with returns=")
    entries: dict[str, list[ColumnShard]] = {split.name: [] for split in work.manifest.splits}
    for index, (split, number) in enumerate(work.shards):
        entry = made.get(index) or work.kept.get(index)
        if entry is None:  # it has no samples
            data = files.arrow_file(kind, [])
            entry = files.placed(kind, data, files.shard_id(split, number), work.name, split.name)
            files.publish_values(storage, entry, data)
        if (entry.of, entry.samples) != (files.shard_id(split, number), split.shards[number]["samples"]):
            raise FormatError(f"{storage.url}: a receipt of {quoted(entry.file)} is of another shard; {_ADVICE} {MAP}/")
        entries[split.name].append(entry)
    column = Column(
        version=files.COLUMN_VERSION,
        name=work.name,
        plan_hash=work.manifest.plan_hash,
        function=work.function,
        function_version=work.version,
        type=kind,
        splits={name: tuple(each) for name, each in entries.items()},
    )
    for split_name, entry in _files(column):
        if fault := files.entry_fault(column, split_name, entry):
            raise FormatError(
                f"{storage.url}: a receipt names a file of values that cannot be: {fault}; {_ADVICE} {MAP}/"
            )
    prefix, file = files.column_file(work.name, ""), files.column_file(work.name, files.COLUMN_JSON)
    named = {entry.file: entry.bytes for _, entry in _files(column)}
    listed = {info.name: info.num_bytes for info in storage.list(prefix)}
    lost = [name for name, num_bytes in named.items() if listed.get(name) != num_bytes]
    if lost:
        raise BuildError(
            f"{storage.url_of(lost[0])}: missing or truncated since it was made; make all again with `overwrite`"
        )
    data = json.dumps(asdict(column), indent=1).encode()
    if data != work.before and not storage.replace(file, data, work.before) and storage.read(file) != data:
        raise ConflictError(f"{storage.url_of(file)}: another run has made the column meanwhile; run this again")
    for name in listed.keys() - named.keys() - {file}:
        storage.delete(name)
    return column


def _files(column: Column) -> Iterator[tuple[str, ColumnShard]]:
    return ((split, entry) for split, entries in column.splits.items() for entry in entries)


# Tables


def table_version(url: str) -> str:
    """Return the digest of a table. Raises UsageError if there is none."""
    storage, name = _table_place(url)
    try:
        with storage.open(name) as stream:
            return digests_of(stream).sha256
    except FileNotFoundError as error:
        raise UsageError(f"`columns`: no table {url}") from error


def join_column(work: Work, url: str, on: str, *, progress: Callable[[int], None]) -> Column:
    """Make a column of the column of its name in a parquet or CSV file; `on` is the column with the samples' keys.
    `progress` is called with each number of samples whose value is in place.

    Raises UsageError if the table lacks a column, its values have a type that no column has, a key occurs twice, or a
    sample has no value; the text names the first keys.
    """
    if not work.wanted:
        return _finish(work, work.kind, {})
    from dataprep.selection import Engine as Database  # here, so that workers need no DuckDB

    with tempfile.TemporaryDirectory(prefix="dataprep-map-") as folder:
        database = Database(folder)
        kind = _insert_table(database, url, on, work.name)
        _insert_keys(database, work)
        doubled = "SELECT key FROM given GROUP BY key HAVING count(*) > 1 ORDER BY key"
        lacking = "SELECT key FROM samples LEFT JOIN given USING (key) WHERE value IS NULL ORDER BY place"
        for query, what in ((doubled, "in several rows"), (lacking, "without a value")):
            ((count,),) = database.rows(f"SELECT count(*) FROM ({query})")
            if count:
                keys = ", ".join(shown(row[0]) for row in database.rows(f"{query} LIMIT {_NAMED}"))
                raise UsageError(f"{url}: {counted(count, 'key')} {what}: {keys}{', ...' if count > _NAMED else ''}")
        kind = work.kind or kind
        rows = database.each("SELECT key, value FROM samples JOIN given USING (key) ORDER BY place")
        made = {}
        for index in work.wanted:
            split, number = work.shards[index]
            count = split.shards[number]["samples"]
            of, values = zip(*islice(rows, count), strict=True)
            try:
                data = files.arrow_file(kind, conformed(kind, values, of, nan=True))
            except ValueError as error:
                raise UsageError(f"{url}: {work.name}: {error}; correct the table") from error
            made[index] = files.placed(kind, data, files.shard_id(split, number), work.name, split.name)
            files.publish_values(work.storage, made[index], data)
            progress(count)
    column = _finish(work, kind, made)
    work.storage.remove_stale_spools()
    return column


def _table_place(url: str) -> tuple[Storage, str]:
    folder, _, name = url.rpartition("/")
    return open_originals(folder or ("/" if url.startswith("/") else ".")), name


def _insert_table(database: Database, url: str, on: str, name: str) -> ColumnType:
    """Put keys and values of a table into the database; return the type of the values."""
    storage, file = _table_place(url)
    with ExitStack() as opened:
        if url.lower().endswith(".csv"):
            from pyarrow import csv

            options = csv.ConvertOptions(column_types={on: pa.string()})
            stream = opened.enter_context(storage.open(file))
            reader = opened.enter_context(csv.open_csv(stream, convert_options=options))
            schema, batches = reader.schema, iter(reader)
        else:
            table = opened.enter_context(open_parquet(storage, file))
            schema = table.schema_arrow
            batches = table.iter_batches(_TABLE_ROWS, columns=[each for each in (on, name) if each in schema.names])
        for each in (on, name):
            if each not in schema.names:
                raise UsageError(f"{url}: no column {quoted(each)}{there_are(each, schema.names)}")
        kind = _type_of_field(url, schema.field(name))
        database.insert("given", pa.table({"key": strings([]), "value": pa.array([], schema.field(name).type)}))
        for batch in batches:
            keys = pc.cast(batch.column(on), pa.string())
            database.insert("given", pa.Table.from_arrays([keys, batch.column(name)], ["key", "value"]))
            beat()
        return kind


def _type_of_field(url: str, column: pa.Field) -> ColumnType:
    kind, shape = column.type, list[int | None]()
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    if not shape and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return ColumnType("text")
    if not shape and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return ColumnType("bytes")
    dtype = {"float": "float32", "double": "float64", "halffloat": "float16"}.get(str(kind), str(kind))
    try:
        return ColumnType("array", dtype, tuple(shape))  # type: ignore[arg-type]
    except UsageError as error:
        raise UsageError(f"{url}: {column.name} is {column.type}; {error}") from error


def _insert_keys(database: Database, work: Work) -> None:
    """Put the keys of the samples whose values are wanted into the database, with their places."""
    tables = {split.name: open_index(work.storage, split, compare=True) for split in work.manifest.splits}
    place = 0
    database.insert("samples", pa.table({"key": strings([]), "place": from_numpy(np.empty(0, np.int64))}))
    for split, number in (work.shards[index] for index in work.wanted):
        keys = tables[split.name].read_group(number, ["key"]).column("key")
        places = from_numpy(np.arange(place, place + len(keys)))
        database.insert("samples", pa.table({"key": keys, "place": places}))
        place += len(keys)
