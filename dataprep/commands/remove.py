"""`dataprep remove`: samples that must vanish from storage, such as the samples on a takedown list.

    lists ─▶ samples ─▶ plan ─▶ shards without them ─▶ index, events, places ─▶ metadata ─▶ dataset.json
                                                                      ─▶ cards, and the old files are deleted

    _change/plan.json              create-only; which revision is changed, and the new and old files
    _change/<id>/samples.parquet   the samples, a row group for each split
    _change/<id>/receipts/, tmp/   as in a build

A shard is written again under a new name, every record as it was, without those that leave. The old files are deleted
once dataset.json does not list them any more, so readers find the old revision or the new one. A killed run is
continued by any later one. Of rows of a table of URLs, only the key stays.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import BinaryIO, NamedTuple, cast

import click

from dataprep.arguments import OTHER, READ, WRITE, Place, Places, command_of, function_of, option, request, texts
from dataprep.arrays import NDArray, np, pa, pq
from dataprep.builder import finished
from dataprep.builder.cards import own_cards, replace_cards
from dataprep.builder.plan import physical_key
from dataprep.builder.receipts import read_receipt, write_receipt
from dataprep.builder.shard import WritebackFile, replace_lines
from dataprep.commands.progress import ImageProgress, Viewer, Watched, people
from dataprep.commands.select import print_unknown
from dataprep.dataset import index as indexes
from dataprep.dataset.adopted import is_adopted
from dataprep.dataset.column_files import COLUMNS
from dataprep.dataset.columns import from_numpy, numbers_or_zero, table_of, to_numpy
from dataprep.dataset.documents import Count
from dataprep.dataset.manifest import (
    MANIFEST,
    MANIFEST_ADVICE,
    MAX_MANIFEST_BYTES,
    bytes_entry,
    no_dataset,
    shard_entry,
)
from dataprep.dataset.paths import CHANGE, PLAN_JSON
from dataprep.dataset.records import (
    Change,
    Fetched,
    FileEntry,
    IndexEntry,
    IndexPart,
    Manifest,
    ShardEntry,
    ShardReceipt,
    SidecarEntry,
    SplitManifest,
)
from dataprep.dataset.replicas import REPLICAS
from dataprep.dataset.revisions import MAX_REMOVED, kept_numbers, removed_file, removed_table
from dataprep.dataset.views import VIEWS, address
from dataprep.errors import ConflictError, FormatError, UsageError
from dataprep.fetched.existing import FetchedDataset
from dataprep.fetched.plan import is_fetched
from dataprep.fetched.shard import arrow_schema, stats_json
from dataprep.fetched.shards import entries_of, recounted
from dataprep.formats import FORMATS
from dataprep.formats.imagefolder import metadata_file, repeat_links
from dataprep.formats.img2dataset import FILTERED, SUCCESS
from dataprep.messages import counted, human_bytes
from dataprep.selection import NAMING, Columns, Listed
from dataprep.storage import Storage, disk_errors, open_storage
from dataprep.storage.base import read_ahead, read_bounded
from dataprep.storage.checksums import HashingWriter, crc32c_of_bytes
from dataprep.storage.parquet import open_parquet, read_columns

EPILOG = """\b
Examples:
  dataprep remove shards --keys takedown.txt --dry-run
  dataprep remove gs://bucket/laion --keys takedown.txt --allow-missing

\b
After an interruption, run the same command again: it continues where it stopped.

\b
Exit codes: 0 removed; 1 a line names no sample, or another process changed the dataset; 2 nothing was removed.
"""
REMOVE = "remove"
REMOVED_ROW = "removed"
"""Reason of a row of a table of URLs whose image was removed."""
_SHARDS_AT_ONCE = 4
_CHUNK_BYTES = 1 << 22


@request
class Remove(Watched):
    """Remove samples from the dataset at URL for good: their shards are rewritten without them.

    This makes a new revision of the dataset. removed/ records when, how many and which positions, and the SHA-256 of
    each key, but no key, URL or caption. To leave samples out but keep them in storage, make a view: dataprep select
    URL --except FILE. Afterwards, refresh views (dataprep select --refresh), and replicate the dataset again.
    """

    url: Place = option("Folder or gs:// prefix of the dataset.", metavar="URL", kw_only=False, group=READ)
    keys: Places = option(
        "File with one line per sample: its key, or its value of the field url, sha256 or md5; may be repeated.",
        metavar="FILE",
        group=READ,
    )
    allow_missing: bool = option("Accept lists with samples that do not exist.", default=False, group=OTHER)
    dry_run: bool = option("Show what would be rewritten, and change nothing.", default=False, group=WRITE)


@dataclass(frozen=True, slots=True)
class Removal:
    """Samples that were removed, or would be. It shows itself in a terminal."""

    url: str
    revision: int
    """Revision of the dataset afterwards."""
    samples: dict[str, int]
    """Removed samples by split."""
    shards: int
    """Number of shards that are written again."""
    num_bytes: int
    """Size of these shards before."""
    unknown: tuple[str, ...] = ()
    """Lines of the lists that name no sample."""
    notes: tuple[str, ...] = ()
    """Other places that have these samples, and advice."""

    def __str__(self) -> str:
        if not self.shards:
            return f"{self.url}: no such samples; the dataset stays at revision {self.revision}"
        lines = [
            f"{self.url}: revision {self.revision} without {counted(sum(self.samples.values()), 'sample')}; "
            f"{counted(self.shards, 'shard')} rewritten ({human_bytes(self.num_bytes)})"
        ]
        return "\n".join([*lines, *self.notes])


class _Gone(NamedTuple):
    """Samples and rows that one shard loses."""

    samples: NDArray[np.int64]
    """Numbers of samples, ascending."""
    rows: NDArray[np.int64]
    """Numbers of the rows of its table that lose their values, ascending; empty unless they are rows of a table."""


_Selection = Mapping[str, Mapping[int, _Gone]]
"""Removed samples by split and shard; only shards that are written again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovalPlan(finished.ChangePlan):
    """The plan of a removal, as `_change/plan.json` holds it."""

    kind: str = REMOVE
    when: str
    """Time at which it began, ISO 8601."""
    lists_sha256: str
    unknown: tuple[str, ...]
    """Lines of the lists that name no sample."""
    samples: dict[str, Count]
    """Samples to remove, by split."""
    shards: Count
    """Number of shards to write again."""
    num_bytes: Count
    """Size of these shards."""


def _dataset_at(storage: Storage) -> tuple[Manifest, bytes]:
    data = read_bounded(storage, MANIFEST, MAX_MANIFEST_BYTES, advice=MANIFEST_ADVICE)
    if data is None:
        raise no_dataset(storage)
    manifest = finished.readable_manifest(storage)
    if is_adopted(manifest):
        raise UsageError(
            f"{storage.url}: its files were adopted, so dataprep does not change them: delete the samples with the "
            "tool that wrote them and adopt them again, or make a view without them with dataprep select and `except`"
        )
    if storage.stat(PLAN_JSON) is not None:
        raise UsageError(f"{storage.url}: a build is under way there; finish it first")
    finished.refuse_other_change(storage, REMOVE)
    return manifest, data


def remove_samples(url: str, lists: Sequence[str], *, dry_run: bool, progress: ImageProgress) -> Removal:
    """Remove the samples that lists name; an interrupted removal is finished first.

    Raises:
        UsageError: There is no dataset that can be changed, or nothing would be left of it.
        ConflictError: Another process has changed the dataset meanwhile.
    """
    if address(url)[1]:
        raise UsageError(f"{url}: a view; samples are removed from its dataset, {address(url)[0]}")
    storage, listed = open_storage(url), Listed(lists)
    digest = hashlib.sha256("\n".join(sorted(listed.lines)).encode()).hexdigest()
    manifest, data = _dataset_at(storage)
    storage.remove_stale_spools()
    begun = None if dry_run else finished.read_change(storage, RemovalPlan)
    if begun is not None:
        removal = _continue(storage, begun, progress)
        if begun.lists_sha256 == digest and removal is not None:
            return removal
        manifest, data = _dataset_at(storage)
    progress.begin("looking for samples", sum(split.samples for split in manifest.splits))
    find = _fetched_rows if is_fetched(manifest) else _samples
    selection = find(storage, manifest, listed, lambda samples: progress.advance(samples, 0))
    entries = [split.shards[at] for split in manifest.splits for at in selection.get(split.name, {})]
    plan = RemovalPlan(
        id=uuid.uuid4().hex,
        revision=manifest.revision,
        manifest_sha256=hashlib.sha256(data).hexdigest(),
        cards=own_cards(storage, manifest),
        when=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        lists_sha256=digest,
        unknown=listed.unknown,
        samples={name: sum(len(gone.samples) for gone in shards.values()) for name, shards in selection.items()},
        shards=len(entries),
        num_bytes=sum(entry["bytes"] for entry in entries),
    )
    if dry_run or not selection:
        if not dry_run:
            storage.delete_tree(CHANGE)  # files of an interrupted beginning or cleanup
        return _removal(storage, plan)
    for name, samples in plan.samples.items():
        if samples > MAX_REMOVED:
            raise UsageError(f"{name}: more than {MAX_REMOVED:,} samples; remove them in several runs")
    if sum(split.samples for split in manifest.splits) == sum(plan.samples.values()):
        raise UsageError(f"{storage.url}: nothing would be left; delete the dataset instead")
    found = _continue(storage, _begin(storage, manifest, plan, selection), progress)
    if found is None:
        raise ConflictError(finished.changed(storage))
    return found


def _removal(storage: Storage, plan: RemovalPlan) -> Removal:
    others = (
        ("views", VIEWS, "recreate them with dataprep select --refresh"),
        ("columns", COLUMNS, "recreate them with dataprep map"),
    )
    changed = plan.shards > 0
    notes = [
        f"{name} of the dataset still have these samples: {advice}"
        for name, folder, advice in others
        if changed and next(storage.list(f"{folder}/"), None) is not None
    ]
    if changed and storage.stat(REPLICAS) is not None:
        notes.append(f"copies of the dataset still have them: {REPLICAS} lists where; delete and replicate them again")
    return Removal(
        url=storage.url,
        revision=plan.revision + changed,
        samples=plan.samples,
        shards=plan.shards,
        num_bytes=plan.num_bytes,
        unknown=plan.unknown,
        notes=tuple(notes),
    )


# Which samples


def _samples(storage: Storage, manifest: Manifest, listed: Listed, progress: Callable[[int], None]) -> _Selection:
    columns = Columns(manifest, storage, storage, {*NAMING} & manifest.features.keys())
    selection: dict[str, dict[int, _Gone]] = {}
    for split in manifest.splits:
        passes = FORMATS[manifest.format].passes_written(split.repeats["stored"])
        keys = {physical_key(line, number): line for number in range(passes) for line in listed.lines}
        index = indexes.open_index(storage, split, compare=True)
        for number, shard in enumerate(split.shards):
            rows = columns.table(split, number, index.read_group(number))
            gone = np.flatnonzero(listed.named(rows, keys if passes > 1 else None))
            if len(gone):
                selection.setdefault(split.name, {})[number] = _Gone(gone, np.empty(0, np.int64))
            progress(shard["samples"])
    return selection


def _fetched_rows(storage: Storage, manifest: Manifest, listed: Listed, progress: Callable[[int], None]) -> _Selection:
    """Find the rows of a table of URLs; a row that was tried again is in several shards, under the same key."""
    dataset, (split,) = FetchedDataset(storage, manifest), manifest.splits
    names = [column.name for column in dataset.options.schema.columns if column.name in NAMING]
    keys: set[str] = set()
    for number, shard in enumerate(split.shards):
        rows = read_columns(storage, dataset.parquet_file(number), names)
        named = rows.take(from_numpy(np.flatnonzero(listed.named(rows)))).select(["key", "url"])
        keys.update(key for key, url in zip(*(each.to_pylist() for each in named.columns), strict=True) if url)
        progress(shard["samples"])
    found: dict[int, _Gone] = {}
    for number in range(len(split.shards)) if keys else ():
        table = read_columns(storage, dataset.parquet_file(number), ("key", "status"))
        named = np.array([key in keys for key in table.column("key").to_pylist()], np.bool_)
        came = np.array([status == SUCCESS for status in table.column("status").to_pylist()], np.bool_)
        if named.any():
            found[number] = _Gone(np.flatnonzero(named[came]), np.flatnonzero(named))
    return {split.name: found} if found else {}


# The plan


def _samples_file(root: str) -> str:
    return f"{root}/samples.parquet"


def _begin(storage: Storage, manifest: Manifest, plan: RemovalPlan, selection: _Selection) -> RemovalPlan:
    """Store what leaves and the plan. Raises ConflictError if another process has begun a change."""
    new, old = _files(storage, manifest, selection)
    plan = replace(plan, new=tuple(sorted(new)), old=tuple(sorted(old)))
    tables = (_selection_table(selection.get(split.name, {})) for split in manifest.splits)
    indexes.publish_row_groups(storage, _samples_file(plan.root), tables, _selection_schema())
    if not finished.begin_change(storage, plan):
        raise ConflictError(finished.changed(storage))
    return plan


def _files(storage: Storage, manifest: Manifest, selection: _Selection) -> tuple[set[str], set[str]]:
    """Return the files that a removal may put in place, and those that it deletes."""
    new: set[str] = set()
    old: set[str] = set()
    revision, table = manifest.revision + 1, FetchedDataset(storage, manifest) if is_fetched(manifest) else None
    for split in manifest.splits:
        gone = selection.get(split.name, {})
        if not gone:
            continue
        entries = (*indexes.index_files(split), split.events)
        new |= {indexes.revised_name(entry["file"], revision) for entry in entries}
        new.add(removed_file(revision, split.name))
        old |= {entry["file"] for entry in entries}
        if FORMATS[manifest.format].one_file_per_image:
            old |= _images(storage, manifest, split, gone)
            continue
        numbers = _numbers(manifest, split, gone)
        new |= {finished.shard_file(manifest, split, number) for number in numbers.values()}
        old |= {split.shards[at]["file"] for at in gone}
        if table is not None:
            new |= {file for number in numbers.values() for file in table.names.files(number)}
            old |= {file for at in gone for file in table.names.files(table.numbers[at])}
    return new, old


def _images(storage: Storage, manifest: Manifest, split: SplitManifest, gone: Mapping[int, _Gone]) -> set[str]:
    """Return the images that leave an image folder, and the links to folders that are empty without them."""
    index, left, files = indexes.open_index(storage, split, compare=True), Counter[str](), set[str]()
    for number in range(len(split.shards)):
        names = list(finished.image_names(manifest, split, index.read_group(number, ["key", "label"])))
        left.update(name.split("/")[1] for name in names)
        files.update(names[at] for at in (gone[number].samples if number in gone else ()))
    left.subtract(name.split("/")[1] for name in files)
    if finished.links_repeats(manifest, split):
        empty = sorted(folder for folder, count in left.items() if not count)
        files.update(link for link, _ in repeat_links(empty, split.repeats["count"], split=split.name))
    return files


def _numbers(manifest: Manifest, split: SplitManifest, gone: Mapping[int, _Gone]) -> Mapping[int, int]:
    """Return the numbers in the names of the shards that take the place of others, by position."""
    return {at: number for number, at in enumerate(gone, finished.next_number(manifest, split, len(gone)))}


def _selection_schema() -> pa.Schema:
    return pa.schema([("shard", pa.int32()), ("sample", pa.int64()), ("row", pa.int64())])


def _selection_table(gone: Mapping[int, _Gone]) -> pa.Table:
    """Return samples and rows that leave a split; -1 in place of a sample that is a row, and of a row that is none."""
    columns: list[list[int]] = [[], [], []]
    for shard, (samples, rows) in gone.items():
        columns[0] += [shard] * (len(samples) + len(rows))
        columns[1] += [*samples.tolist(), *([-1] * len(rows))]
        columns[2] += [*([-1] * len(samples)), *rows.tolist()]
    return table_of(columns, _selection_schema())


def _stored_selection(storage: Storage, plan: RemovalPlan, manifest: Manifest) -> _Selection:
    """Read what leaves. Raises FormatError if it is not in the dataset."""
    name, selection = _samples_file(plan.root), {}
    try:
        file = open_parquet(storage, name)
        for group, split in enumerate(manifest.splits):
            table = file.read_row_group(group)
            shards, samples, rows = (to_numpy(table.column(each)) for each in _selection_schema().names)
            found: dict[int, _Gone] = {}
            for shard in np.unique(shards).tolist():
                here = shards == shard
                gone = _Gone(*(np.unique(values[here & (values >= 0)]) for values in (samples, rows)))
                if not 0 <= shard < len(split.shards) or any(gone.samples >= split.shards[shard]["samples"]):
                    raise ValueError(f"samples of shard {shard}")
                found[shard] = gone
            if found:
                selection[split.name] = found
    except (FileNotFoundError, pa.ArrowException, ValueError, KeyError, IndexError, OSError) as error:
        raise FormatError(f"{storage.url_of(name)}: not the samples of a removal; {finished.CHANGE_ADVICE}") from error
    return selection


def _continue(storage: Storage, plan: RemovalPlan, progress: ImageProgress) -> Removal | None:
    """Finish a removal that has begun, and return it; None if the dataset has been changed without it."""
    manifest, data = _dataset_at(storage)
    is_there = any(change.revision == plan.revision + 1 and change.kind == "removed" for change in manifest.changes)
    if hashlib.sha256(data).hexdigest() == plan.manifest_sha256:
        selection, is_there = _stored_selection(storage, plan, manifest), True
        manifest = _Rewriting(storage, plan, manifest, data, selection).publish(progress)
    if is_there:
        replace_cards(storage, manifest, plan.cards)
    names = finished.change_names(manifest, plan)
    finished.end_change(storage, plan.root, names.intersection(plan.old if is_there else plan.new))
    return _removal(storage, plan) if is_there else None


# The new revision


class _Rewriting:
    """Writes the shards of a removal again, and publishes the revision."""

    def __init__(
        self, storage: Storage, plan: RemovalPlan, manifest: Manifest, data: bytes, selection: _Selection
    ) -> None:
        self._storage, self._plan, self._manifest, self._data = storage, plan, manifest, data
        check = partial(finished.refuse_overtaken_change, storage, plan.root)
        self._staged = storage.staged(plan.root, check)
        self._selection = selection
        self._todo = [(split, at) for split in manifest.splits for at in selection.get(split.name, {})]
        self._numbers = {
            split.name: _numbers(manifest, split, selection[split.name])
            for split in manifest.splits
            if split.name in selection
        }
        self._indexes = {split.name: indexes.open_index(storage, split, compare=True) for split in manifest.splits}
        self._single = FORMATS[manifest.format].one_file_per_image
        self._fetched = FetchedDataset(storage, manifest, data) if is_fetched(manifest) else None

    def publish(self, progress: ImageProgress) -> Manifest:
        """Write what is missing, and return the manifest of the new revision."""
        progress.begin("writing shards", sum(split.shards[at]["samples"] for split, at in self._todo))
        for receipt in read_ahead(self._written, range(len(self._todo)), _SHARDS_AT_ONCE):
            split, at = self._todo[receipt.index]
            progress.advance(split.shards[at]["samples"], receipt.num_bytes)
        splits = {split.name: split for split in self._manifest.splits}
        changes, first = list(self._manifest.changes), 0
        files = {entry["file"]: entry for entry in self._manifest.files if entry["file"] not in self._plan.old}
        for name, gone in self._selection.items():
            splits[name], change, sidecars = self._shrunk(splits[name], gone, first)
            changes.append(change)
            files |= {entry["file"]: entry for entry in sidecars}
            first += len(gone)
        new = replace(
            self._manifest, splits=tuple(splits.values()), files=tuple(files.values()), changes=tuple(changes)
        )
        return finished.publish_revision(self._storage, self._manifest, self._data, new)

    def _written(self, index: int) -> ShardReceipt:
        """Write one shard without what leaves, unless an earlier run has done it."""
        found = read_receipt(self._storage, index, self._plan.root)
        if found is not None:
            return found[0]
        split, at = self._todo[index]
        gone, rows = self._selection[split.name][at], self._indexes[split.name].read_group(at)
        if self._single:
            name = split.shards[at]["file"]
            written, rows = self._without_images(split, gone.samples, rows)
        else:
            name = finished.shard_file(self._manifest, split, self._numbers[split.name][at])
            written, rows = self._without_records(split.shards[at], gone.samples, rows, name)
        receipt = ShardReceipt(
            index=index,
            split=split.name,
            split_index=at,
            file=name,
            samples=rows.num_rows,
            num_bytes=written.num_bytes,
            sha256=written.sha256,
            crc32c=written.crc32c,
            fetched=None if self._fetched is None else self._sidecars(self._fetched, split, at, gone.rows),
        )
        try:
            write_receipt(self._staged, receipt, rows, self._plan.root)
        except ConflictError:  # another process has written the same shard
            found = read_receipt(self._storage, index, self._plan.root)
            if found is None:
                raise
        return receipt

    def _without_records(
        self, entry: ShardEntry, gone: NDArray[np.int64], rows: pa.Table, name: str
    ) -> tuple[HashingWriter, pa.Table]:
        """Copy a shard without the records of some samples; return what was written and its rows of the index."""
        columns = ("record_offset", "record_bytes", "image_offset", "image_bytes")
        places = [to_numpy(rows.column(column)) for column in columns]
        offsets, sizes = places[:2]
        where = self._storage.url_of(entry["file"])
        in_order = (offsets[1:] >= offsets[:-1] + sizes[:-1]).all()
        if not in_order or not indexes.are_ranges_inside(*places, shard_bytes=entry["bytes"]):
            raise FormatError(f"{where}: the index has different records; run dataprep verify to see what is wrong")
        spool, read = self._staged.spool_path(name), HashingWriter()
        try:
            with (
                self._storage.open(entry["file"]) as stream,
                self._staged.sending(spool, name) as sent,
                disk_errors(spool),
                WritebackFile(spool, sent) as written,
            ):
                at = 0
                for start, num_bytes in [*zip(offsets[gone].tolist(), sizes[gone].tolist(), strict=True), (None, 0)]:
                    _copy(stream, start if start is None else start - at, read, cast(BinaryIO, written))
                    _copy(stream, num_bytes, read, None)
                    at = (start or 0) + num_bytes
            if (read.num_bytes, read.sha256) != (entry["bytes"], entry["sha256"]):
                raise FormatError(f"{where}: damaged; restore it, or run dataprep verify to see what else is wrong")
        except BaseException:
            spool.unlink(missing_ok=True)
            raise
        self._staged.publish(spool, name, written.digests.crc32c)
        kept = kept_numbers(gone, rows.num_rows)
        left_out = np.zeros(rows.num_rows, np.int64)
        left_out[gone] = sizes[gone]
        shift = np.cumsum(left_out)[kept]
        rows = rows.take(from_numpy(kept))
        for column in ("record_offset", "image_offset"):
            position = rows.schema.get_field_index(column)
            moved = from_numpy(to_numpy(rows.column(column)) - shift)
            rows = rows.set_column(position, rows.schema.field(position), moved)
        return written.digests, rows

    def _without_images(
        self, split: SplitManifest, gone: NDArray[np.int64], rows: pa.Table
    ) -> tuple[HashingWriter, pa.Table]:
        """Return the digests of a group of images without some, and its rows of the index."""
        rows = rows.take(from_numpy(kept_numbers(gone, rows.num_rows)))
        digests, names = HashingWriter(), list(finished.image_names(self._manifest, split, rows))
        for image in read_ahead(self._storage.read, names, self._storage.reads_in_flight):
            digests.write(image)
        return digests, rows

    def _sidecars(self, dataset: FetchedDataset, split: SplitManifest, at: int, rows: NDArray[np.int64]) -> Fetched:
        """Write the parquet file of a shard's rows without the values of some, and its stats."""
        _, parquet, stats = dataset.names.files(self._numbers[split.name][at])
        _, old_parquet, old_stats = dataset.names.files(dataset.numbers[at])
        table = read_columns(self._storage, old_parquet)
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
        had = _counts(columns)
        for row in rows.tolist():
            for name, values in columns.items():
                if name not in ("key", "status", "error_message"):
                    values[row] = None
            if self._last[columns["key"][row]] == at:
                columns["status"][row], columns["error_message"][row] = FILTERED, REMOVED_ROW
        sink = io.BytesIO()
        pq.write_table(table_of(columns.values(), arrow_schema(dataset.options.schema)), sink)
        now, before = _counts(columns), json.loads(self._storage.read(old_stats)).get("before")
        contents = {parquet: sink.getvalue(), stats: stats_json(Counter(now["statuses"]), now["reasons"], before)}
        for name, data in contents.items():
            self._staged.create(name, data)
        files = tuple(
            SidecarEntry(**bytes_entry(name, data), crc32c=crc32c_of_bytes(data)) for name, data in contents.items()
        )
        return Fetched(attempt="", files=files, statuses=now["statuses"], reasons=now["reasons"], before=had)

    @cached_property
    def _last(self) -> Mapping[str, int]:
        """The last shard with each removed row's key, which has its newest status."""
        last: dict[str, int] = {}
        for split, at in self._todo:
            if self._fetched is None:
                break
            keys = read_columns(self._storage, self._fetched.parquet_file(at), ("key",)).column("key").to_pylist()
            last |= {keys[row]: at for row in self._selection[split.name][at].rows.tolist()}
        return last

    def _shrunk(
        self, split: SplitManifest, gone: Mapping[int, _Gone], first: int
    ) -> tuple[SplitManifest, Change, list[FileEntry]]:
        """Publish index, events and the list of removed samples of a split, whose first receipt has the number `first`;
        return the split, its change, and entries of files."""
        revision, keys = self._manifest.revision + 1, list[str]()
        labels = np.zeros(len(split.class_counts), np.int64)
        shards, sidecars = list(split.shards), list[FileEntry]()
        receipts = [self._receipt(number)[0] for number in range(first, first + len(gone))]
        for receipt, (at, (samples, _)) in zip(receipts, gone.items(), strict=True):
            rows = self._indexes[split.name].read_group(at, ["key", "label"]).take(from_numpy(samples))
            keys += rows.column("key").to_pylist()
            if len(labels):
                labels += np.bincount(numbers_or_zero(rows.column("label"), np.int64), minlength=len(labels))
            shards[at] = shard_entry(receipt)
            if self._fetched is not None:
                sidecars += entries_of(receipt)
        table = removed_table({at: samples for at, (samples, _) in gone.items()}, keys, self._plan.when)
        name = removed_file(revision, split.name)
        places = indexes.publish_row_groups(self._staged, name, iter([table]), table.schema)
        events, repaired = self._events(split, frozenset(keys))
        if self._single and self._manifest.features:
            sidecars.append(self._annotations(split, gone))
        shrunk = replace(
            split if self._fetched is None else recounted(split, receipts),
            samples=split.samples - len(keys),
            num_bytes=sum(shard["bytes"] for shard in shards),
            shards=tuple(shards),
            class_counts=tuple((np.array(split.class_counts, np.int64) - labels).tolist()),
            index=self._index(split, gone, first),
            events=events,
            repaired=repaired,
        )
        return shrunk, Change(revision, split.name, "removed", len(shards), split.samples, places), sidecars

    def _receipt(self, number: int) -> tuple[ShardReceipt, pa.Table]:
        found = read_receipt(self._storage, number, self._plan.root)
        if found is None:
            raise ConflictError(finished.changed(self._storage))
        return found

    def _index(self, split: SplitManifest, gone: Mapping[int, _Gone], first: int) -> IndexEntry:
        """Write the files of the index that have rows of changed shards again."""
        numbers = {at: first + number for number, at in enumerate(gone)}
        schema = indexes.index_schema(with_annotations=bool(self._manifest.features))
        files, start = list[IndexPart](), 0
        for entry in indexes.index_files(split):
            here = range(start, start + cast(IndexPart, {"shards": len(split.shards), **entry})["shards"])
            start = here.stop
            if not numbers.keys().isdisjoint(here):
                rows = (
                    self._receipt(numbers[at])[1] if at in numbers else self._indexes[split.name].read_group(at)
                    for at in here
                )
                name = indexes.revised_name(entry["file"], self._manifest.revision + 1)
                entry = indexes.publish_row_groups(self._staged, name, rows, schema)
            files.append({**entry, "shards": len(here)})
        if "parts" in split.index:
            return indexes.joined_entry(split.name, files)
        (whole,) = files
        return {"file": whole["file"], "bytes": whole["bytes"], "sha256": whole["sha256"]}

    def _events(self, split: SplitManifest, keys: frozenset[str]) -> tuple[FileEntry, dict[str, int]]:
        """Write the events without removed samples; return the entry of their file, and the repairs by reason."""
        events = indexes.read_events(self._storage, split.events["file"])
        left = [event for event in events if event.key not in keys]
        if len(left) == len(events):
            return split.events, split.repaired
        name = indexes.revised_name(split.events["file"], self._manifest.revision + 1)
        rows = iter([indexes.events_table(left)])
        entry = indexes.publish_row_groups(self._staged, name, rows, indexes.events_schema())
        counts = Counter(event.reason for event in left if event.kind == "repaired")
        return entry, dict(sorted(counts.items()))

    def _annotations(self, split: SplitManifest, gone: Mapping[int, _Gone]) -> FileEntry:
        """Replace the annotations of an image folder by the annotations of the samples that stay."""
        name = metadata_file(split.name)
        (listed,) = (entry for entry in self._manifest.files if entry["file"] == name)
        firsts = np.cumsum([0, *(shard["samples"] for shard in split.shards)])
        removed = {int(firsts[at]) + number for at, (samples, _) in gone.items() for number in samples.tolist()}
        return replace_lines(self._staged, name, listed["sha256"], without=removed)


def _counts(columns: Mapping[str, Sequence[str | None]]) -> dict[str, dict[str, int]]:
    """Count rows of a table of URLs by status and by reason."""
    statuses = [status or "" for status in columns["status"]]
    reasons = Counter(why or status for why, status in zip(columns["error_message"], statuses, strict=True))
    return {"statuses": dict(Counter(statuses)), "reasons": dict(sorted(reasons.items()))}


def _copy(stream: BinaryIO, num_bytes: int | None, read: HashingWriter, target: BinaryIO | None) -> None:
    """Read bytes, all of them if no number is given, and write them to a target if there is one."""
    while num_bytes != 0:
        data = stream.read(_CHUNK_BYTES if num_bytes is None else min(num_bytes, _CHUNK_BYTES))
        if not data:
            return
        read.write(data)
        if target is not None:
            target.write(data)
        num_bytes = None if num_bytes is None else num_bytes - len(data)


# The command


def _removed(asked: Remove, viewer: Viewer | None = None) -> Removal:
    """Remove samples; a list that names unknown samples is not an error."""
    with ImageProgress(viewer or asked.viewer()) as progress:
        found = remove_samples(str(asked.url), texts(asked.keys), dry_run=asked.dry_run, progress=progress)
    return replace(found, unknown=()) if asked.allow_missing else found


def _print(asked: Remove, *, as_json: bool) -> None:
    found = _removed(asked, people(asked, quiet=as_json))
    nothing = " (dry run: nothing was changed)" if asked.dry_run else ""
    click.echo(json.dumps(asdict(found)) if as_json else f"{found}{nothing}")
    print_unknown(found.unknown, "--keys")


remove = function_of(Remove, _removed, "remove")
command = command_of(Remove, _print, "remove", epilog=EPILOG)
