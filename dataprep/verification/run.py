"""`dataprep verify`: compares every byte of a dataset with its manifest, and everything that is recorded twice.

Shards are streamed; the memory grows by 8 bytes a sample (24 for an image folder). The steps are listed in the room's
docstring, the kinds of findings in findings.py. A damaged or hostile dataset gives findings and never an error.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dataprep import errors
from dataprep.builder.cards import cards_of, read_card
from dataprep.builder.finished import dataset_of, layout_faults, numbering_faults, shape_faults
from dataprep.builder.images import ImagePolicy, check_image
from dataprep.builder.pool import Pool
from dataprep.builder.recipe import load, recipe_of
from dataprep.cloud.placement import is_bucket
from dataprep.cloud.replicate import dataset_phases
from dataprep.dataset.adopted import check_named, is_adopted, open_named_data
from dataprep.dataset.column_files import COLUMNS, column_faults, column_names
from dataprep.dataset.hashes import name_hash, no_hashes, repeated
from dataprep.dataset.index import open_index
from dataprep.dataset.manifest import MANIFEST, VERSIONS, built_as, manifest_bytes, no_dataset, read_manifest
from dataprep.dataset.paths import CARDS, named
from dataprep.dataset.randomness import ORDER_VERSION
from dataprep.dataset.records import Event, Manifest, SplitManifest
from dataprep.dataset.replicas import REPLICAS, read_replicas
from dataprep.dataset.views import VIEWS, find_view, read_view, view_names
from dataprep.formats import FORMATS
from dataprep.formats.base import MAX_IMAGE_BYTES
from dataprep.messages import counted, printable, quoted
from dataprep.sources import SplitFacts
from dataprep.sources.base import CONVERTED, Dataset
from dataprep.storage import ObjectInfo, Storage, open_storage
from dataprep.storage.checksums import crc32c_hex, crc32c_of
from dataprep.storage.copies import stored_crc32c
from dataprep.verification.files import (
    FolderFiles,
    check_annotations,
    check_changes,
    check_events,
    check_index,
    check_listing,
    check_metadata,
)
from dataprep.verification.findings import MAX_LISTED, UNPROVED, WARNINGS, Finding, Findings
from dataprep.verification.shard import NO_COUNTS, CheckedShard, ShardResult, read_rows

_WORKER_MODULES = ("dataprep.verification.run", "pyarrow.parquet", "simplejpeg")
_BEFORE_SHARDS, _AFTER_SHARDS = -1, 1 << 62
"""Positions of findings about the complete dataset: before and after the shards' findings."""
ShardCheck = Callable[[CheckedShard, ShardResult], None]
"""Function that compares a shard with its manifest and its index; each recipe names one in `shard_check`."""
_READS_IN_FLIGHT = 32
_REPAIRABLE = ImagePolicy(check="decode", on_bad="repair")
"""Policy for decoding adopted images, which need not be JPEGs."""


class Progress(Protocol):
    """Receiver of progress reports; also says how long a worker may go without progress."""

    stall_s: float

    def step(self, what: str) -> None:
        """A short step begins."""

    def started(self, samples: int) -> None:
        """Shards with this number of samples will be read."""

    def shard_done(self, samples: int, num_bytes: int) -> None:
        """One shard was read."""

    def warn(self, line: str) -> None:
        """Show a warning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Result of a verification."""

    url: str
    deep: bool
    is_adopted: bool
    """Whether other tools wrote the data: only that every image can be decoded was checked."""
    copies: int
    """Number of copies in `replicas.json` that were compared with it."""
    findings: tuple[Finding, ...]
    """Findings in the order of the dataset's files, at most MAX_LISTED of them."""
    counts: dict[str, int]
    """Number of findings by kind, including those that are not listed."""
    shards: int
    samples: int
    """Number of samples that were read and compared."""
    num_bytes: int
    """Number of bytes of shards that were read."""
    elapsed_s: float

    @property
    def verdict(self) -> str:
        """Verdict: `complete`, `differs`, or `undecided` if something could not be read and the rest is right."""
        faults = set(self.counts) - WARNINGS
        if faults - UNPROVED:
            return "differs"
        return "undecided" if faults else "complete"

    @property
    def ok(self) -> bool:
        """Whether nothing differs and everything could be read."""
        return self.verdict == "complete"

    @property
    def summary(self) -> str:
        """Findings by kind, in words."""
        counts = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items())
        return f"{counted(sum(self.counts.values()), 'finding')} ({counts})"

    def __str__(self) -> str:
        read = f"{counted(self.samples, 'sample')} in {counted(self.shards, 'shard')}"
        lines = [f"{self.url}: {self.verdict}; {read}" + ("" if self.ok else f"; {self.summary}")]
        lines += [f"  {each.kind}  {printable(each.where)}: {printable(each.detail)}" for each in self.findings[:20]]
        if (more := sum(self.counts.values()) - 20) > 0:
            lines.append(f"  … and {more:,} more")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        first, *rest = (escape(line) for line in str(self).split("\n"))
        colour = {"complete": "green", "differs": "#b00"}.get(self.verdict, "#a60")
        return f"<b style='color:{colour}'>{first}</b>" + "".join(f"<br><code>{line}</code>" for line in rest)


def verify(url: str, *, deep: bool, workers: int, progress: Progress, replicas: bool = False) -> Report:
    """Verify a finished dataset.

    Args:
        url: Root of the dataset, on disk or in a bucket.
        deep: Also decode every image completely.
        workers: Number of worker processes; with 0 this process reads the shards.
        progress: Receives progress reports.
        replicas: Also compare every copy in `replicas.json` with the dataset, by size and CRC32C of all objects.

    Raises:
        UsageError: There is no dataset.
        AccessError: The bucket does not exist, or the dataset may not be read.
        UndecidedError: The manifest cannot be read.
    """
    started_s, copies = time.monotonic(), 0
    storage = open_storage(url)
    progress.step("reading the manifest")
    findings = Findings(MAX_LISTED)
    try:
        manifest = _manifest(storage, findings)
    except errors.AccessError:
        raise
    except errors.StorageError as error:
        raise errors.UndecidedError(f"{error}; {storage.url} cannot be checked until it can be read") from error
    is_other = manifest is not None and is_adopted(manifest)
    if manifest is None:
        sums = {}
    elif is_other:  # nothing but its images can be checked
        sums = _check_shards(ShardJob(storage.url, manifest, frozenset(), True), workers, progress, findings)
    else:
        sums = _verify(storage, manifest, deep, workers, progress, findings)
    if manifest is not None:
        views = Findings(MAX_LISTED)
        with _reading(VIEWS, views):
            check_views(storage, manifest, views)
        with _reading(COLUMNS, views):
            check_columns(storage, manifest, views)
        findings.extend(views, _AFTER_SHARDS)
    if replicas and manifest is not None:
        different = Findings(MAX_LISTED)
        copies = check_replicas(storage, progress.step, different)
        findings.extend(different, _AFTER_SHARDS)
    return Report(
        url=storage.url,
        deep=deep or is_other,
        is_adopted=is_other,
        copies=copies,
        findings=tuple(findings.listed),
        counts=dict(sorted(findings.counts.items())),
        shards=sum(split.shards for split in sums.values()),
        samples=sum(split.samples for split in sums.values()),
        num_bytes=sum(split.num_bytes for split in sums.values()),
        elapsed_s=time.monotonic() - started_s,
    )


@dataclass(frozen=True, slots=True)
class ShardJob:
    """Everything that a worker needs in addition to a shard's position among all shards of all splits."""

    url: str
    manifest: Manifest
    indexed: frozenset[str]
    """Splits whose index is the file that the manifest lists, with a row group for each shard."""
    deep: bool

    def locate(self, index: int) -> tuple[SplitManifest, int]:
        """Return the split of a shard, and its position there."""
        number = index
        for split in self.manifest.splits:
            if number < len(split.shards):
                return split, number
            number -= len(split.shards)
        raise errors.UsageError(f"shard {index} past the end")


def check_shard(job: ShardJob, index: int) -> ShardResult:
    """Check one shard; its faults are in the result, whatever its bytes are."""
    split, number = job.locate(index)
    result = ShardResult(index)
    where = split.shards[number]["file"]
    with _reading(where, result.findings):
        storage = open_storage(job.url)
        if is_adopted(job.manifest):
            _check_adopted(storage, job.manifest, split, number, result)
            return result
        rows = read_rows(storage, split, number, result.findings) if split.name in job.indexed else None
        check: ShardCheck = load(recipe_of(built_as(job.manifest)).shard_check)
        check(CheckedShard(storage, job.manifest, split, number, rows, job.deep), result)
    return result


def check_views(storage: Storage, manifest: Manifest, findings: Findings) -> None:
    """Read every row of the views of this revision; views of other revisions are refused when they are opened."""
    for name in view_names(storage):
        where = f"{VIEWS}/{name}"
        try:
            found = find_view(storage, name)
            if found is None or (found[0].plan_hash, found[0].revision) != (manifest.plan_hash, manifest.revision):
                continue
            for kept in read_view(storage, manifest, name).splits.values():
                for shard in range(len(kept.stored)):
                    kept.numbers(shard)
        except errors.StorageError as error:
            findings.add("unread", where, str(error))
        except (errors.DataprepError, FileNotFoundError) as error:
            findings.add("view", where, str(error))


def check_columns(storage: Storage, manifest: Manifest, findings: Findings) -> None:
    """Read every value of every column; shards that a column lacks are refused when they are needed."""
    for name in column_names(storage):
        try:
            for fault in column_faults(storage, manifest, name):
                findings.add("column", f"{COLUMNS}/{name}", fault)
        except errors.StorageError as error:
            findings.add("unread", f"{COLUMNS}/{name}", str(error))
        except errors.DataprepError as error:
            findings.add("column", f"{COLUMNS}/{name}", str(error))


def check_replicas(storage: Storage, step: Callable[[str], None], findings: Findings) -> int:
    """Compare the other copies in `replicas.json` with this dataset, and return their number."""
    try:
        copies = [each.url for each in read_replicas(storage) if each.url != storage.url and is_bucket(each.url)]
        phases = dataset_phases(storage, shape_faults) if copies else ()
        wanted = [info for phase in phases for info in phase if info.name not in CARDS]  # which users may edit
    except errors.DataprepError as error:
        findings.add("unread", REPLICAS, str(error))
        return 0
    for url in copies:
        step(f"comparing {url}")
        try:
            _check_copy(storage, wanted, open_storage(url), findings)
        except errors.DataprepError as error:
            findings.add("unread", url, str(error))
    return len(copies)


def consistency_faults(manifest: Manifest) -> Iterator[str]:
    """Yield contradictions inside a manifest, and with what builds write. Expects no faults of shape or layout."""
    names = [split.name for split in manifest.splits]
    if manifest.order_version != ORDER_VERSION:
        yield f"order_version {manifest.order_version}, this dataprep reads {ORDER_VERSION}; update dataprep"
    recipe = recipe_of(built_as(manifest))
    shuffled = recipe.is_shuffled(manifest)
    if manifest.revision < 1 or manifest.shuffled != shuffled:
        yield f"revision {manifest.revision}, shuffled {manifest.shuffled}; expected 1 or more, {str(shuffled).lower()}"
    if len(set(manifest.classes)) != len(manifest.classes):
        yield "a class occurs twice"
    elif list(manifest.classes) != sorted(manifest.classes) and built_as(manifest) != CONVERTED.name:
        yield "classes are not sorted"  # a conversion keeps their order
    sources = sorted({source["split"] for source in manifest.sources})
    if sources != sorted(set(names)):
        yield f"sources are those of {', '.join(sources) or 'nothing'}, the splits {', '.join(names)}"
    yield from _option_faults(manifest, names)
    yield from recipe.option_faults(manifest)
    for split in manifest.splits:
        for fault in _split_faults(manifest, split):
            yield f"split {split.name}: {fault}"


def published_faults(manifest: Manifest, dataset: Dataset, classes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield differences from the published facts, each with its split or `classes`; a partial dataset may differ."""
    if manifest.partial or not dataset.is_published:
        return
    if manifest.classes != classes:
        other = sorted(set(manifest.classes) ^ set(classes))[:3]
        yield "classes", f"{len(manifest.classes):,} classes, published are {len(classes):,}; not in both: {other}"
    for split in manifest.splits:
        yield from (
            (split.name, fault) for fault in _published_counts(manifest, split, dataset.split_facts(split.name))
        )


@dataclass(slots=True)
class _SplitSum:
    """Sums over the results of a split's shards."""

    shards: int = 0
    samples: int = 0
    num_bytes: int = 0
    labels: NDArray[np.int64] | None = None
    statuses: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    parts: list[ShardResult] = field(default_factory=list)

    def add(self, result: ShardResult) -> None:
        """Add the result of one shard."""
        self.shards += 1
        self.samples += result.samples
        self.num_bytes += result.num_bytes
        if len(result.labels):
            self.labels = result.labels if self.labels is None else self.labels + result.labels
        for counts, more in ((self.statuses, result.statuses), (self.reasons, result.reasons)):
            counts.update(more)  # `update` also subtracts: the earlier statuses of rows that were tried again
        self.parts.append(replace(result, findings=Findings(), labels=NO_COUNTS, statuses=Counter(), reasons=Counter()))

    def keys(self) -> NDArray[np.uint64]:
        """Return the sorted hashes of all keys in lower case."""
        return np.sort(np.concatenate([no_hashes(), *(part.keys for part in self.parts)]))

    def files(self) -> FolderFiles:
        """Return the files of an image folder."""
        hashes = np.concatenate([no_hashes(), *(part.files for part in self.parts)])
        sizes = np.concatenate([NO_COUNTS, *(part.sizes for part in self.parts)])
        order = np.argsort(hashes)
        folders = frozenset().union(*(part.folders for part in self.parts))
        return FolderFiles(hashes[order], sizes[order], folders)


def _manifest(storage: Storage, findings: Findings) -> Manifest | None:
    """Return the manifest; None, with findings, if the verification cannot continue."""
    try:
        manifest = read_manifest(storage)
    except errors.FormatError as error:
        findings.add("manifest", MANIFEST, str(error))
        return None
    if manifest is None:
        raise no_dataset(storage)
    if is_adopted(manifest):
        check_named(storage, manifest)
        return manifest
    for find in (shape_faults, layout_faults):
        for fault in find(manifest):
            findings.add("manifest", MANIFEST, fault)
        if findings.counts:
            return None
    return manifest


def _verify(
    storage: Storage, manifest: Manifest, deep: bool, workers: int, progress: Progress, findings: Findings
) -> dict[str, _SplitSum]:
    dataset = dataset_of(manifest)
    progress.step("reading index and metadata")
    before = Findings(MAX_LISTED)
    with _reading(MANIFEST, before):
        _check_manifest(storage, manifest, dataset, before)
    indexed = set()
    for split in manifest.splits:
        with _reading(split.index["file"], before):
            if check_index(storage, split, before, annotated=bool(manifest.features)):
                indexed.add(split.name)
    with _reading(storage.url, before):
        check_changes(storage, manifest, before)
        check_metadata(storage, manifest, before)
        check_annotations(storage, manifest, frozenset(indexed), before)
    findings.extend(before, _BEFORE_SHARDS)
    job = ShardJob(storage.url, manifest, frozenset(indexed), deep)
    sums = _check_shards(job, workers, progress, findings)
    progress.step("comparing keys, classes and files")
    after = Findings(MAX_LISTED)
    for split in manifest.splits:
        _check_split(storage, split, sums[split.name], split.name in indexed, after)
    _check_listing(job, storage, dataset, sums, after)
    for split_name, fault in numbering_faults(manifest):
        after.add("labels", split_name, fault)
    with _reading(storage.url, after):
        _check_cards(storage, manifest, after)
    findings.extend(after, _AFTER_SHARDS)
    return sums


def _check_cards(storage: Storage, manifest: Manifest, findings: Findings) -> None:
    """Compare existing cards with the manifest; a difference is a warning, not a fault."""
    for name, due in cards_of(manifest).items():
        found = read_card(storage, name)
        if found not in (None, due):
            what = (
                "it was edited, or belongs to another revision or version; "
                "`dataprep card` with `overwrite` writes it again"
            )
            findings.add("card", name, what)


def _check_manifest(storage: Storage, manifest: Manifest, dataset: Dataset, findings: Findings) -> None:
    if manifest.schema_version in VERSIONS and storage.read(MANIFEST) != manifest_bytes(manifest):
        findings.add("manifest", MANIFEST, "its bytes are not what a build writes for this content; was it edited?")
    for fault in consistency_faults(manifest):
        findings.add("manifest", MANIFEST, fault)
    for what, fault in published_faults(manifest, dataset, dataset.classes(storage, allow_partial=False)):
        findings.add("published", what, fault)


def _check_shards(job: ShardJob, workers: int, progress: Progress, findings: Findings) -> dict[str, _SplitSum]:
    shards = [(split.name, shard) for split in job.manifest.splits for shard in split.shards]
    sums = {split.name: _SplitSum() for split in job.manifest.splits}
    progress.started(sum(shard["samples"] for _, shard in shards))
    task = partial(check_shard, job)
    everything = range(len(shards))
    unseen = set(everything)
    try:
        for result in _results(task, everything, workers, progress):
            split, shard = shards[result.index]
            findings.extend(result.findings, result.index)
            sums[split].add(result)
            unseen.discard(result.index)
            progress.shard_done(shard["samples"], result.num_bytes)
    except errors.BuildError as error:  # the check of a shard killed its process repeatedly
        for index in sorted(unseen):
            findings.add("unread", shards[index][1]["file"], f"its check did not end: {error}", position=index)
    return sums


def _results(
    task: Callable[[int], ShardResult], indexes: range, workers: int, progress: Progress
) -> Iterator[ShardResult]:
    if not workers:
        yield from map(task, indexes)
        return
    with Pool(
        min(workers, max(1, len(indexes))), progress.warn, preload=_WORKER_MODULES, stall_s=progress.stall_s
    ) as pool:
        yield from pool.run(task, indexes)


def _check_split(storage: Storage, split: SplitManifest, found: _SplitSum, indexed: bool, findings: Findings) -> None:
    """Check a split after all of its shards were read: keys, class counts, statuses and events."""
    keys = found.keys()
    complete = len(keys) == split.samples
    with _reading(split.index["file"], findings):
        _check_duplicates(storage, split, repeated(keys), indexed, findings)
    expected = np.asarray(split.class_counts, np.int64)
    if complete and found.labels is not None and len(found.labels) == len(expected):
        for label in np.flatnonzero(found.labels != expected):
            got = f"{found.labels[label]:,} samples of label {label}, the manifest has {expected[label]:,}"
            findings.add("count", split.name, got)
    if found.shards == len(split.shards):
        for name, counts, due in (
            ("statuses", found.statuses, split.statuses),
            ("reasons", found.reasons, split.reasons),
        ):
            odd = sorted(key for key in counts.keys() | due.keys() if counts[key] != due.get(key, 0))
            for key in odd:
                got = f"{counts[key]:,} rows in the parquet files, the manifest has {due.get(key, 0):,}"
                findings.add("count", split.name, f"{name}: {key[:80]!r}: {got}")
    with _reading(split.events["file"], findings):
        check_events(storage, split, keys if complete else None, findings)


def _check_duplicates(
    storage: Storage, split: SplitManifest, hashes: NDArray[np.uint64], indexed: bool, findings: Findings
) -> None:
    """Add a finding for each repeated key, with its name if the index can be read."""
    unnamed = {int(value) for value in hashes}
    if unnamed and indexed:
        for batch in open_index(storage, split).batches(["key"]):
            for key in batch.column("key").to_pylist():
                if (value := name_hash(key.lower())) in unnamed:
                    unnamed.discard(value)
                    text = f"{named(key)}: more than one sample has this key, ignoring case"
                    findings.add("duplicate", split.name, text)
    for _ in unnamed:
        findings.add("duplicate", split.name, "a key that the index does not have occurs twice")


def _check_listing(
    job: ShardJob, storage: Storage, dataset: Dataset, sums: dict[str, _SplitSum], findings: Findings
) -> None:
    manifest = job.manifest
    files = {}
    if FORMATS[manifest.format].one_file_per_image:
        shards = {split.name: len(split.shards) for split in manifest.splits}
        files = {name: found.files() for name, found in sums.items() if found.shards == shards[name]}
    with _reading(storage.url, findings):
        check_listing(storage, manifest, dataset, {n: f for n, f in files.items() if n in job.indexed}, findings)


@contextmanager
def _reading(where: str, findings: Findings) -> Iterator[None]:
    """Turn a reading error into a finding: `format`, `missing`, or `unread`, which leaves the verdict open."""
    try:
        yield
    except (errors.StorageError, errors.UsageError) as error:  # UsageError: a link that leads out of the dataset
        findings.add("unread", where, str(error))
    except errors.FormatError as error:
        findings.add("format", where, str(error))
    except FileNotFoundError:
        findings.add("missing", where, "it was removed during the check; another process is changing the dataset")


def _check_adopted(
    storage: Storage, manifest: Manifest, split: SplitManifest, number: int, result: ShardResult
) -> None:
    """Decode every image of a shard of adopted data, which has no digest, and compare the checksums of the index."""
    data, where = open_named_data(storage, manifest), split.index["file"]
    result.findings = Findings(MAX_LISTED)  # a folder of images is one shard
    try:
        table = open_index(storage, split, compare=True).read_group(number)
    except (errors.FormatError, FileNotFoundError) as error:
        result.findings.add("format", where, str(error))
        return
    names = [name for name in _Adopted._fields if name in table.column_names]
    rows = [_Adopted(**row) for row in table.select(names).to_pylist()]
    shard_file = split.shards[number]["file"]
    with ThreadPoolExecutor(_READS_IN_FLIGHT if not data.is_local else 1, thread_name_prefix="dataprep-read") as pool:
        for first in range(0, len(rows), _READS_IN_FLIGHT):  # at most this many images are in memory
            some = rows[first : first + _READS_IN_FLIGHT]
            for row, image in zip(some, pool.map(partial(_read, data, shard_file), some), strict=True):
                place = row.file or f"{shard_file} ({named(row.key)})"
                for kind, fault in (image,) if isinstance(image, tuple) else _image_faults(image, row):
                    result.findings.add(kind, place, fault)
                result.samples += 1
                result.num_bytes += row.image_bytes


class _Adopted(NamedTuple):
    """One row of the index of adopted data; the fields are its columns."""

    key: str
    image_offset: int
    image_bytes: int
    image_crc32c: int | None = None
    file: str | None = None
    """File of the image; None if it is in its shard's file."""


def _read(data: Storage, shard_file: str, row: _Adopted) -> bytes | tuple[str, str]:
    """Return the bytes of an image, or kind and text of the finding about its file."""
    file = row.file or shard_file
    if row.image_bytes > MAX_IMAGE_BYTES:
        return "index", f"{row.image_bytes:,} bytes, expected at most {MAX_IMAGE_BYTES:,}"
    try:
        info = data.stat(file)
        if info is not None and row.file and info.num_bytes != row.image_bytes:
            return "size", f"{info.num_bytes:,} bytes, the index has {row.image_bytes:,}"
        return data.read_range(file, row.image_offset, row.image_bytes)
    except FileNotFoundError:
        return "missing", "no such file"
    except (errors.FormatError, errors.StorageError, errors.UsageError) as error:
        return "unread", str(error)


def _image_faults(image: bytes, row: _Adopted) -> Iterator[tuple[str, str]]:
    due = row.image_crc32c
    if due is not None and crc32c_of(image) != due:
        yield "digest", f"crc32c {crc32c_hex(crc32c_of(image))}, the index has {crc32c_hex(due)}"
    checked = check_image("", image, _REPAIRABLE)
    if isinstance(checked, Event):
        yield "image", f"{checked.reason}: {checked.detail}"


def _check_copy(storage: Storage, wanted: list[ObjectInfo], copy: Storage, findings: Findings) -> None:
    existing = {info.name: info for info in copy.list()}
    for info in wanted:
        found, where = existing.get(info.name), copy.url_of(info.name)
        if found is None:
            findings.add("missing", where, f"no such object, expected one of {info.num_bytes:,} bytes")
        elif found.num_bytes != info.num_bytes:
            findings.add("size", where, f"{found.num_bytes:,} bytes, {storage.url} has {info.num_bytes:,}")
        elif stored_crc32c(copy, found) != (crc32c := stored_crc32c(storage, info)):
            findings.add("digest", where, f"crc32c {crc32c_hex(found.crc32c)}, {storage.url} has {crc32c_hex(crc32c)}")


def _option_faults(manifest: Manifest, split_names: list[str]) -> Iterator[str]:
    pairs = {
        "dataset": (manifest.options.get("dataset"), built_as(manifest)),
        "format": (manifest.options.get("format"), manifest.format),
        "splits": (manifest.options.get("splits"), split_names),
    }
    for name, (option, fact) in pairs.items():
        if option != fact:
            yield f"options.{name} is {quoted(option)}, elsewhere it says {quoted(fact)}"


def _split_faults(manifest: Manifest, split: SplitManifest) -> Iterator[str]:
    samples, num_bytes = (sum(int(shard[field]) for shard in split.shards) for field in ("samples", "bytes"))
    sums = {
        "samples": (split.samples, samples),
        "num_bytes": (split.num_bytes, num_bytes),
        "classes counted": (len(split.class_counts), len(manifest.classes)),
    }
    if manifest.classes:
        sums["samples of all classes"] = (sum(split.class_counts), samples)
    for name, (got, expected) in sums.items():
        if got != expected:
            yield f"{name} {got:,}, expected {expected:,}"
    if not split.shards:
        yield "no shards, expected at least one"
    if split.statuses or split.reasons:
        rows = sum(source.get("rows", 0) for source in manifest.sources)
        counted = {"statuses": sum(split.statuses.values()), "reasons": sum(split.reasons.values())}
        for name, count in counted.items():
            if count != rows:
                yield f"{name} of {count:,} rows, the sources have {rows:,}"
        if split.statuses.get("success") != samples:
            yield f"success {split.statuses.get('success')}, the shards have {samples:,} samples"


def _published_counts(manifest: Manifest, split: SplitManifest, facts: SplitFacts) -> Iterator[str]:
    passes = FORMATS[manifest.format].passes_written(split.repeats["stored"])
    rejected = sum(split.rejected.values())
    before = {
        change.split: change for change in reversed(manifest.changes)
    }  # only samples that were removed are absent
    samples = before[split.name].samples if split.name in before else split.samples
    if facts.samples is not None and samples + rejected != facts.samples * passes:
        yield (
            f"{samples:,} samples and {rejected:,} rejected; published are {facts.samples:,}"
            + (f", stored {passes} times" if passes > 1 else "")
        )
    if facts.class_samples is None:
        return
    fewest, most = (bound * passes for bound in facts.class_samples)
    fewest -= samples - split.samples
    for name, count in zip(manifest.classes, split.class_counts, strict=False):
        if not fewest - rejected <= count <= most:
            yield f"class {quoted(name)} has {count:,} samples; published are {fewest:,} to {most:,}"
