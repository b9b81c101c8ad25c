"""Numbers as charts: how long a bar is, how high a layer, where a tick is. Pure.

Lengths and places are shares of the chart, 0..1 from the left or from the bottom. The macros of
`dataprep/data/charts.html.j2` draw them as HTML, and areas as SVG paths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Tone = Literal["accent", "warn", "rest"]
"""The page's colours for a bar."""
SVG_UNITS = 1000
"""Width and height of the coordinates in which an area's paths are written; the page stretches them to any size."""
MOST_TICKS = 6
_LEAST_SPAN = 1e-9
"""Smallest range that gets ticks: below it, their steps would be lost in rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A named value, and the range in which it was measured."""

    name: str
    value: float
    smallest: float
    largest: float
    tone: Tone
    text: str
    """The value as it is written beside the bar."""
    detail: str = ""
    """More about the name, in small letters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnBar:
    """A bar and its lengths."""

    bar: Bar
    length: float
    start: float
    """Where the measured range begins."""
    end: float
    """Where it ends; equal to `start` where every measurement was the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BarChart:
    """Bars, one below the other."""

    title: str
    bars: tuple[DrawnBar, ...]
    target: float | None
    """Place of a dashed line; None: there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bin:
    """One bin of a histogram."""

    label: str
    text: str
    """Count and share of the bin, such as `1,200 · 12 %`; empty where nothing was counted."""
    length: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A value on an axis, and its place."""

    place: float
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class AreaChart:
    """Layers upon each other as SVG paths, in coordinates of SVG_UNITS with the origin at the top left."""

    title: str
    paths: tuple[str, ...]
    """From the lowest layer up."""
    grid: str
    """A line at the height of each tick."""
    across: tuple[Tick, ...]
    upward: tuple[Tick, ...]


def bar_chart(title: str, bars: Sequence[Bar], target: float | None = None) -> BarChart:
    """Lay out bars against the longest one, or against a target: bars of more than twice the target are cut there.

    Args:
        title: What the chart shows, for those who hear the page.
        bars: From top to bottom.
        target: Value that is marked by a dashed line.
    """
    most = max((bar.largest for bar in bars), default=0.0) or 1.0
    if target is not None:
        most = min(max(most, target), 2 * target)
    drawn = tuple(
        DrawnBar(
            bar=bar,
            length=min(bar.value, most) / most,
            start=min(bar.smallest, most) / most,
            end=min(bar.largest, most) / most,
        )
        for bar in bars
    )
    return BarChart(title=title, bars=drawn, target=None if target is None else target / most)


def histogram_bins(labels: Sequence[str], counts: Sequence[int]) -> tuple[Bin, ...]:
    """Lay out a histogram's bins, each with its count and its share of all."""
    total, most = max(1, sum(counts)), max(1, *counts, 1)
    return tuple(
        Bin(label=label, text=_count_text(count, 100 * count / total), length=count / most)
        for label, count in zip(labels, counts, strict=True)
    )


def area_chart(
    title: str, edges: Sequence[float], layers: Sequence[Sequence[float]], highest: float, *, whole: bool = False
) -> AreaChart:
    """Lay out layers upon each other, each with a value for every span between two edges; what is higher is cut.

    Args:
        title: What the chart shows, for those who hear the page.
        edges: Ascending; one more than there are spans.
        layers: From the bottom up.
        highest: Value at the upper end of the chart.
        whole: Ticks are whole numbers, because the values are counts.
    """
    across, upward = round_ticks(edges[0], edges[-1], whole=whole), round_ticks(0, highest, whole=whole)
    span = edges[-1] - edges[0]
    x = [(edge - edges[0]) / span if span else 0.0 for edge in edges]
    below, paths = [0.0] * (len(edges) - 1), []
    for layer in layers:
        above = [low + value for low, value in zip(below, layer, strict=True)]
        paths.append(_step_path(x, [low / highest for low in below], [high / highest for high in above]))
        below = above
    grid = "".join(f"M0 {_y(tick.place)}H{SVG_UNITS}" for tick in upward)
    return AreaChart(title=title, paths=tuple(paths), grid=grid, across=across, upward=upward)


def round_ticks(low: float, high: float, *, whole: bool = False) -> tuple[Tick, ...]:
    """Up to MOST_TICKS round values, whose distance is 1, 2 or 5 times a power of ten, and their places."""
    span = high - low
    if span < _LEAST_SPAN:
        return ()
    power = 10.0 ** math.floor(math.log10(span / (MOST_TICKS - 1)))
    step = next(digit * power for digit in (1, 2, 5, 10, 20) if span / (digit * power) <= MOST_TICKS - 1)
    if whole:
        step = max(1.0, step)
    values = [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return tuple(Tick((value - low) / span, value) for value in values)


def _count_text(count: int, percent: float) -> str:
    return f"{count:,} · {percent:.{0 if percent >= 1 else 1}f} %" if count else ""


def _step_path(x: Sequence[float], lower: Sequence[float], upper: Sequence[float]) -> str:
    """Outline of the area between two stairs: along the upper one to the right, and back along the lower one."""
    forth = "".join(f"V{_y(height)}H{_x(right)}" for _, right, height in _stairs(x, upper))
    back = "".join(f"V{_y(height)}H{_x(left)}" for left, _, height in reversed(_stairs(x, lower)))
    return f"M0 {_y(lower[0])}{forth}{back}Z"


def _stairs(x: Sequence[float], heights: Sequence[float]) -> list[tuple[float, float, float]]:
    """Steps as left end, right end and height; neighbours of one height are one step, as thousands of classes have."""
    steps: list[tuple[float, float, float]] = []
    for (left, right), height in zip(pairwise(x), heights, strict=True):
        if steps and steps[-1][2] == height:
            steps[-1] = (steps[-1][0], right, height)
        else:
            steps.append((left, right, height))
    return steps


def _x(share: float) -> str:
    return f"{SVG_UNITS * share:.2f}".rstrip("0").rstrip(".")


def _y(share: float) -> str:
    return _x(1 - min(1.0, share))
