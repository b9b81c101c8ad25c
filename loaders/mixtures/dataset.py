"""Description of a mixture, from a list or from a file such as `mix.json`, and its datasets read as one.

{"version": 1,
 "datasets": [{"url": "gs://bucket/imagenet", "weight": 3},
              {"url": "../coco", "weight": 0.5, "split": "train", "name": "coco", "at_end": "drop", "epochs": 2}],
 "labels": "joined",
 "epoch_samples": 1000000}

Anyone may have written the file: its size, its number of datasets and every value are bounded, and unknown fields are
refused. A relative URL is relative to the file's folder. Shards are numbered consecutively over all datasets, and each
is read where it is.
"""

from __future__ import annotations

import math
import posixpath
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, chain
from math import lcm
from numbers import Rational, Real
from os import PathLike
from typing import Annotated, Any, Literal, Self, TypeAlias, get_args

import msgspec
from msgspec import Meta

from dataprep.dataset.adopted import open_linked
from dataprep.dataset.documents import MAX_COUNT, decode, json_text
from dataprep.dataset.features import Values, features_document
from dataprep.dataset.records import Manifest, SplitManifest
from dataprep.errors import UsageError
from dataprep.messages import not_one_of, quoted
from dataprep.storage import absolute
from dataprep.storage.base import Storage, read_bounded
from loaders.dataset import DATASET_FIELD, Dataset, Origin, ReadFields
from loaders.fetch.fetcher import COUNTERS, Fetcher, FetchSettings, Ticket
from loaders.fetch.index import DEADLINE_S, MAX_INDEX_BYTES, Found, ShardIndex, SplitIndex, with_deadline
from loaders.mixtures.order import MAX_TOTAL, AtEnd, whole_weights
from loaders.order import Pick, Piece

Labels: TypeAlias = Literal["joined", "own"]
"""`joined`: classes of the same name are one class of the mixture; `own`: labels stay as each dataset has them."""
Weight: TypeAlias = float | Fraction

VERSION = 1
MAX_BYTES = 2**20
"""Maximum size of the file."""
MAX_DATASETS = 256
MAX_TEXT = 1024
"""Maximum number of characters of a URL or split."""
MAX_NAME = 100
"""Maximum number of characters of a dataset's name: it is in every row of a batch."""
MAX_EPOCHS = 1_000_000
MAX_DENOMINATOR = 10**6
"""A weight with a fraction is read as the nearest fraction whose denominator is this or less: 0.1 as 1/10."""
_ADVICE = 'see "Mixtures" in docs/batches.md'


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureSource:
    """One dataset of a mixture.

    Raises:
        UsageError: A value has the wrong type or is out of range.
    """

    url: str
    """Folder or gs:// URL of a dataset that `dataprep build` made or `dataprep adopt` indexed."""
    weight: Weight = 1
    """Weight, relative to the other datasets; 0: no samples for now."""
    split: str | None = None
    """Name of a split; None: the split of `open_loader`."""
    name: str = ""
    """Name in `batch.fields["dataset"]` and in the state; by default the last part of the URL."""
    at_end: AtEnd = "repeat"
    """Action at the dataset's end: `repeat` begins the next pass, `drop` gives others its weight, `stop` ends all."""
    epochs: int = 1
    """Epochs of its own after which a dataset ends that is not repeated."""

    def __post_init__(self) -> None:
        _text("url", self.url, MAX_TEXT)
        object.__setattr__(self, "name", self.name or self.url.rstrip("/").rpartition("/")[2])
        object.__setattr__(self, "url", absolute(self.url))
        _text("name", self.name, MAX_NAME)
        if self.split is not None:
            _text("split", self.split, MAX_TEXT)
        if self.at_end not in get_args(AtEnd):
            raise UsageError(not_one_of("at_end", self.at_end, get_args(AtEnd)))
        _whole("epochs", self.epochs, 1, MAX_EPOCHS)
        if self.at_end == "repeat" and self.epochs != 1:
            raise UsageError(
                f"{self.name}: epochs {self.epochs} with at_end 'repeat', which has no end; choose 'drop' or 'stop'"
            )
        _fraction(self.weight)


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureSpec:
    """A mixture as its file or list describes it, checked.

    Raises:
        UsageError: There is no dataset, two datasets have the same name or are the same, or a value is out of range.
    """

    where: str
    """URL of the file, for messages; empty for a list."""
    sources: tuple[MixtureSource, ...]
    labels: Labels = "joined"
    epoch_samples: int | None = None

    def __post_init__(self) -> None:
        count = len(self.sources)
        if not 1 <= count <= MAX_DATASETS:
            raise UsageError(f"{self.label}: {count} datasets, expected 1 to {MAX_DATASETS}")
        for what, values in (
            ("are called", [source.name for source in self.sources]),
            ("are the split and URL", [(source.split, source.url.rstrip("/")) for source in self.sources]),
        ):
            if twice := [value for place, value in enumerate(values) if value in values[:place]]:
                raise UsageError(
                    f"{self.label}: two datasets {what} {twice[0]!r}; give each its own name, and every split of a "
                    "dataset only once, with the weight of both"
                )
        if self.labels not in get_args(Labels):
            raise UsageError(not_one_of("labels", self.labels, get_args(Labels)))
        if self.epoch_samples is not None:
            _whole("epoch_samples", self.epoch_samples, 1, MAX_COUNT - 1)
        _ = self.weights

    @property
    def label(self) -> str:
        """Words for messages: the file's URL, or `mixture`."""
        return self.where or "mixture"

    @property
    def weights(self) -> tuple[int, ...]:
        """Weight of each dataset as a whole number, without a common divisor."""
        fractions = [_fraction(source.weight) for source in self.sources]
        if not any(fractions):
            raise UsageError(f"{self.label}: all weights are 0, expected one above 0")
        unit = lcm(*(fraction.denominator for fraction in fractions))
        weights = whole_weights([int(fraction * unit) for fraction in fractions])
        if sum(weights) > MAX_TOTAL:
            raise UsageError(
                f"{self.label}: the sum of the weights as whole numbers is {sum(weights):,}, expected {MAX_TOTAL:,} "
                "or less; give weights with fewer digits"
            )
        return weights


Listed: TypeAlias = MixtureSource | tuple[str | PathLike[str], Weight] | tuple[str | PathLike[str], Weight, str]
"""A dataset in a list: a `MixtureSource`, (url, weight), or (url, weight, split)."""


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """A dataset as the file lists it."""

    url: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
    weight: Annotated[int, Meta(ge=0, le=MAX_TOTAL)] | Annotated[float, Meta(ge=0, le=MAX_TOTAL)] = 1
    split: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)] | None = None
    name: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    at_end: AtEnd = "repeat"
    epochs: Annotated[int, Meta(ge=1, le=MAX_EPOCHS)] = 1


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    """`mix.json`."""

    version: int
    datasets: Annotated[list[_Entry], Meta(min_length=1, max_length=MAX_DATASETS)]
    labels: Labels = "joined"
    epoch_samples: Annotated[int, Meta(ge=1, lt=MAX_COUNT)] | None = None


def read_spec(url: str) -> MixtureSpec:
    """Read the file of a mixture. Raises UsageError if there is no such file, or it does not describe a mixture; the
    message says where the fault is."""
    folder, _, name = url.rpartition("/")
    if not name:
        raise UsageError(f"{url!r}: expected the name of a file such as mix.json")
    folder = folder or ("/" if url.startswith("/") else ".")
    data = read_bounded(with_deadline(open_linked(folder), DEADLINE_S), name, MAX_BYTES, advice=_ADVICE)
    if data is None:
        raise UsageError(f"{url}: not found; expected the file of a mixture; {_ADVICE}")
    where = f"{url}: not a mixture"
    document = decode(data, _Document, where=where, advice=_ADVICE, error=UsageError)
    if document.version != VERSION:
        raise UsageError(f"{where}: version {document.version}, expected {VERSION}; {_ADVICE}")
    sources = []
    for number, entry in enumerate(document.datasets):
        try:
            sources.append(MixtureSource(**msgspec.structs.asdict(entry) | {"url": _located(entry.url, folder)}))
        except UsageError as error:
            raise UsageError(f"{where}: $.datasets[{number}]: {error}; {_ADVICE}") from error
    return MixtureSpec(where=url, sources=tuple(sources), labels=document.labels, epoch_samples=document.epoch_samples)


def listed_sources(sources: Iterable[Any], at_end: AtEnd) -> tuple[MixtureSource, ...]:
    """Return the datasets of a list of MixtureSource or of tuples (url, weight) or (url, weight, split). Raises
    UsageError if an entry is neither, or a value has the wrong type."""
    found = []
    for number, entry in enumerate(sources):
        if isinstance(entry, MixtureSource):
            found.append(entry)
            continue
        fits = isinstance(entry, tuple | list) and len(entry) in (len(("url", "weight")), len(("u", "w", "split")))
        if not fits or not isinstance(entry[0], str | PathLike):
            raise UsageError(
                f"dataset {number} of the mixture must be (url, weight), (url, weight, split) or a MixtureSource, got "
                f"{quoted(entry)}"
            )
        url, weight, split = (*entry, None)[:3]
        found.append(MixtureSource(url=str(url), weight=weight, split=split, at_end=at_end))
    return tuple(found)


def _located(url: str, folder: str) -> str:
    """Return the URL of a dataset; one without a scheme or root is relative to the folder of the file."""
    if "://" in url or url.startswith("/"):
        return url
    scheme, mark, path = folder.rpartition("://")
    bucket, _, prefix = path.partition("/") if mark else ("", "", path)
    found = posixpath.normpath(posixpath.join(prefix, url))
    if mark and f"{found}/".startswith("../"):
        raise UsageError(f"url {quoted(url)} leads out of the bucket {quoted(bucket)}")
    return f"{scheme}{mark}{bucket}/{found}" if mark else found


def _fraction(weight: object) -> Fraction:
    """Convert a weight to a fraction.

    Floats are rounded to the nearest fraction whose denominator is at most MAX_DENOMINATOR.
    """
    if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 <= float(weight) <= MAX_TOTAL:
        raise UsageError(f"weight must be a number from 0 to {MAX_TOTAL:,}, got {quoted(weight)}")
    if isinstance(weight, Rational):
        return Fraction(int(weight.numerator), int(weight.denominator))
    found = Fraction(float(weight)).limit_denominator(MAX_DENOMINATOR)
    if weight and not found:
        raise UsageError(
            f"weight {quoted(weight)} is closer to 0 than to 1/{MAX_DENOMINATOR:,}; make all weights larger"
        )
    return found


def _text(what: str, value: object, most: int) -> None:
    if not isinstance(value, str) or not value or len(value) > most or not value.isprintable():
        raise UsageError(f"{what} must be a printable text of 1 to {most:,} characters, got {quoted(value)}")


def _whole(what: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UsageError(f"{what} must be a whole number from {least} to {most:,}, got {quoted(value)}")


@dataclass(frozen=True)
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
    """The datasets of a mixture; picklable. The manifest has the fields that they share."""

    parts: tuple[Part, ...]
    origins: tuple[Origin, ...]

    @property
    def storage(self) -> Storage:  # only a single dataset has it
        """Raises UsageError: operations on the storage of a single dataset do not work with several."""
        raise UsageError(
            f"{self.url}: a mixture of {len(self.parts)} datasets, expected a single one: a mixture can be loaded, "
            f"but neither diagnosed nor measured; give one of its datasets, such as {self.parts[0].dataset.url}"
        )

    @property
    def data_url(self) -> str:
        return self.url

    @property
    def is_local(self) -> bool:
        return all(part.dataset.is_local for part in self.parts)

    @property
    def origin_of(self) -> Callable[[int], Origin]:
        return lambda shard: self.origins[self.part_of(shard)[0]]

    def part_of(self, shard: int) -> tuple[int, int]:
        """Return the number of a shard's dataset, and the number of the shard in it."""
        number = bisect_right(self.first_shards, shard) - 1
        return number, shard - self.first_shards[number]

    @cached_property
    def first_shards(self) -> tuple[int, ...]:
        """Number of each dataset's first shard."""
        return tuple(accumulate((len(part.dataset.split.shards) for part in self.parts[:-1]), initial=0))

    def with_columns(self, names: tuple[str, ...], deadline_s: float) -> Self:
        """Return the mixture with the columns among these names, which each dataset must have with the same type."""
        wanted = tuple(name for name in names if name != DATASET_FIELD)
        parts = [replace(part, dataset=part.dataset.with_columns(wanted, deadline_s)) for part in self.parts]
        for name in wanted:
            types = {part.name: part.dataset.columns[name].type for part in parts if name in part.dataset.columns}
            if types and (len(types) < len(parts) or len(set(types.values())) > 1):
                found = "; ".join(f"{part.name} has {types.get(part.name, 'none')}" for part in parts)
                raise UsageError(f"column {name!r} must have the same type in all datasets of a mixture, got {found}")
        return replace(self, parts=tuple(parts), columns=parts[0].dataset.columns)

    def column_bytes(self, name: str) -> float:
        """Return the largest of the datasets' mean sizes of a column's values."""
        return max(part.dataset.column_bytes(name) for part in self.parts)

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
        for part, own in zip(self.parts, _parts_of(index), strict=True):
            part.dataset.check_stored_fields(self.stored_fields(names), own, deadline_s)

    def _check_type(self, name: str) -> None:
        """Raise UsageError if a field has different types in the datasets, or the name of the mixture's own field."""
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
            raise UsageError(f"field {name!r} must have the same type in all datasets of a mixture, got {found}")

    def stored_fields(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in super().stored_fields(names) if name != DATASET_FIELD)

    def open_index(self, deadline_s: float, max_bytes: int = MAX_INDEX_BYTES) -> MixedIndex:
        """Open a reader of all indexes; each gets memory for its entries in proportion to its samples."""
        samples, datasets = max(1, self.split.samples), [part.dataset for part in self.parts]
        return MixedIndex(
            self, [each.open_index(deadline_s, max_bytes * each.split.samples // samples) for each in datasets]
        )

    def url_of(self, shard: int, file: str) -> str:
        number, own = self.part_of(shard)
        return self.parts[number].dataset.url_of(own, file)

    def open_fetcher(self, index: SplitIndex, settings: FetchSettings) -> Fetcher:
        """Start a fetcher for each dataset; together they stay within the settings."""
        return MixedFetcher(self, _parts_of(index), settings)

    def open_fields(self, names: tuple[str, ...]) -> ReadFields:
        readers = [part.dataset.open_fields(names) for part in self.parts]

        def read(record: bytes, shard: int, sample: int) -> Values:
            number, own = self.part_of(shard)
            return readers[number](record, own, sample)

        return read


class MixedIndex(SplitIndex):
    """The indexes of all datasets."""

    def __init__(self, mixed: MixedDataset, parts: list[SplitIndex]) -> None:
        self._mixed, self.parts = mixed, parts
        self.one_file_per_image = all(part.one_file_per_image for part in self.parts)

    def shard(self, shard: int) -> ShardIndex:
        number, own = self._mixed.part_of(shard)
        return self.parts[number].shard(own)

    def load(self, shard: int) -> None:
        number, own = self._mixed.part_of(shard)
        self.parts[number].load(own)

    def find(self, piece: Piece) -> Found:
        number, own = self._mixed.part_of(piece.shard)
        return self.parts[number].find(piece._replace(shard=own))

    def file_of(self, shard: int, entries: ShardIndex, entry: int) -> str:
        number, own = self._mixed.part_of(shard)
        return self.parts[number].file_of(own, entries, entry)

    def shard_file(self, shard: int) -> str:
        number, own = self._mixed.part_of(shard)
        return self.parts[number].shard_file(own)

    def claims_sizes(self, shard: int) -> bool:
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
    """Fetchers of all datasets; each request goes to the fetcher of its shard."""

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
        needed = set()
        for pick in picks:
            for each in (pick, *pick.released):
                number, own = self._own(each)
                if self._parts[number].shards_needed([own]):
                    needed.add(each.piece.shard)
        return needed

    def load(self, shard: int) -> None:
        number, own = self._mixed.part_of(shard)
        self._parts[number].load(own)

    def look_up(self, picks: Iterable[Pick]) -> None:
        found: dict[int, list[Pick]] = {}
        for pick in picks:
            number, own = self._own(pick)
            found.setdefault(number, []).append(own)
        for number, own_picks in found.items():
            self._parts[number].look_up(own_picks)

    def request(self, pick: Pick) -> Ticket:
        """Request one sample, after releasing the samples of its pieces that other ranks take."""
        for released in pick.released:
            number, own = self._own(released)
            self._parts[number].request(own).done()
        number, own = self._own(pick)
        return self._parts[number].request(own)

    def stats(self) -> dict[str, float]:
        found = [part.stats() for part in self._parts]
        return {name: sum(stats[name] for stats in found) for name in COUNTERS}

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def _own(self, pick: Pick) -> tuple[int, Pick]:
        """Return the number of a pick's dataset, and the pick with the number that its shard has there."""
        number, shard = self._mixed.part_of(pick.piece.shard)
        return number, Pick(pick.position, pick.piece._replace(shard=shard), pick.sample, pick.of_piece)


def joined_labels(parts: tuple[Part, ...], labels: Labels) -> tuple[tuple[str, ...], tuple[Origin, ...]]:
    """Return the classes of a mixture, and the mapping of each dataset's labels: if joined, the classes of all
    datasets, in the order of their first occurrence; otherwise classes are known only if all datasets have the same."""
    lists = [part.dataset.manifest.classes for part in parts]
    known = set(filter(None, lists))
    if labels == "own" or len(known) <= 1:
        return known.pop() if len(known) == 1 else (), tuple(Origin(part.name, None) for part in parts)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(chain.from_iterable(lists)))}
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
