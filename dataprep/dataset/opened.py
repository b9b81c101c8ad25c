"""A dataset as Python callers see it: `dataprep.open(url)` and what every build returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

from dataprep.dataset.features import Feature, Features, described_with_place
from dataprep.dataset.manifest import no_dataset, read_manifest
from dataprep.dataset.records import Manifest
from dataprep.messages import counted, human_bytes, printable
from dataprep.storage import open_storage


@dataclass(frozen=True, slots=True)
class Split:
    """One split of a dataset."""

    name: str
    samples: int
    """Number of samples that are stored."""
    shards: int
    """Number of shards; for an image folder, of parts of its index."""
    num_bytes: int | None
    """Size of its shards; None in a planned dataset."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """The dataset that a dry run has planned."""

    name: str
    format: str
    classes: tuple[str, ...] = ()
    features: Features = field(default_factory=dict)
    splits: Mapping[str, tuple[int, int]]
    """Number of samples and of shards by name."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dataset:
    """A finished dataset, or the one that a dry run has planned; terminals and notebooks display its summary."""

    url: str
    """Root of the dataset, for `open_loader`, `verify` and the other functions."""
    known: Manifest | Planned
    """Manifest of the dataset, or the plan of a dry run."""

    @property
    def manifest(self) -> Manifest | None:
        """Content of its `dataset.json`; None if it is only planned."""
        return self.known if isinstance(self.known, Manifest) else None

    @property
    def is_planned(self) -> bool:
        """Whether a dry run returned it, so that nothing is built."""
        return isinstance(self.known, Planned)

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return self.known.name

    @property
    def format(self) -> str:
        """`imagefolder`, `tfrecord` or `webdataset`."""
        return self.known.format

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, by label."""
        return tuple(self.known.classes)

    @property
    def features(self) -> Mapping[str, Feature]:
        """Types of each sample's values other than image, key and label."""
        return self.known.features

    @property
    def splits(self) -> dict[str, Split]:
        """Splits by name."""
        if isinstance(self.known, Planned):
            return {name: Split(name, samples, shards, None) for name, (samples, shards) in self.known.splits.items()}
        return {
            each.name: Split(each.name, each.samples, len(each.shards), each.num_bytes) for each in self.known.splits
        }

    @property
    def samples(self) -> int:
        """Number of samples in all splits."""
        return sum(split.samples for split in self.splits.values())

    @property
    def licence(self) -> str:
        """Licence of the images, as it was stated."""
        return "" if isinstance(self.known, Planned) else self.known.licence

    @property
    def origin(self) -> str:
        """Origin of the images, as it was stated."""
        return "" if isinstance(self.known, Planned) else self.known.origin

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages of a dry run."""
        return self.known.notes if isinstance(self.known, Planned) else ()

    def __str__(self) -> str:
        kind = "planned, nothing is built" if self.is_planned else self.url
        lines = [f"{self.name} ({self.format}): {counted(self.samples, 'sample')}; {kind}"]
        for split in self.splits.values():
            size = "" if split.num_bytes is None else f", {human_bytes(split.num_bytes)}"
            lines.append(
                f"  {split.name}: {counted(split.samples, 'sample')} in {counted(split.shards, 'shard')}{size}"
            )
        lines += [f"  {name}: {value}" for name, value in self._facts()]
        return "\n".join(map(printable, lines))  # a stranger's names: no control character reaches a terminal

    __repr__ = __str__

    def _facts(self) -> list[tuple[str, str]]:
        classes = f"{len(self.classes):,}: {', '.join(self.classes[:5])}" + (" …" if len(self.classes) > 5 else "")
        features = ", ".join(f"{name} ({described_with_place(each)})" for name, each in self.features.items())
        facts = (("classes", classes if self.classes else ""), ("features", features), ("licence", self.licence))
        return [(name, value) for name, value in facts if value]

    def _repr_html_(self) -> str:
        head = "".join(f"<th style='text-align:right'>{word}</th>" for word in ("samples", "shards", "size"))
        rows = "".join(
            f"<tr><td>{escape(split.name)}</td><td>{split.samples:,}</td><td>{split.shards:,}</td>"
            f"<td>{'' if split.num_bytes is None else human_bytes(split.num_bytes)}</td></tr>"
            for split in self.splits.values()
        )
        facts = "".join(f"<br>{escape(name)}: {escape(value)}" for name, value in self._facts())
        state = " (planned, nothing is built)" if self.is_planned else f" at <code>{escape(self.url)}</code>"
        return (
            f"<div><b>{escape(self.name)}</b>, {escape(self.format)}{state}"
            f"<table><tr><th>split</th>{head}</tr>{rows}</table>{facts.removeprefix('<br>')}</div>"
        )


def open_dataset(url: str) -> Dataset:
    """Open a dataset that was built, converted or adopted, by reading its manifest.

    Args:
        url: Folder or gs:// prefix of the dataset, or of the index that `adopt` wrote.

    Raises:
        UsageError: There is no dataset.
        FormatError: The manifest is damaged.
        StorageError: It cannot be read.
    """
    storage = open_storage(url)
    manifest = read_manifest(storage)
    if manifest is None:
        raise no_dataset(storage)
    return Dataset(url=storage.url, known=manifest)
