"""Turns receipts into a manifest, in bounded memory: compares the files in place, merges, and collects notes.

`Published` compares the files in place with the receipts, before and after; `merge_split` writes a split's index and
events; `BuildNotes` collects notes about rejected and shared images; `build_manifest` makes the manifest.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path

from dataprep.arrays import np, pa
from dataprep.builder.output import OpenBuild, planned_index, removed_names
from dataprep.builder.plan import Plan, PlannedSplit
from dataprep.builder.receipts import listed_receipts, read_receipts, receipt_file
from dataprep.builder.references import original_names
from dataprep.dataset import index as indexing
from dataprep.dataset.columns import to_numpy
from dataprep.dataset.manifest import schema_version, shard_entry
from dataprep.dataset.paths import BUILD, CHANGE, readable
from dataprep.dataset.randomness import ORDER_VERSION
from dataprep.dataset.records import Event, FileEntry, IndexEntry, Manifest, ShardEntry, ShardReceipt, SplitManifest
from dataprep.errors import BuildError, FormatError
from dataprep.formats import FORMATS
from dataprep.formats.imagefolder import REPEATED
from dataprep.messages import counted, printable, shell_words, sufficient_ratio
from dataprep.sources import recorded_class
from dataprep.sources.base import Dataset
from dataprep.storage import ObjectInfo
from dataprep.storage.checksums import crc32c_of_file, crc32c_text

SHOWN_FAULTS = 5
"""Maximum number of foreign files in a message."""
READ_IN_ROOT = ("*.tfrecord*", "*.tar", "dataset_info.json", "features.json", "*.labels.txt")
"""Names in the root that readers treat as part of the dataset; other files there, such as a README, do no harm."""


class LostError(BuildError):
    """Files of finished shards are gone or changed; the shards' receipts are removed, so that they are built again."""

    def __init__(self, url: str, files: int, shards: int) -> None:
        self.what = (
            f"{url}: files of finished shards are gone or were changed by others: {counted(files, 'file')} of "
            f"{counted(shards, 'shard')}"
        )
        super().__init__(f"{self.what}; run the same command again, which builds these shards again")


class Published:
    """Files that should be in place according to a build's receipts.

    Args:
        others: Files of the dataset that are not in a receipt, except index and events.
        placed_late: Whether files are put in place after the receipt, which changes their status but not their bytes.
    """

    def __init__(self, build: OpenBuild, others: Iterable[str], *, placed_late: bool = False) -> None:
        self._build, self._placed_late = build, placed_late
        self._read: dict[str, int] = {}
        """Time of the last change of each file that was read and has the bytes of its receipt."""
        self._others = {*others, *(name for split in build.plan.splits for name in planned_index(split))}
        self._folders, self._linked = _folders(build.plan)
        # 24 bytes a file: an image folder has more than a million.
        self._hashes, self._sizes, self._crc32cs, self._shards = array("Q"), array("q"), array("I"), array("q")

    def expect(self, index: int, files: Iterable[tuple[str, int, int]]) -> None:
        """Remember the files of one shard: name, size, and CRC32C of each."""
        from dataprep.dataset.hashes import name_hash

        for name, num_bytes, crc32c in files:
            self._hashes.append(name_hash(name))
            self._sizes.append(num_bytes)
            self._crc32cs.append(crc32c)
            self._shards.append(index)

    def check(self) -> None:
        """Compare the files in place.

        Raises:
            LostError: Some are missing or differ. The receipts of their shards were removed, so that the same build
                makes them again.
            BuildError: Foreign files are where readers look; the error names them.
        """

        from dataprep.dataset.hashes import position_of

        build, storage = self._build, self._build.storage
        order = np.argsort(np.array(self._hashes, np.uint64), kind="stable")
        hashes = np.array(self._hashes, np.uint64)[order]
        # The time when the bytes of each receipt were written; the shard's files were read after that time.
        listed = listed_receipts(storage, build.root) if storage.is_local else {}
        done_ns = {index: info.written_ns or 0 for index, info in listed.items()}
        found, wrong, foreign = np.zeros(len(order), bool), [], []
        for info in storage.list():
            at = position_of(hashes, info.name)
            if at is None:
                if self._is_foreign(info.name):
                    foreign.append(info)
                continue
            position = int(order[at])
            if self._is_same(info, position, done_ns):
                found[position] = True
            else:
                wrong.append(info)
        lost = np.flatnonzero(~found)
        if len(lost):
            build.check()
            shards = sorted({self._shards[position] for position in lost})
            for index in shards:
                storage.delete(receipt_file(index, build.root))
            for info in wrong:
                storage.delete_exactly(info)
            raise LostError(storage.url, len(lost), len(shards))
        self._refuse_foreign(foreign)

    def _is_same(self, info: ObjectInfo, position: int, done_ns: dict[int, int]) -> bool:
        crc32c = crc32c_text(self._crc32cs[position])
        if info.num_bytes != self._sizes[position]:
            return False
        if info.crc32c is not None:
            return info.crc32c == crc32c
        changed_ns = info.changed_ns or 0
        newest_ns = info.written_ns or 0 if self._placed_late else changed_ns
        if newest_ns <= done_ns.get(self._shards[position], 0) or self._read.get(info.name) == changed_ns:
            return True
        is_same = crc32c_of_file(Path(self._build.storage.url_of(info.name))) == crc32c
        if is_same:
            self._read[info.name] = changed_ns
        return is_same

    def _is_foreign(self, name: str) -> bool:
        """Return whether readers would treat a file as part of the dataset."""
        top, slash, _ = name.partition("/")
        if top in (BUILD, CHANGE) or top in self._linked or name in self._others:
            return False
        if slash:
            return top in self._folders
        return any(fnmatch(top, pattern) for pattern in READ_IN_ROOT)

    def _refuse_foreign(self, foreign: list[ObjectInfo]) -> None:
        """Remove late objects of an overwritten build, and refuse other foreign files."""
        if not foreign:
            return
        storage = self._build.storage
        removed = removed_names(storage)
        self._build.check()
        for info in foreign:
            if info.name in removed:
                storage.delete_exactly(info)
        odd = [info.name for info in foreign if info.name not in removed]
        if odd:
            more = f" and {len(odd) - SHOWN_FAULTS:,} more" if len(odd) > SHOWN_FAULTS else ""
            raise BuildError(
                f"{storage.url}: {counted(len(odd), 'file')} there that readers would treat as part of the dataset, "
                f"but that this build has not written: {', '.join(map(printable, odd[:SHOWN_FAULTS]))}{more}; "
                "move them away and run the same command again: the shards are done"
            )


def _folders(plan: Plan) -> tuple[set[str], set[str]]:
    """Return the folders in the root where readers look for a dataset's files, and the folders that have only links."""
    shard_format, dataset = FORMATS[plan.options.format], recorded_class(plan.options.dataset)
    linked = {
        split.name for split in plan.splits if shard_format.passes_written(split.repeat_stored) < split.repeat_stored
    }
    splits = [*(dataset.splits if dataset else ()), *(split.name for split in plan.splits)]
    return {*splits, "index", REPEATED}, linked


Check = Callable[[int, ShardReceipt, "pa.Table"], tuple[int, bool]]
"""Function that compares a receipt with the plan; takes a shard's index, receipt and index rows.

Returns the number of the plan's samples or rows that the receipt covers, and whether they are the planned ones.
"""
Seen = Callable[[ShardReceipt, "pa.Table"], None]
SHOWN = 10
"""Maximum number of rejected images of a split in a message."""


def merge_split(
    build: OpenBuild, split: PlannedSplit, publishing: indexing.PublishingRows, *, check: Check, seen: Seen
) -> SplitManifest:
    """Merge the receipts of one split, shard after shard, and write its index and its events. Raises BuildError if a
    receipt is missing, and FormatError if a receipt does not match the plan of its shard.

    Every receipt and its index rows are `seen` in the order of the shards; the publishing may continue after this call.
    """
    merged = Merged(build, split, check=check, seen=seen)
    schema = indexing.index_schema(with_annotations=bool(build.plan.features))
    rows = merged.rows()

    def put(name: str, part: range) -> FileEntry:
        return publishing.put(name, islice(rows, len(part)), schema)

    index = indexing.publish_index(split.name, split.shard_samples, put)
    events_entry = publishing.put(
        indexing.events_file(split.name), iter([indexing.events_table(merged.events)]), indexing.events_schema()
    )
    return merged.split(index, events_entry)


class Merged:
    """Totals over the receipts of a split's planned shards, complete once `rows` has ended; see `merge_split`."""

    def __init__(self, build: OpenBuild, split: PlannedSplit, *, check: Check, seen: Seen) -> None:
        self._build, self._split, self._check, self._seen = build, split, check, seen
        self._shards: list[ShardEntry] = []
        self.events: list[Event] = []
        self._class_counts = np.zeros(len(build.plan.classes), np.int64)

    def rows(self) -> Iterator[pa.Table]:
        """Yield the index rows of each shard."""
        storage, indexes = self._build.storage, self._build.plan.shards_of(self._split.name)
        for index, found in zip(indexes, read_receipts(storage, indexes, self._build.root), strict=True):
            if found is None:
                raise BuildError(f"{storage.url}: shard {index} has no receipt; run the same command again")
            receipt, rows = found
            _refuse_unplanned(self._build, index, receipt, rows, self._check)
            self._seen(receipt, rows)
            self._shards.append(shard_entry(receipt))
            self.events.extend(receipt.events)
            if counts := len(self._class_counts):
                self._class_counts += np.bincount(to_numpy(rows.column("label")), minlength=counts)
            yield rows

    def split(self, index: IndexEntry, events: FileEntry) -> SplitManifest:
        """Return the split of these shards alone."""
        return SplitManifest(
            name=self._split.name,
            samples=sum(shard["samples"] for shard in self._shards),
            num_bytes=sum(shard["bytes"] for shard in self._shards),
            shards=tuple(self._shards),
            class_counts=tuple(int(count) for count in self._class_counts),
            repeats={"count": self._split.repeat_count, "stored": self._split.repeat_stored},
            repaired=_count(self.events, "repaired"),
            rejected=_count(self.events, "rejected"),
            index=index,
            events=events,
        )


def grown_split(before: SplitManifest, added: SplitManifest) -> SplitManifest:
    """Return a split with the shards of another appended, and with the index and events of the latter."""
    counts = zip(before.class_counts, added.class_counts, strict=True)
    return replace(
        added,
        samples=before.samples + added.samples,
        num_bytes=before.num_bytes + added.num_bytes,
        shards=(*before.shards, *added.shards),
        class_counts=tuple(had + more for had, more in counts),
        repaired=dict(sorted((Counter(before.repaired) + Counter(added.repaired)).items())),
        rejected=dict(sorted((Counter(before.rejected) + Counter(added.rejected)).items())),
    )


def _refuse_unplanned(build: OpenBuild, index: int, receipt: ShardReceipt, rows: pa.Table, check: Check) -> None:
    """Raise FormatError unless a shard holds exactly its planned samples, except for rejected ones."""
    split, split_index = build.plan.locate(index)
    planned = split.shard_samples[split_index]
    found, right = check(index, receipt, rows)
    same_shard = (receipt.index, receipt.split, receipt.samples) == (index, split.name, rows.num_rows)
    if not right or found != planned or not same_shard:
        raise FormatError(
            f"{build.storage.url_of(receipt_file(index, build.root))}: the receipt has {found:,} samples, expected "
            f"the plan's {planned:,} for shard {index} of {split.name}, with their keys; start over with `overwrite`"
        )


def build_manifest(plan: Plan, dataset: Dataset, splits: Sequence[SplitManifest]) -> Manifest:
    """Return the manifest of a new dataset, without entries of its metadata files."""
    return Manifest(
        name=plan.options.name,
        schema_version=schema_version(splits),
        revision=1,
        format=plan.options.format,
        plan_hash=plan.plan_hash,
        order_version=ORDER_VERSION,
        options=plan.options.document(),
        sources=tuple(plan.source_entries()),
        codecs=plan.codecs,
        licence=dataset.licence,
        origin=dataset.origin,
        classes=plan.classes,
        shuffled=True,
        checked=plan.options.images.check,
        partial=plan.options.allow_partial,
        splits=tuple(splits),
        files=(),
        features=plan.features,
    )


def refuse_rejections(build: OpenBuild, max_ratio: float, splits: Iterable[SplitManifest]) -> None:
    """Raise BuildError, naming images, if `max_reject_ratio` is exceeded."""
    odd = [split for split in splits if rejects_too_many(split, max_ratio)]
    if not odd:
        return
    clauses: list[str] = []
    for split in odd:
        rejected, total = _rejected_of_total(split)
        option = "" if clauses else f" (`max_reject_ratio` {max_ratio:g})"
        clauses.append(
            f"{split.name}: {rejected:,} of {total:,} images were rejected, allowed are {int(max_ratio * total):,}"
            f"{option}: {_names_of_rejected(build, split.name, rejected)}"
        )
    ratio = max(sufficient_ratio(*_rejected_of_total(split)) for split in odd)
    raise BuildError(
        f"{'; '.join(clauses)}. Correct the originals, then build with `overwrite`, or run the same command with "
        f"`max_reject_ratio` {ratio:g}: the shards are done"
    )


def _names_of_rejected(build: OpenBuild, split: str, rejected: int) -> str:
    """Return the names of a split's first rejected images, each with its reason."""
    events = [
        event for event in indexing.read_events(build.storage, indexing.events_file(split)) if event.kind == "rejected"
    ][:SHOWN]
    names = ", ".join(_originals(build, build.plan.shards_of(split), events))
    return names + (f" and {rejected - SHOWN:,} more" if rejected > SHOWN else "")


def _originals(build: OpenBuild, indexes: Iterable[int], events: Sequence[Event]) -> list[str]:
    """Return the names of rejected originals of some shards, each with its reason."""
    names = original_names(build, indexes, (event.key for event in events))
    return [f"{printable(names.get(event.key, readable(event.key)))} ({event.reason})" for event in events]


def rejects_too_many(split: SplitManifest, max_ratio: float) -> bool:
    rejected, total = _rejected_of_total(split)
    return rejected > max_ratio * total


def _rejected_of_total(split: SplitManifest) -> tuple[int, int]:
    rejected = sum(split.rejected.values())
    return rejected, split.samples + rejected


def _count(events: Iterable[Event], kind: str) -> dict[str, int]:
    return dict(sorted(Counter(event.reason for event in events if event.kind == kind).items()))


class BuildNotes:
    """Collects notes about a build's images: rejected ones, by file name, and images shared by two splits.

    A finished dataset has only keys, which lack the files' suffixes.
    """

    def __init__(self, build: OpenBuild) -> None:
        self._build = build
        from dataprep.dataset.hashes import Prints  # imports NumPy, which a command needs only after its workers start

        self._prints = {split.name: Prints() for split in build.plan.splits}
        self._rejected: Counter[str] = Counter()
        self._names: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, receipt: ShardReceipt, rows: pa.Table) -> None:
        if len(self._prints) > 1:
            self._prints[receipt.split].add(to_numpy(rows.column("image_bytes")), rows.column("image_crc32c"))
        events = [event for event in receipt.events if event.kind == "rejected"]
        self._rejected[receipt.split] += len(events)
        if shown := events[: SHOWN - len(self._names[receipt.split])]:
            self._names[receipt.split] += _originals(self._build, [receipt.index], shown)

    def lines(self) -> Iterator[str]:
        """Yield a line for each split with rejected images, and one line for all images shared by two splits."""
        for split, names in self._names.items():
            if count := self._rejected[split]:
                more = f" and {count - len(names):,} more" if count > len(names) else ""
                verb = "was" if count == 1 else "were"
                yield f"{split}: {counted(count, 'image')} {verb} rejected: {', '.join(names)}{more}"
        from dataprep.dataset.hashes import also_in, shared_images

        shared = ", ".join(also_in(*each[:2], len(each.positions)) for each in shared_images(self._prints))
        if shared:
            inspect = shell_words("dataprep", "inspect", self._build.storage.url)
            yield f"warning: {shared} (the same bytes); {inspect} names the first ones"
