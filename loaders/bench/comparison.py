"""Two tables of `dataprep bench` side by side: what differed, and which loader became faster or slower."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loaders.bench.table import SCHEMA_VERSION, BenchRow, BenchSection, BenchTable
from loaders.metrics.earlier import changed, machine_differences, read_earlier

Verdict = Literal["faster", "slower", "within the spread"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRow:
    """One loader before and now."""

    section: str
    """URL of the dataset that is read now, and its split."""
    loader: str
    before_images_per_s: float
    now_images_per_s: float
    ratio: float
    """Median rate now over the median rate before."""
    lowest_ratio: float
    """Slowest round now over the fastest before."""
    highest_ratio: float
    """Fastest round now over the slowest before."""
    cpu_ratio: float
    """CPU time for an image now, over that before."""
    verdict: Verdict
    """`faster` where every round now is faster than every round before, `slower` likewise, else `within the spread`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A table beside an earlier one."""

    differences: tuple[str, ...]
    """Machine, versions, settings and data that differed, each in one line; only without any do ratios show what the
    change of one thing brought."""
    rows: tuple[ComparedRow, ...]
    unmatched: tuple[str, ...]
    """Loaders that only one of the tables has."""


def read_table(path: Path) -> BenchTable:
    """Read what `dataprep bench --json` printed.

    Raises:
        UsageError: The file is absent, too large, or no such table.
    """
    return read_earlier(path, BenchTable, SCHEMA_VERSION, "dataprep bench --json")


def compare(before: BenchTable, now: BenchTable) -> Comparison:
    """Return how a table differs from an earlier one.

    Sections are matched by URL and split. Where each table has one section, they are compared although their URLs
    differ. Rows are matched by loader, layout and the kind of data.
    """
    differences = [*machine_differences(before.machine, now.machine)]
    differences += changed("setting", before.settings, now.settings)
    rows: list[ComparedRow] = []
    unmatched: list[str] = []
    for old, new in _pairs(before, now):
        differences += _section_differences(old, new)
        olds, news = _by_loader(old), _by_loader(new)
        rows += [_row(f"{new.url} {new.split}", olds[key], news[key]) for key in news if key in olds]
        for found, other, what in ((news, olds, "now"), (olds, news, "before")):
            unmatched += [f"{new.url}: {key[0]}: only {what}" for key in found if key not in other]
    if not rows:
        unmatched.append("no dataset is in both tables; compare tables of the same URLs, or of one URL each")
    return Comparison(differences=tuple(differences), rows=tuple(rows), unmatched=tuple(unmatched))


def _pairs(before: BenchTable, now: BenchTable) -> list[tuple[BenchSection, BenchSection]]:
    if len(before.sections) == len(now.sections) == 1:
        return [(before.sections[0], now.sections[0])]
    olds = {(section.url, section.split): section for section in before.sections}
    return [(olds[key], each) for each in now.sections if (key := (each.url, each.split)) in olds]


def _section_differences(old: BenchSection, new: BenchSection) -> Iterator[str]:
    names = ("url", "split", "layout", "samples")
    yield from changed("data", *({name: getattr(each, name) for name in names} for each in (old, new)))


def _by_loader(section: BenchSection) -> dict[tuple[str, str, str], BenchRow]:
    """Return the rows by loader, kind of data and interpolation."""
    return {(row.loader, row.data, row.interpolation): row for row in section.rows}


def _row(section: str, old: BenchRow, new: BenchRow) -> ComparedRow:
    return ComparedRow(
        section=section,
        loader=new.loader,
        before_images_per_s=old.images_per_s,
        now_images_per_s=new.images_per_s,
        ratio=_over(new.images_per_s, old.images_per_s),
        lowest_ratio=_over(new.slowest_images_per_s, old.fastest_images_per_s),
        highest_ratio=_over(new.fastest_images_per_s, old.slowest_images_per_s),
        cpu_ratio=_over(new.cpu_ms_per_image, old.cpu_ms_per_image),
        verdict=verdict(old, new),
    )


def _over(new: float, old: float) -> float:
    return new / old if old > 0 else 0.0


def verdict(before: BenchRow, now: BenchRow) -> Verdict:
    """Return whether all rounds of a loader are faster than all rounds before, or slower, or neither."""
    if now.slowest_images_per_s > before.fastest_images_per_s:
        return "faster"
    if now.fastest_images_per_s < before.slowest_images_per_s:
        return "slower"
    return "within the spread"
