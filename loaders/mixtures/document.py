"""The description of a mixture: which datasets with which weights, from a list or from a file such as `mix.json`.

{"version": 1,
 "datasets": [{"url": "gs://bucket/imagenet", "weight": 3},
              {"url": "../coco", "weight": 0.5, "split": "train", "name": "coco", "at_end": "drop", "epochs": 2}],
 "labels": "joined",
 "epoch_samples": 1000000}

Anyone may have written the file: its size, its number of datasets and every value are bounded, and fields that do not
exist are refused. A relative URL is relative to the file's folder.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from numbers import Rational, Real
from os import PathLike
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from dataprep.dataset.adopted import open_linked
from dataprep.dataset.documents import MAX_COUNT, decode
from dataprep.errors import UsageError
from dataprep.messages import not_one_of, quoted
from dataprep.storage import absolute
from dataprep.storage.base import read_bounded
from loaders.fetch.index import DEADLINE_S, with_deadline
from loaders.mixtures.order import AtEnd
from loaders.mixtures.proportions import MAX_TOTAL, whole_weights

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
_ADVICE = 'see "Mixtures" in docs/loaders.md'


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureSource:
    """One dataset of a mixture.

    Raises:
        UsageError: A value is of another type or out of its range.
    """

    url: str
    """Folder or gs:// URL of a dataset that `dataprep build` made or `dataprep adopt` indexed."""
    weight: Weight = 1
    """Share among the weights of all datasets; 0: none for now."""
    split: str | None = None
    """Name of a split; None: the one that `open_loader` names."""
    name: str = ""
    """Name in `batch.fields["dataset"]` and in the state; by default the last part of the URL."""
    at_end: AtEnd = "repeat"
    """When the dataset has ended: `repeat` begins its next pass, `drop` gives its weight to the others, `stop` ends the
    mixture."""
    epochs: int = 1
    """Epochs of its own after which a dataset ends that is not repeated."""

    def __post_init__(self) -> None:
        _text("url", self.url, MAX_TEXT)
        object.__setattr__(self, "name", self.name or _last_part(self.url))
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
        UsageError: There is no dataset, two have one name or are the same, or a value is out of its range.
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
            seen: set[object] = set()
            for value in values:
                if value in seen:
                    raise UsageError(
                        f"{self.label}: two datasets {what} {value!r}; give each a name of its own, and every split of "
                        "a dataset once, with the weight of both"
                    )
                seen.add(value)
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
                f"{self.label}: as whole numbers the weights have the sum {sum(weights):,}, expected {MAX_TOTAL:,} or "
                "less; give weights with fewer digits"
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
    """Read the file of a mixture.

    Raises:
        UsageError: There is no such file, or it does not describe a mixture; the message says where in it.
    """
    folder, _, name = url.rpartition("/")
    if not name:
        raise UsageError(f"{url!r}: expected the name of a file such as mix.json")
    folder = folder or ("/" if url.startswith("/") else ".")
    data = read_bounded(with_deadline(open_linked(folder), DEADLINE_S), name, MAX_BYTES, advice=_ADVICE)
    if data is None:
        raise UsageError(f"{url}: not found; expected the file of a mixture; {_ADVICE}")
    where = f"{url}: no mixture"
    document = decode(data, _Document, where=where, advice=_ADVICE, error=UsageError)
    if document.version != VERSION:
        raise UsageError(f"{where}: version {document.version}, expected {VERSION}; {_ADVICE}")
    sources = []
    for number, entry in enumerate(document.datasets):
        try:
            sources.append(_source(entry, folder))
        except UsageError as error:
            raise UsageError(f"{where}: $.datasets[{number}]: {error}; {_ADVICE}") from error
    return MixtureSpec(where=url, sources=tuple(sources), labels=document.labels, epoch_samples=document.epoch_samples)


def listed_sources(sources: Iterable[Any], at_end: AtEnd) -> tuple[MixtureSource, ...]:
    """Return the datasets of a list of MixtureSource or of tuples (url, weight) or (url, weight, split).

    Raises:
        UsageError: An entry is neither, or one of its values is of another type.
    """
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


def _source(entry: _Entry, folder: str) -> MixtureSource:
    return MixtureSource(
        url=_located(entry.url, folder),
        weight=entry.weight,
        split=entry.split,
        name=entry.name,
        at_end=entry.at_end,
        epochs=entry.epochs,
    )


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
    """Return a weight as a fraction; a float as the nearest one with a denominator up to MAX_DENOMINATOR."""
    if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 <= float(weight) <= MAX_TOTAL:
        raise UsageError(f"weight must be a number from 0 to {MAX_TOTAL:,}, got {quoted(weight)}")
    if isinstance(weight, Rational):
        return Fraction(int(weight.numerator), int(weight.denominator))
    found = Fraction(float(weight)).limit_denominator(MAX_DENOMINATOR)
    if weight and not found:
        raise UsageError(
            f"weight {quoted(weight)} is nearer to 0 than to 1/{MAX_DENOMINATOR:,}; make all weights larger"
        )
    return found


def _last_part(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2]


def _text(what: str, value: object, most: int) -> None:
    if not isinstance(value, str) or not value or len(value) > most or not value.isprintable():
        raise UsageError(f"{what} must be a printable text of 1 to {most:,} characters, got {quoted(value)}")


def _whole(what: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UsageError(f"{what} must be a whole number from {least} to {most:,}, got {quoted(value)}")
