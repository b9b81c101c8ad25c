"""Bars and curves as SVG for a page that is light or dark: colours and fonts are left to the page.

No text of a dataset's ever enters a plot: matplotlib would read a `$` in a class name as mathematics.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dataprep.histograms import Histogram

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Drawn in colours that nothing else has, and replaced by what the page defines.
_TEXT, _BARS, _LINES = "#010203", "#040506", "#070809"
_TONES = {"accent": _BARS, "warn": "#161718", "rest": "#0a0b0c"}
_LAYERS = ("#0d0e0f", "#101112", "#131415")
_PAGE_COLOURS = {
    _TEXT: "currentColor",
    _LINES: "var(--line)",
    **{colour: f"var(--{tone})" for tone, colour in _TONES.items()},
    **{colour: f"var(--layer-{number})" for number, colour in enumerate(_LAYERS)},
}
_NARROW_IN, _WIDE_IN = 4.4, 9.1
"""Of a plot that takes one column of the page, or two."""
_BAR_IN = 0.23
_CURVE_IN = 2.6
_BARE_IN = (8.0, 4.0)
"""Of a plot without text, which the page stretches to any size."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A value, and the range in which it was measured."""

    value: float
    smallest: float
    largest: float
    tone: Literal["accent", "warn", "rest"]
    """The page's colour for it."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Where a plot without text has a grid line."""

    place: float
    """0..1 from the left or from the bottom."""
    value: float


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers over time, without text."""

    svg: str
    times: tuple[Tick, ...]
    heights: tuple[Tick, ...]


def bar_plot(title: str, histogram: Histogram) -> str:
    """A horizontal bar for each bin with its count and share."""
    figure, axes = _figure(_NARROW_IN, 0.1 + _BAR_IN * max(1, len(histogram.counts)))
    total, most = max(1, sum(histogram.counts)), max(1, *histogram.counts)
    positions = range(len(histogram.counts))
    axes.barh(positions, histogram.counts, height=0.72, color=_BARS)
    for position, count in zip(positions, histogram.counts, strict=True):
        if count:
            share = 100 * count / total
            text = f"{count:,} · {share:.{0 if share >= 1 else 1}f} %"
            axes.text(count + most / 60, position, text, va="center", fontsize=7.5, color=_TEXT)
    axes.set_yticks(positions, histogram.labels)
    axes.set_xlim(0, 1.35 * most)  # room for the text beside the longest bar
    axes.set_ylim(len(histogram.counts) - 0.4, -0.6)  # the first bin on top
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    return _svg(figure, title)


def class_plot(title: str, counts: Sequence[int]) -> str:
    """Samples of every class, the largest class first; twice as wide."""
    figure, axes = _figure(_WIDE_IN, _CURVE_IN)
    axes.stairs(counts, range(len(counts) + 1), fill=True, color=_BARS)
    axes.set_xlim(0, max(1, len(counts)))
    axes.set_ylim(0, 1.06 * max(1, *counts))
    axes.set_xlabel("classes, the largest first", fontsize=8, color=_TEXT)
    axes.grid(axis="y", color=_LINES, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.locator_params(integer=True)
    return _svg(figure, title)


def bare_bars(title: str, bars: Sequence[Bar], target: float | None = None) -> str:
    """A bar in the lower half of each row, for a page that writes names and values above them.

    Rows are equally high and fill the plot. A range is a line, the target a dashed one; bars of more than twice the
    target are cut there.
    """
    figure, axes = _bare_figure()
    most = max((bar.largest for bar in bars), default=0.0) or 1.0
    if target is not None:
        most = min(max(most, target), 2 * target)
    for row, bar in enumerate(bars):
        axes.barh(row + 0.67, min(bar.value, most), height=0.28, color=_TONES[bar.tone])
        if bar.smallest < bar.largest:
            axes.plot([bar.smallest, bar.largest], [row + 0.67] * 2, color=_TEXT, linewidth=2)
        if target is not None:
            axes.plot([target] * 2, [row + 0.47, row + 0.87], color=_TEXT, linewidth=1.5, linestyle=(0, (3, 2)))
    axes.set_xlim(0, 1.002 * most)  # the target's line is whole where it is the largest
    axes.set_ylim(max(1, len(bars)), 0)
    return _svg(figure, title, stretched=True)


def bare_layers(title: str, edges: Sequence[float], layers: Sequence[Sequence[float]], highest: float) -> Layers:
    """Up to three layers upon each other, each a value for every span between two edges; what is higher is cut.

    Args:
        title: Our own, for those who hear the page.
        edges: One more than there are spans, ascending.
        layers: From the bottom up.
        highest: Where the plot ends.
    """
    figure, axes = _bare_figure()
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, highest)
    below = [0.0] * (len(edges) - 1)
    for colour, layer in zip(_LAYERS, layers, strict=False):
        above = [low + value for low, value in zip(below, layer, strict=True)]
        axes.stairs(above, edges, baseline=below, fill=True, color=colour)
        below = above
    times, heights = _ticks(edges[0], edges[-1]), _ticks(0, highest)
    axes.hlines([tick.value for tick in heights], *axes.get_xlim(), color=_LINES, linewidth=1)
    return Layers(_svg(figure, title, stretched=True), times, heights)


def _ticks(low: float, high: float) -> tuple[Tick, ...]:
    from matplotlib.ticker import MaxNLocator

    values = [float(value) for value in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high)]
    return tuple(Tick((value - low) / (high - low), value) for value in values if low <= value <= high)


def _bare_figure() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_BARE_IN)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    figure.patch.set_visible(False)
    return figure, axes


def _figure(width_in: float, height_in: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    axes = figure.add_subplot()
    axes.tick_params(labelsize=8, colors=_TEXT, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_LINES)
    axes.patch.set_visible(False)
    figure.patch.set_visible(False)
    return figure, axes


def _svg(figure: Figure, title: str, *, stretched: bool = False) -> str:
    import matplotlib

    out = io.StringIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": title}  # text stays text; the same plot, the same bytes
    with matplotlib.rc_context(settings):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<(metadata|style).*?</\1>", "", svg, flags=re.DOTALL)  # a style inside would hold for the page
    svg = re.sub(r'\s(?:xmlns(?::\w+)?|width|height|version)="[^"]*"', "", svg, count=5)  # HTML knows, the page sizes
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # every plot has a figure_1
    for drawn, page in _PAGE_COLOURS.items():
        svg = svg.replace(drawn, page)
    attributes = f'role="img" aria-label="{title}"' + (' preserveAspectRatio="none"' if stretched else "")
    return svg.replace("<svg", f"<svg {attributes}", 1)
