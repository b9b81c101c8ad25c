"""Several datasets as one: their shards are numbered on from dataset to dataset, and each is read where it lies."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from dataprep.dataset.documents import json_text
from dataprep.dataset.features import Values, features_document
from dataprep.dataset.records import Manifest, SplitManifest
from dataprep.errors import UsageError
from dataprep.storage.base import Storage
from loaders.dataset import DATASET_FIELD, Dataset, Origin
from loaders.fetch.fetcher import COUNTERS, Fetcher, FetchSettings, Ticket
from loaders.fetch.fields import FieldReader
from loaders.fetch.index import MAX_INDEX_BYTES, ShardIndex, SplitIndex
from loaders.order import Pick

if TYPE_CHECKING:
    from loaders.mixtures.document import Labels
    from loaders.mixtures.order import AtEnd


@dataclass(frozen=True, kw_only=True)
class Part:
    """One dataset of a mixture."""

    name: str
    dataset: Dataset
    at_end: AtEnd
    epochs: int
    """Epochs of its own after which the dataset ends that is not repeated."""
    memory_share: float
    """Share of the memory for encoded images that fetching from a bucket may use."""
    requests_share: float
    """Share of the requests to buckets in flight."""


@dataclass(frozen=True)
class MixedDataset(Dataset):
    """The datasets of a mixture; picklable. Its manifest has what they have in common."""

    parts: tuple[Part, ...]
    origins: tuple[Origin, ...]

    @property
    def storage(self) -> Storage:  # only a single dataset has it
        """Nothing: what needs the storage of a dataset does not work with several."""
        raise UsageError(
            f"{self.url}: a mixture of {len(self.parts)} datasets, expected a single one: a mixture can be loaded, "
            f"but neither diagnosed nor measured; give one of its datasets, such as {self.parts[0].dataset.url}"
        )

    @property
    def is_local(self) -> bool:
        """Whether all shards are on a local disk."""
        return all(part.dataset.is_local for part in self.parts)

    @property
    def origin_of(self) -> Callable[[int], Origin]:
        """Function that says which dataset a shard belongs to."""
        return lambda shard: self.origins[self.part_of(shard)[0]]

    def part_of(self, shard: int) -> tuple[int, int]:
        """Return the number of a shard's dataset, and the number of the shard in it."""
        number = bisect_right(self.first_shards, shard) - 1
        return number, shard - self.first_shards[number]

    @cached_property
    def first_shards(self) -> tuple[int, ...]:
        """Number of each dataset's first shard."""
        return tuple(accumulate((len(part.dataset.split.shards) for part in self.parts[:-1]), initial=0))

    def check_fields(self, names: tuple[str, ...]) -> None:
        """Raise UsageError if a dataset cannot have fields of these names, or has them with another type."""
        wanted = self.stored_fields(names)
        for part in self.parts if wanted else ():
            try:
                part.dataset.check_fields(wanted)
            except UsageError as error:
                raise UsageError(f"{part.name}: {error}") from error
        for name in names:
            self._check_type(name)

    def check_stored_fields(self, names: tuple[str, ...], index: SplitIndex, deadline_s: float) -> None:
        """Raise UsageError if the samples of a dataset have no fields of these names."""
        for part, own in zip(self.parts, _parts_of(index), strict=True):
            part.dataset.check_stored_fields(self.stored_fields(names), own, deadline_s)

    def _check_type(self, name: str) -> None:
        """Raise UsageError if the datasets have a field with other types, or one that is called as the mixture's."""
        types = {part.name: part.dataset.manifest.features.get(name) for part in self.parts}
        owner = next((part for part, kind in types.items() if kind is not None), None)
        if name == DATASET_FIELD and owner is not None:
            raise UsageError(
                f"field {name!r} of a mixture is the name of each row's dataset, and {owner} stores a field of this "
                "name; load this dataset alone, or convert it without the field"
            )
        first, *others = types.values()
        if any(kind != first for kind in others):
            found = "; ".join(
                f"{part} has {'none' if kind is None else json_text(features_document({name: kind})[name])}"
                for part, kind in types.items()
            )
            raise UsageError(f"field {name!r} must be the same in all datasets of a mixture, got other types: {found}")

    def stored_fields(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the fields that are stored with the images."""
        return tuple(name for name in names if name != DATASET_FIELD)

    def open_index(self, deadline_s: float, max_bytes: int = MAX_INDEX_BYTES) -> MixedIndex:
        """Open a reader of all indexes."""
        return MixedIndex(self, deadline_s, max_bytes)

    def url_of(self, shard: int, file: str) -> str:
        """Return the URL of a file that belongs to a shard."""
        number, own = self.part_of(shard)
        return self.parts[number].dataset.url_of(own, file)

    def open_fetcher(self, index: SplitIndex, settings: FetchSettings) -> Fetcher:
        """Start a fetcher for each dataset; together they keep to the settings."""
        return MixedFetcher(self, _parts_of(index), settings)

    def open_fields(self, names: tuple[str, ...]) -> FieldReader:
        """Open a reader of what is stored with each image."""
        return _MixedFields(self, names)


class MixedIndex(SplitIndex):
    """The indexes of all datasets; each gets memory for its entries in proportion to its samples."""

    def __init__(self, mixed: MixedDataset, deadline_s: float, max_bytes: int) -> None:
        self._mixed = mixed
        splits = [part.dataset.split for part in mixed.parts]
        samples = max(1, sum(split.samples for split in splits))
        self.parts = [
            part.dataset.open_index(deadline_s, max_bytes * split.samples // samples)
            for part, split in zip(mixed.parts, splits, strict=True)
        ]
        self.one_file_per_image = all(part.one_file_per_image for part in self.parts)

    def shard(self, shard: int) -> ShardIndex:
        """Return the entries of one shard."""
        number, own = self._mixed.part_of(shard)
        return self.parts[number].shard(own)

    def file_of(self, shard: int, entries: ShardIndex, entry: int) -> str:
        """Return the stored object that holds one of these entries of a shard."""
        number, own = self._mixed.part_of(shard)
        return self.parts[number].file_of(own, entries, entry)

    def shard_file(self, shard: int) -> str:
        """Return the name of a shard's file."""
        number, own = self._mixed.part_of(shard)
        return self.parts[number].shard_file(own)

    def claims_sizes(self, shard: int) -> bool:
        """Whether heights and widths of a shard are what another tool wrote."""
        number, own = self._mixed.part_of(shard)
        return self.parts[number].claims_sizes(own)

    def mean_image_bytes(self) -> float:
        """Return the largest of the datasets' mean image sizes."""
        return max(part.mean_image_bytes() for part in self.parts)


def _parts_of(index: SplitIndex) -> list[SplitIndex]:
    """Return the indexes of a mixture's datasets."""
    if not isinstance(index, MixedIndex):
        raise TypeError(f"expected the index of a mixture, got {type(index).__name__}")
    return index.parts


class MixedFetcher(Fetcher):
    """Fetchers of all datasets; each request goes to that of its shard."""

    def __init__(self, mixed: MixedDataset, indexes: list[SplitIndex], settings: FetchSettings) -> None:
        self._mixed = mixed
        self._parts: list[Fetcher] = []
        for part, own in zip(mixed.parts, indexes, strict=True):
            threads = settings.threads
            if not part.dataset.is_local:
                threads = math.ceil(part.requests_share * (threads or 2 * part.dataset.storage.reads_in_flight))
            budget = max(1, int(settings.prefetch_bytes * part.memory_share))
            self._parts.append(
                part.dataset.open_fetcher(own, replace(settings, prefetch_bytes=budget, threads=threads))
            )

    def shards_needed(self, picks: Iterable[Pick]) -> set[int]:
        """Return the shards whose index entries these picks will need."""
        needed = set()
        for pick in picks:
            for each in (pick, *pick.released):
                number, own = self._own(each)
                if self._parts[number].shards_needed([own]):
                    needed.add(each.piece.shard)
        return needed

    def request(self, pick: Pick) -> Ticket:
        """Begin to get one sample, after giving up those of its pieces that other ranks take."""
        for released in pick.released:
            number, own = self._own(released)
            self._parts[number].request(own).done()
        number, own = self._own(pick)
        return self._parts[number].request(own)

    def stats(self) -> dict[str, float]:
        """Return the sums of all fetchers' counters."""
        found = [part.stats() for part in self._parts]
        return {name: sum(stats[name] for stats in found) for name in COUNTERS}

    def close(self) -> None:
        """End the threads of all fetchers."""
        for part in self._parts:
            part.close()

    def _own(self, pick: Pick) -> tuple[int, Pick]:
        """Return the number of a pick's dataset, and the pick with the number that its shard has there."""
        number, shard = self._mixed.part_of(pick.piece.shard)
        return number, Pick(pick.position, pick.piece._replace(shard=shard), pick.sample, pick.of_piece)


class _MixedFields:
    """Reads the fields of each dataset with its own reader."""

    def __init__(self, mixed: MixedDataset, names: tuple[str, ...]) -> None:
        self._mixed = mixed
        self._parts = [part.dataset.open_fields(names) for part in mixed.parts]

    def read(self, record: bytes, shard: int, sample: int) -> Values:
        number, own = self._mixed.part_of(shard)
        return self._parts[number].read(record, own, sample)


def joined_labels(parts: tuple[Part, ...], labels: Labels) -> tuple[tuple[str, ...], tuple[Origin, ...]]:
    """Return the classes of a mixture, and what becomes of each dataset's labels.

    Args:
        parts: The datasets.
        labels: `joined`: the classes are those of all datasets, in the order of their first occurrence; `own`: they are
            known only if all datasets have the same.
    """
    lists = [part.dataset.manifest.classes for part in parts]
    if labels == "own" or len({classes for classes in lists if classes}) <= 1:
        same = {classes for classes in lists if classes}
        classes = next(iter(same)) if len(same) == 1 else ()
        return classes, tuple(Origin(part.name, None) for part in parts)
    numbers: dict[str, int] = {}
    for classes in lists:
        for name in classes:
            numbers.setdefault(name, len(numbers))
    origins = (Origin(part.name, tuple(numbers[name] for name in part.dataset.manifest.classes)) for part in parts)
    return tuple(numbers), tuple(origins)


def joined_dataset(url: str, parts: tuple[Part, ...], labels: Labels) -> MixedDataset:
    """Return the datasets of a mixture as one."""
    classes, origins = joined_labels(parts, labels)
    first = parts[0].dataset
    splits = [part.dataset.split for part in parts]
    split: SplitManifest = replace(
        first.split,
        name=", ".join(dict.fromkeys(split.name for split in splits)),
        samples=sum(split.samples for split in splits),
        num_bytes=sum(split.num_bytes for split in splits),
        shards=tuple(shard for split in splits for shard in split.shards),
        class_counts=(),
        repeats={"count": 1, "stored": 1},
    )
    manifest: Manifest = replace(
        first.manifest,
        name="mixture",
        classes=classes,
        shuffled=all(part.dataset.manifest.shuffled for part in parts),
        splits=(split,),
    )
    return MixedDataset(url, manifest, split, False, parts, origins)
