"""Merges the receipts of a build into index, events and manifest, in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from dataprep.builder.open_build import OpenBuild
from dataprep.builder.plan import Plan, PlannedSplit
from dataprep.builder.receipts import read_receipts, receipt_file
from dataprep.builder.references import original_names
from dataprep.dataset.index import (
    PublishingRows,
    events_file,
    events_schema,
    events_table,
    index_schema,
    publish_index,
    read_events,
)
from dataprep.dataset.manifest import schema_version, shard_entry, source_entry
from dataprep.dataset.randomness import ORDER_VERSION
from dataprep.dataset.records import Event, FileEntry, Manifest, ShardEntry, ShardReceipt, SplitManifest
from dataprep.errors import BuildError, FormatError
from dataprep.messages import printable, sufficient_ratio
from dataprep.sources.base import Dataset
from dataprep.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa

Check = Callable[[int, ShardReceipt, "pa.Table"], tuple[int, bool]]
"""Function that compares a receipt with the plan; takes a shard's index, receipt and index rows.

Returns the number of samples or rows of the plan that the receipt accounts for, and whether they are the planned ones.
"""
Seen = Callable[[ShardReceipt, "pa.Table"], None]
SHOWN = 10
"""Maximum number of rejected images of a split in a message."""


def merge_split(
    build: OpenBuild, split: PlannedSplit, first_index: int, publishing: PublishingRows, *, check: Check, seen: Seen
) -> SplitManifest:
    """Merge the receipts of one split, shard after shard, and write its index and its events.

    Args:
        build: The build.
        split: One split of its plan.
        first_index: Index of the split's first shard.
        publishing: Publishes index and events, which may go on after this call.
        check: Compares a receipt with the plan.
        seen: Called with every receipt and its index rows, in the order of the shards.

    Raises:
        BuildError: A receipt is missing.
        FormatError: A receipt does not match the plan of its shard.
    """
    import numpy as np

    storage = build.storage
    shards: list[ShardEntry] = []
    events: list[Event] = []
    class_counts = np.zeros(len(build.plan.classes), np.int64)

    def index_rows() -> Iterator[pa.Table]:
        indexes = range(first_index, first_index + len(split.shard_samples))
        for index, found in zip(indexes, read_receipts(storage, indexes, build.root), strict=True):
            if found is None:
                raise BuildError(f"{storage.url}: shard {index} has no receipt; run the same command again")
            receipt, rows = found
            _refuse_unplanned(build, index, receipt, rows, check)
            seen(receipt, rows)
            shards.append(shard_entry(receipt))
            events.extend(receipt.events)
            if len(class_counts):
                class_counts[:] += np.bincount(rows.column("label").to_pylist(), minlength=len(class_counts))
            yield rows

    schema = index_schema(with_annotations=bool(build.plan.features))
    rows = index_rows()

    def put(name: str, part: range) -> FileEntry:
        return publishing.put(name, islice(rows, len(part)), schema)

    index = publish_index(split.name, split.shard_samples, put)
    events_entry = publishing.put(events_file(split.name), iter([events_table(events)]), events_schema())
    return SplitManifest(
        name=split.name,
        samples=sum(shard["samples"] for shard in shards),
        num_bytes=sum(shard["bytes"] for shard in shards),
        shards=tuple(shards),
        class_counts=tuple(int(count) for count in class_counts),
        repeats={"count": split.repeat_count, "stored": split.repeat_stored},
        repaired=_count(events, "repaired"),
        rejected=_count(events, "rejected"),
        index=index,
        events=events_entry,
    )


def _refuse_unplanned(build: OpenBuild, index: int, receipt: ShardReceipt, rows: pa.Table, check: Check) -> None:
    """Raise FormatError unless a shard holds exactly its planned samples, except for rejected ones."""
    split, split_index = build.plan.locate(index)
    planned = split.shard_samples[split_index]
    found, right = check(index, receipt, rows)
    same_shard = (receipt.index, receipt.split, receipt.samples) == (index, split.name, rows.num_rows)
    if not right or found != planned or not same_shard:
        raise FormatError(
            f"{build.storage.url_of(receipt_file(index, build.root))}: a receipt of {found:,} samples, the plan has "
            f"{planned:,} for shard {index} of {split.name}, and each with its key; start over with --overwrite"
        )


def build_manifest(
    plan: Plan, dataset: Dataset, splits: Sequence[SplitManifest], files: Iterable[FileEntry]
) -> Manifest:
    """Return the manifest of a finished build."""
    sources = [
        source_entry(split.name, source, split.enumeration_sha256) for split in plan.splits for source in split.sources
    ]
    return Manifest(
        name=plan.options.name,
        schema_version=schema_version(splits),
        revision=1,
        format=plan.options.format,
        plan_hash=plan.plan_hash,
        order_version=ORDER_VERSION,
        options=plan.options.document(),
        sources=tuple(sources),
        codecs=plan.codecs,
        licence=dataset.licence,
        origin=dataset.origin,
        classes=plan.classes,
        shuffled=True,
        checked=plan.options.images.check,
        partial=plan.options.allow_partial,
        splits=tuple(splits),
        files=tuple(files),
        features=plan.features,
    )


def refuse_rejections(build: OpenBuild, max_ratio: float, splits: Iterable[SplitManifest]) -> None:
    """Raise BuildError, naming images, if more were rejected than `--max-reject-ratio` allows."""
    odd = [split for split in splits if rejects_too_many(split, max_ratio)]
    if not odd:
        return
    clauses: list[str] = []
    for split in odd:
        rejected, total = _rejected_of_total(split)
        option = "" if clauses else f" (--max-reject-ratio {max_ratio:g})"
        clauses.append(
            f"{split.name}: {rejected:,} of {total:,} images were rejected, allowed are {int(max_ratio * total):,}"
            f"{option}: {_names_of_rejected(build, split.name, rejected)}"
        )
    ratio = max(sufficient_ratio(*_rejected_of_total(split)) for split in odd)
    raise BuildError(
        f"{'; '.join(clauses)}. Correct the originals, then build with --overwrite, or run the same command with "
        f"--max-reject-ratio {ratio:g}: the shards are done"
    )


def _names_of_rejected(build: OpenBuild, split: str, rejected: int) -> str:
    """Return the names of a split's first rejected images, each with its reason."""
    events = rejections(build.storage, split, SHOWN)
    originals = original_names(build, build.plan.shards_of(split), (event.key for event in events))
    names = ", ".join(f"{printable(originals.get(event.key, event.key))} ({event.reason})" for event in events)
    return names + (f" and {rejected - SHOWN:,} more" if rejected > SHOWN else "")


def rejects_too_many(split: SplitManifest, max_ratio: float) -> bool:
    """Return whether more images of a split were rejected than a ratio allows."""
    rejected, total = _rejected_of_total(split)
    return rejected > max_ratio * total


def _rejected_of_total(split: SplitManifest) -> tuple[int, int]:
    rejected = sum(split.rejected.values())
    return rejected, split.samples + rejected


def rejections(storage: Storage, split: str, most: int) -> list[Event]:
    """Return the first rejected images of a split."""
    return [event for event in read_events(storage, split) if event.kind == "rejected"][:most]


def _count(events: Iterable[Event], kind: str) -> dict[str, int]:
    return dict(sorted(Counter(event.reason for event in events if event.kind == kind).items()))
