"""Self-contained HTML pages for `inspect` and `diagnose`, and the geometry of their charts.

`render_page` renders a template and writes the file; if a package is missing, the error says what to install. The
templates are dataprep/data/page.html.j2 (the frame and its style) and charts.html.j2 (a macro for each kind of chart);
the page of a command is a template that extends the frame, in the `data` folder of the command's package.

Chart functions only compute geometry: bar lengths, layer heights and tick positions as fractions (0..1) of the chart,
from the left or the bottom. The macros draw them as HTML, and areas as SVG paths.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from dataprep.errors import UsageError, install_hint

_PACKAGE = "jinja2"
Tone = Literal["accent", "warn", "rest"]
"""Colour of a bar, by its name in the page's style."""
SVG_UNITS = 1000
"""Width and height of the coordinate system of an area's paths; the page scales it to any size."""
MOST_TICKS = 6
_LEAST_SPAN = 1e-9
"""Smallest range with ticks: in smaller ones, rounding would swallow the steps."""


def has_report_packages() -> bool:
    """Return whether the package that renders pages is installed."""
    return find_spec(_PACKAGE) is not None


def require_report_packages() -> None:
    """Raise UsageError unless the package that renders pages is installed."""
    if not has_report_packages():
        raise UsageError(f"`html` needs {_PACKAGE}, which is not installed: {install_hint('report')}")


def render_page(template: str, package: str = "dataprep", script: str | None = None, **values: Any) -> str:
    """Render a page, escaping every value.

    Args:
        template: Name of a file in the package's `data` folder.
        package: Package of the template, which can also extend and import templates of `dataprep`.
        script: File in the same folder that is the page's only script; None for a page without one.
        values: Values for the template, by the names that it uses.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    folders = [PackageLoader(name, "data") for name in dict.fromkeys((package, "dataprep"))]
    environment = Environment(
        loader=ChoiceLoader(folders), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    source = files(package).joinpath("data", script).read_text(encoding="utf-8") if script else ""
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return environment.get_template(template).render(values, script=Markup(source), script_digest=digest)


def write_page(page: str, path: Path) -> None:
    """Write a page to a file. Raises UsageError if that is impossible."""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"`html` {path}: cannot be written ({error.strerror}); choose another file") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A named value, and the range in which it was measured."""

    name: str
    value: float
    smallest: float
    largest: float
    tone: Tone
    text: str
    """The value as text, shown next to the bar."""
    detail: str = ""
    """Additional text for the name, in small letters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnBar:
    """A bar and its lengths."""

    bar: Bar
    length: float
    start: float
    """Start of the measured range."""
    end: float
    """End of the measured range; equal to `start` if all measurements were the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BarChart:
    """Bars, one below the other."""

    title: str
    bars: tuple[DrawnBar, ...]
    target: float | None
    """Position of a dashed line; None for no line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bin:
    """One bin of a histogram."""

    label: str
    text: str
    """Count and share of the bin, such as `1,200 · 12 %`; empty if the count is 0."""
    length: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A value on an axis, and its position."""

    place: float
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class AreaChart:
    """Stacked layers as SVG paths, in coordinates of SVG_UNITS with the origin at the top left."""

    title: str
    paths: tuple[str, ...]
    """Paths of the layers, the lowest first."""
    grid: str
    """Path with a line at the height of each tick."""
    across: tuple[Tick, ...]
    upward: tuple[Tick, ...]


def bar_chart(title: str, bars: Sequence[Bar], target: float | None = None) -> BarChart:
    """Lay out bars, from top to bottom, relative to the longest finite one, or to a longer target, which a dashed line
    marks; an infinite bar is as long. Screen readers read the title."""
    values = [*(bar.largest for bar in bars), target or 0.0]
    most = max(filter(math.isfinite, values)) or 1.0
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
    """Lay out stacked layers, each with a value for every span between two edges; values above `highest` are cut off.

    Args:
        edges: Edges of the spans, ascending; one more than spans.
        layers: Values of each layer, the lowest layer first.
        highest: Value at the upper end of the chart.
        whole: Whether ticks are whole numbers, because the values are counts.
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
    """Return up to MOST_TICKS round values, at intervals of 1, 2 or 5 times a power of ten, and their positions."""
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
    """Return the outline of the area between two step functions: right along the upper one, back along the lower."""
    forth = "".join(f"V{_y(height)}H{_x(right)}" for _, right, height in _stairs(x, upper))
    back = "".join(f"V{_y(height)}H{_x(left)}" for left, _, height in reversed(_stairs(x, lower)))
    return f"M0 {_y(lower[0])}{forth}{back}Z"


def _stairs(x: Sequence[float], heights: Sequence[float]) -> list[tuple[float, float, float]]:
    """Return steps as left end, right end and height; neighbours of equal height become one, which saves thousands."""
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
