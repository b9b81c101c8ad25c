"""Bars and curves as SVG for a page that is light or dark: colours and fonts are left to the page.

No text of a dataset's ever enters a plot: matplotlib would read a `$` in a class name as mathematics.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dataprep.histograms import Histogram

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Drawn in colours that nothing else has, and replaced by what the page defines.
_TEXT, _BARS, _LINES = "#010203", "#040506", "#070809"
_PAGE_COLOURS = {_TEXT: "currentColor", _BARS: "var(--accent)", _LINES: "var(--line)"}
_NARROW_IN, _WIDE_IN = 4.4, 9.1
"""Of a plot that takes one column of the page, or two."""
_BAR_IN = 0.23
_CURVE_IN = 2.6


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


def _svg(figure: Figure, title: str) -> str:
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
    return svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
