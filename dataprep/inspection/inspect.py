"""Counts the content of a finished dataset, from its manifest and, column by column, its index. No shard is read.

Histograms of sides and sizes are counted in one pass over the index. Rejected images come from the events, even if the
build ended without a dataset.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from dataprep.builder.finished import numbering_faults, readable_manifest
from dataprep.builder.output import Claim, OpenBuild, read_claim
from dataprep.builder.receipts import finished_shards, read_receipts
from dataprep.builder.references import original_names
from dataprep.dataset.adopted import adopted_fields, is_adopted, open_named_data
from dataprep.dataset.column_files import described_columns
from dataprep.dataset.columns import numbers_or_zero
from dataprep.dataset.features import described_with_place
from dataprep.dataset.hashes import Prints, SharedImages, shared_images
from dataprep.dataset.index import open_events, open_index
from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.paths import readable
from dataprep.dataset.records import Event, Manifest, Repeats, SplitManifest, labelled
from dataprep.dataset.views import address, viewed
from dataprep.errors import UsageError
from dataprep.formats.img2dataset import SUCCESS, reason_of, sidecars_of
from dataprep.messages import command_line, human_bytes, printable
from dataprep.sources import DATASETS
from dataprep.sources.base import UNSTATED
from dataprep.storage import Storage, absolute, open_storage
from dataprep.storage.parquet import read_columns

_EXAMPLES = 3
"""Number of events that are shown for each reason."""
_EXTREMES = 3
"""Number of classes that are shown as the smallest, and as the largest."""
MAX_SIDE = 65_535
"""Longest side of a JPEG in pixels: its header has 16 bits for each side."""
_COMMON_ASPECTS = (9 / 16, 2 / 3, 3 / 4, 1, 4 / 3, 3 / 2, 16 / 9)
ASPECT_EDGES = (1 / 2, *(math.sqrt(low * high) for low, high in pairwise(_COMMON_ASPECTS)), 2)
"""Edges of the bins for width / height; each bin contains one common ratio, and the values nearest to it."""
ASPECT_LABELS = (
    "narrower than 1:2", "about 9:16", "about 2:3", "about 3:4", "about square", "about 4:3", "about 3:2",
    "about 16:9", "2:1 and wider",
)  # fmt: skip
BYTE_EDGES = tuple(digit * 10**power for power in range(3, 9) for digit in (1, 2, 5))
_STEPS = (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1_000, 2_000, 2_500, 5_000, 10_000, 20_000)
_BINS = 10
_ROW_COLUMNS = ("key", "status", "error_message", "url")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassSpread:
    """Distribution of the samples over the classes."""

    classes: int
    samples: Spread
    """Number of samples of a class."""
    fewest: tuple[tuple[str, int], ...]
    """Names and counts of the smallest classes."""
    most: tuple[tuple[str, int], ...]
    counts: tuple[int, ...]
    """Number of samples of every class, the largest class first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """Repairs or rejections for one reason, with the first images concerned."""

    kind: str
    """`repaired` or `rejected`."""
    reason: str
    count: int
    examples: tuple[Event, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared:
    """Images of a split with the same size and CRC32C as an image of another split."""

    split: str
    other: str
    count: int
    examples: tuple[tuple[str, str], ...]
    """Keys of the first of these images, each with the key of the same image in the other split."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitSummary:
    """One split in numbers."""

    name: str
    samples: int
    shards: int
    num_bytes: int
    """Size of the shards."""
    image_bytes: int
    """Size of the images in the shards."""
    image_bytes_extremes: tuple[int, int]
    """Sizes of the smallest and of the largest image."""
    repeats: Repeats
    classes: ClassSpread | None
    numbering: str
    """Reason why readers of an image folder give other labels; empty if they do not."""
    width: Spread | None
    height: Spread | None
    """Sides in pixels; None if no image was checked."""
    unknown_sides: int
    """Number of images whose height and width are not recorded."""
    widths: Histogram
    heights: Histogram
    aspects: Histogram
    sizes: Histogram
    """Histogram of the bytes of an image."""
    compared: int
    """Number of images whose size and CRC32C were compared; 0 if the index has no checksums."""
    duplicates: int
    """Number of these images with the same size and CRC32C as an earlier image of the split."""
    troubles: tuple[Trouble, ...]
    statuses: dict[str, int]
    """Number of rows of a table of URLs by status; empty for other datasets."""
    reasons: dict[str, int]
    """Number of rows of a table of URLs by reason, the most frequent first."""

    @property
    def bytes_per_image(self) -> float:
        return self.image_bytes / max(1, self.samples)


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A dataset in numbers."""

    url: str
    name: str
    format: str
    revision: int
    plan_hash: str
    licence: str
    origin: str
    checked: str
    partial: bool
    is_published: bool
    """Whether this dataset has published counts, unlike a user's own data."""
    shuffled: bool
    codecs: dict[str, str]
    features: dict[str, str]
    """Type of each feature in words, by name; empty if the dataset has none."""
    fields: dict[str, int]
    """Number of samples that have each field, such as a caption, in adopted data; empty elsewhere."""
    columns: dict[str, str]
    """Type of each column (docs/columns.md) in words, by name, and whether samples lack a value."""
    samples: int
    """Number of samples of all splits, including splits that are not inspected."""
    labelled: int
    """Number of those samples that have a label."""
    is_adopted: bool
    """Whether another tool wrote the data, so that no image was decoded or copied."""
    splits: tuple[SplitSummary, ...]
    shared: tuple[Shared, ...]
    """Images of each split that are also in another one."""

    def rejected(self) -> Iterator[Rejected]:
        """Yield every row or image of these splits that did not become a sample."""
        for split in self.splits:
            yield from rejected(self.url, split.name)

    def __str__(self) -> str:
        lines = [f"{self.name} ({self.format}) at {self.url}"]
        lines += ["  " + ", ".join(f"{name} {value}" for name, value in row if value) for row in self._rows()]
        return "\n".join(map(printable, lines))

    def _repr_html_(self) -> str:
        rows = self._rows()
        head = "".join(f"<th>{escape(name)}</th>" for name, _ in rows[0]) if rows else ""
        body = "".join(f"<tr>{''.join(f'<td>{escape(value)}</td>' for _, value in row)}</tr>" for row in rows)
        title = f"<b>{escape(self.name)}</b>, {escape(self.format)} at <code>{escape(self.url)}</code>"
        return f"<div>{title}<table><tr>{head}</tr>{body}</table></div>"

    def _rows(self) -> list[list[tuple[str, str]]]:
        return [
            [
                ("split", each.name),
                ("images", f"{each.samples:,}"),
                ("shards", f"{each.shards:,}"),
                ("size", human_bytes(each.num_bytes)),
                ("classes", f"{each.classes.classes:,}" if each.classes else ""),
                ("width", _median(each.width)),
                ("height", _median(each.height)),
                ("duplicates", f"{each.duplicates:,}" if each.compared else ""),
                *((kind, self._events(each, kind)) for kind in ("repaired", "rejected")),
            ]
            for each in self.splits
        ]

    @staticmethod
    def _events(split: SplitSummary, kind: str) -> str:
        count = sum(each.count for each in split.troubles if each.kind == kind)
        return f"{count:,}" if count else ""


def _median(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.smallest:,} to {spread.largest:,}, median {spread.median:,}"


def inspect_dataset(url: str, split: str | None = None) -> Summary:
    """Inspect a dataset, or one of its splits.

    Raises:
        UsageError: There is no dataset, or it has no such split.
        FormatError: The manifest, an index or events cannot be read.
    """
    storage, manifest = open_inspected(url)
    chosen = chosen_splits(manifest, split)
    prints = {found.name: Prints() for found in chosen}
    splits = tuple(_inspect_split(storage, manifest, found, prints[found.name]) for found in chosen)
    return Summary(
        url=absolute(url),
        name=manifest.name,
        format=manifest.format,
        revision=manifest.revision,
        plan_hash=manifest.plan_hash,
        licence=manifest.licence or UNSTATED,
        origin=manifest.origin,
        checked=manifest.checked,
        partial=manifest.partial,
        is_published=_is_published(manifest),
        shuffled=manifest.shuffled,
        codecs=manifest.codecs,
        features={name: described_with_place(feature) for name, feature in sorted(manifest.features.items())},
        fields=adopted_fields(manifest),
        columns=dict(described_columns(storage, manifest)),
        samples=sum(found.samples for found in manifest.splits),
        labelled=labelled(manifest),
        is_adopted=is_adopted(manifest),
        splits=splits,
        shared=_shared(storage, chosen, prints),
    )


def open_inspected(url: str) -> tuple[Storage, Manifest]:
    """Open a dataset or a view.

    Raises:
        UsageError: There is none.
        FormatError: The manifest or the index is damaged.
    """
    url, name = address(url)
    storage = open_storage(url)
    manifest = _finished_manifest(storage)
    return storage, viewed(storage, manifest, name)


def _finished_manifest(storage: Storage) -> Manifest:
    try:
        return readable_manifest(storage)
    except UsageError as error:
        if unfinished_build(storage) is None:
            raise
        inspect = command_line("inspect", storage.url, rejected=True)
        raise UsageError(f"{error}; {inspect} lists the images that it has rejected so far") from error


def unfinished_build(storage: Storage) -> Claim | None:
    """Return the unfinished build of pictures in a place without a manifest; None if it builds a table of URLs."""
    claim = read_claim(storage) if storage.stat(MANIFEST) is None else None
    return None if claim is None or claim.plan.details is not None else claim


def _is_published(manifest: Manifest) -> bool:
    """Return whether a dataset was built from originals whose number of images is published."""
    dataset = DATASETS.get(manifest.name)
    if dataset is None or dataset.generated or is_adopted(manifest) or "own" in manifest.options:
        return False
    counts = (dataset.facts[split.name].samples for split in manifest.splits if split.name in dataset.facts)
    return all(count is not None for count in counts)


def chosen_splits(manifest: Manifest, split: str | None) -> list[SplitManifest]:
    """Return all splits, or only `split`. Raises UsageError if there is no such split."""
    chosen = [found for found in manifest.splits if split in (None, found.name)]
    if not chosen:
        names = ", ".join(found.name for found in manifest.splits)
        raise UsageError(f"`split` {split}: the dataset has {names}")
    return chosen


def _inspect_split(storage: Storage, manifest: Manifest, split: SplitManifest, prints: Prints) -> SplitSummary:
    widths, heights = SideCounts(), SideCounts()
    aspects, sizes = BinCounts(ASPECT_EDGES, ASPECT_LABELS), BinCounts(BYTE_EDGES, byte_labels())
    unknown = samples = total_bytes = largest = 0
    smallest = 1 << 62
    names = ["image_bytes", "height", "width", "image_crc32c"]
    for batch in open_index(storage, split, compare=True).batches(names):
        num_bytes, height, width = (numbers_or_zero(column, np.int64) for column in batch.columns[:3])
        prints.add(num_bytes, batch.column(3))
        if not len(num_bytes):
            continue
        known = (height > 0) & (width > 0)
        samples += len(num_bytes)
        unknown += int(len(known) - known.sum())
        total_bytes += int(num_bytes.sum())
        smallest, largest = min(smallest, int(num_bytes.min())), max(largest, int(num_bytes.max()))
        widths.add(width[known])
        heights.add(height[known])
        aspects.add(width[known] / height[known])
        sizes.add(num_bytes.astype(np.float64))
    compared = prints.numbers()
    return SplitSummary(
        name=split.name,
        samples=samples,
        shards=len(split.shards),
        num_bytes=split.num_bytes,
        image_bytes=total_bytes,
        image_bytes_extremes=(smallest, largest) if samples else (0, 0),
        repeats=split.repeats,
        classes=_class_spread(manifest.classes, split.class_counts),
        numbering=dict(numbering_faults(manifest)).get(split.name, ""),
        width=widths.spread(),
        height=heights.spread(),
        unknown_sides=unknown,
        widths=widths.histogram(),
        heights=heights.histogram(),
        aspects=aspects.histogram(trim=False),
        sizes=sizes.histogram(trim=True),
        compared=len(compared),
        duplicates=len(compared) - len(np.unique(compared)),
        troubles=_troubles(storage, split),
        statuses=split.statuses,
        reasons=dict(Counter(split.reasons).most_common()),
    )


def _shared(storage: Storage, splits: list[SplitManifest], prints: Mapping[str, Prints]) -> tuple[Shared, ...]:
    """Compare all pairs of splits, and name the first images that are in both."""
    by_name = {split.name: split for split in splits}
    return tuple(_named(storage, by_name, found, prints) for found in shared_images(prints))


def _named(
    storage: Storage, splits: Mapping[str, SplitManifest], found: SharedImages, prints: Mapping[str, Prints]
) -> Shared:
    split, other, positions = splits[found.split], splits[found.other], found.positions
    ours, theirs = prints[split.name].numbers(), prints[other.name].numbers()
    first = positions[:_EXAMPLES].tolist()
    there = [int(np.flatnonzero(theirs == ours[position])[0]) for position in first]
    keys, their_keys = _keys_at(storage, split, first), _keys_at(storage, other, there)
    examples = tuple((keys[at], their_keys[at_there]) for at, at_there in zip(first, there, strict=True))
    return Shared(split=split.name, other=other.name, count=len(positions), examples=examples)


def _keys_at(storage: Storage, split: SplitManifest, positions: Iterable[int]) -> dict[int, str]:
    """Return the keys of images by their positions in the order of the shards."""
    wanted, found, start = set(positions), dict[int, str](), 0
    for batch in open_index(storage, split, compare=True).batches(["key"]) if wanted else ():
        here = [position for position in wanted if start <= position < start + len(batch)]
        found |= {position: batch.column(0)[position - start].as_py() for position in here}
        start += len(batch)
        if len(found) == len(wanted):
            break
    return found


def _class_spread(names: tuple[str, ...], counts: tuple[int, ...]) -> ClassSpread | None:
    if not names or len(names) != len(counts):
        return None
    ranked = sorted(zip(names, counts, strict=True), key=lambda pair: pair[1])  # stable: ties keep the order of names
    return ClassSpread(
        classes=len(names),
        samples=Spread(ranked[0][1], median_low(counts), ranked[-1][1]),
        fewest=tuple(ranked[:_EXTREMES]),
        most=tuple(ranked[: -_EXTREMES - 1 : -1]),
        counts=tuple(sorted(counts, reverse=True)),
    )


def _troubles(storage: Storage, split: SplitManifest) -> tuple[Trouble, ...]:
    """Count repairs and rejections by reason, the most frequent first."""
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], list[Event]] = {}
    for batch in open_events(storage, split.events["file"]).batches(list(Event.__dataclass_fields__)):
        for row in batch.to_pylist():
            event = Event(**row)
            group = event.kind, event.reason
            counts[group] += 1
            if len(first := examples.setdefault(group, [])) < _EXAMPLES:
                first.append(event)
    return tuple(
        Trouble(kind=kind, reason=reason, count=count, examples=tuple(examples[kind, reason]))
        for (kind, reason), count in sorted(counts.items(), key=lambda item: (item[0][0], -item[1], item[0][1]))
    )


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by bin, and the labels of the bins."""

    labels: tuple[str, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """Smallest, median and largest value of one measure over many images."""

    smallest: int
    median: int
    largest: int


class SideCounts:
    """Exact counts of one side of the images, in pixels."""

    def __init__(self) -> None:
        self._counts = np.zeros(MAX_SIDE + 1, np.int64)

    def add(self, sides: NDArray[np.int64]) -> None:
        """Count a batch; an impossible side counts as the nearest possible one."""
        self._counts += np.bincount(np.clip(sides, 0, MAX_SIDE), minlength=MAX_SIDE + 1)

    def spread(self) -> Spread | None:
        """Return smallest, median and largest; None if nothing was counted."""
        total = int(self._counts.sum())
        if total == 0:
            return None
        sides = np.flatnonzero(self._counts)
        return Spread(int(sides[0]), self._quantile(total, 0.5), int(sides[-1]))

    def histogram(self) -> Histogram:
        """Return about ten bins of equal, round width for 98 % of the images, and one at each end for the rest."""
        total = int(self._counts.sum())
        if total == 0:
            return Histogram((), ())
        low, high = self._quantile(total, 0.01), self._quantile(total, 0.99)
        step = next((step for step in _STEPS if (high - low) / step <= _BINS), _STEPS[-1])
        edges = range(low // step * step, high + step + 1, step)
        before = np.concatenate([[0], np.cumsum(self._counts)])  # number of images with a smaller side
        before_edge = [int(before[min(edge, MAX_SIDE + 1)]) for edge in edges]
        counts = [before_edge[0], *(high - low for low, high in pairwise(before_edge)), total - before_edge[-1]]
        inner = [f"{low:,} to {high - 1:,}" if step > 1 else f"{low:,}" for low, high in pairwise(edges)]
        labels = [f"under {edges[0]:,}", *inner, f"{edges[-1]:,} and more"]
        first, last = 0 if counts[0] else 1, len(counts) if counts[-1] else -1
        return Histogram(tuple(labels[first:last]), tuple(counts[first:last]))

    def _quantile(self, total: int, share: float) -> int:
        return int(np.searchsorted(np.cumsum(self._counts), max(1, share * total)))


class BinCounts:
    """Counts of values in bins with fixed edges, including a bin below the first and one from the last edge on."""

    def __init__(self, edges: tuple[float, ...], labels: tuple[str, ...]) -> None:
        self._edges, self._labels = np.asarray(edges), labels
        self._counts = np.zeros(len(labels), np.int64)

    def add(self, values: NDArray[np.float64]) -> None:
        """Count a batch."""
        self._counts += np.bincount(np.searchsorted(self._edges, values, side="right"), minlength=len(self._labels))

    def histogram(self, *, trim: bool) -> Histogram:
        """Return all bins, or with `trim` those from the first to the last non-empty one."""
        filled = np.flatnonzero(self._counts)
        if not len(filled):
            return Histogram((), ())
        first, last = (int(filled[0]), int(filled[-1]) + 1) if trim else (0, len(self._labels))
        return Histogram(self._labels[first:last], tuple(int(count) for count in self._counts[first:last]))


def byte_labels() -> tuple[str, ...]:
    """Return the labels of the bins between BYTE_EDGES."""
    names = [f"{edge // 10**6} MB" if edge >= 10**6 else f"{edge // 10**3} kB" for edge in BYTE_EDGES]
    middle = [f"{a} to {b}" for a, b in pairwise(names)]
    return (f"under {names[0]}", *middle, f"{names[-1]} and more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """A row or an original whose image is not in the dataset."""

    split: str
    key: str
    status: str
    """The row's newest status; `rejected` for an original from an archive, a folder or a table of files."""
    reason: str
    origin: str
    """URL of the row, or path of the original; a finished dataset knows paths without the suffix only."""
    detail: str = ""
    """Details of the reason; empty for rows."""


def rejected(url: str, split: str | None = None) -> Iterator[Rejected]:
    """Yield the rows or images that the dataset leaves out, from the sidecars of its shards or from its events; for an
    unfinished build, those of the finished shards.

    Args:
        split: Split to list; None for all.

    Raises:
        FormatError: A file is missing or damaged.
        UsageError: There is no such dataset or split.
    """
    storage = open_storage(url)
    claim = unfinished_build(storage)
    if claim is not None:
        yield from _of_build(OpenBuild(claim, storage), split)
        return
    manifest = readable_manifest(storage)
    for chosen in chosen_splits(manifest, split):
        if chosen.statuses:
            yield from _rows(storage, manifest, chosen)
            continue
        for batch in open_events(storage, chosen.events["file"]).batches(["key", "kind", "reason", "detail"]):
            for event in batch.to_pylist():
                if event["kind"] == "rejected":
                    yield _of_event(chosen.name, Event(**event), readable(event["key"]))


def _of_build(build: OpenBuild, split: str | None) -> Iterator[Rejected]:
    """Yield the rejected images of the shards that a build has finished, with file names from its references."""
    names = [planned.name for planned in build.plan.splits]
    if split not in (None, *names):
        raise UsageError(f"`split` {split}: the build has {', '.join(names)}")
    done = finished_shards(build.storage, build.root)
    chosen = [name for name in names if split in (None, name)]
    indexes = [(name, index) for name in chosen for index in build.plan.shards_of(name) if index in done]
    receipts = read_receipts(build.storage, (index for _, index in indexes), build.root)
    for (name, index), found in zip(indexes, receipts, strict=True):
        events = [event for event in found[0].events if event.kind == "rejected"] if found is not None else []
        if events:
            originals = original_names(build, [index], (event.key for event in events))
            for event in events:
                yield _of_event(name, event, originals.get(event.key, readable(event.key)))


def _of_event(split: str, event: Event, origin: str) -> Rejected:
    return Rejected(
        split=split, key=event.key, status="rejected", reason=event.reason, origin=origin, detail=event.detail
    )


def _rows(storage: Storage, manifest: Manifest, split: SplitManifest) -> Iterator[Rejected]:
    from dataprep.fetched.existing import FetchedDataset, rejected_rows

    if is_adopted(manifest):
        yield from _adopted_rows(open_named_data(storage, manifest), split)
        return
    for row in rejected_rows(FetchedDataset(storage, manifest)):
        yield Rejected(split=split.name, key=row.key, status=row.status, reason=row.reason, origin=row.url)


def _adopted_rows(storage: Storage, split: SplitManifest) -> Iterator[Rejected]:
    """Yield the rows without an image from the parquet files that img2dataset wrote next to its shards."""
    for shard in split.shards:
        table = read_columns(storage, sidecars_of(shard["file"])[0], _ROW_COLUMNS)
        columns = (table.column(name).to_pylist() for name in _ROW_COLUMNS)
        for key, status, message, url in zip(*columns, strict=True):
            if status != SUCCESS:
                reason = reason_of(message or "")
                yield Rejected(split=split.name, key=key, status=status, reason=reason, origin=url or "")
