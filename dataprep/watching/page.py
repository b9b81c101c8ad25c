"""A run as a page: what a look found in large numbers, and how it went since the page was opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from dataprep.messages import duration
from dataprep.pages.charts import AreaChart, Bar, BarChart, area_chart, bar_chart
from dataprep.pages.page import render_page
from dataprep.watching.snapshots import (
    ABSENT,
    BUILDING,
    ENDED,
    SILENT_AFTER_S,
    TRAINING,
    WHOLE,
    BuildSnapshot,
    Snapshot,
    TrainingSnapshot,
)

MOST_POINTS = 240
"""Points of a curve: one for five of its pixels at the page's full width."""
_MINUTE_S, _HOUR_S = 60.0, 3600.0


@dataclass(frozen=True)
class _Curve:
    chart: AreaChart
    across: str
    """Unit of the horizontal axis, with the space before it."""


@dataclass(frozen=True)
class _View:
    progress: BarChart | None = None
    numbers: Sequence[tuple[str, str]] = ()
    """Numbers in large type, each with what it counts."""
    curve: _Curve | None = None
    reasons: Sequence[tuple[str, str, int]] = ()
    """What happened to images, why, and to how many."""


class Course:
    """Finished samples of a build since the page was opened. Of a long course only every second look is kept, then
    every second of these, so that its latest part is the finest."""

    def __init__(self) -> None:
        self.points: list[tuple[float, int]] = []
        """Seconds since the first look, ascending, and samples; at most MOST_POINTS."""
        self._first_s = 0.0

    def saw(self, now_s: float, samples: int) -> None:
        """Note a look; fewer samples than before are those of another build."""
        if not self.points or samples < self.points[-1][1]:
            self.points, self._first_s = [], now_s
        self.points.append((now_s - self._first_s, samples))
        if len(self.points) > MOST_POINTS:
            self.points = self.points[::2]


def watch_page(snapshot: Snapshot, course: Course, losses: Sequence[tuple[int, float]], interval_s: float) -> str:
    """Render the page.

    Args:
        snapshot: What the last look found.
        course: What the looks before found, of a build.
        losses: Steps of a training, ascending, each with its loss.
        interval_s: Time after which the page asks for the next look.
    """
    view = _View()
    heading = snapshot.url.rstrip("/").rpartition("/")[2]
    if isinstance(snapshot, BuildSnapshot):
        heading = f"{snapshot.name} as {snapshot.format}"
        view = _build(snapshot, course)
    elif isinstance(snapshot, TrainingSnapshot):
        view = _training(snapshot, losses)
    return render_page(
        "watch.html.j2",
        script="watch.js",
        title=f"{_share(snapshot)}{heading}",
        heading=heading,
        snapshot=snapshot,
        text=_text(snapshot),
        is_silent=_is_silent(snapshot),
        interval_ms=round(1000 * interval_s),
        view=view,
    )


def _is_silent(snapshot: Snapshot) -> bool:
    return snapshot.state in (BUILDING, TRAINING) and snapshot.idle_s >= SILENT_AFTER_S


def _text(snapshot: Snapshot) -> str:
    """Say in which state the run is."""
    texts = {
        BUILDING: "Building",
        TRAINING: "Training",
        ENDED: "The training has ended",
        WHOLE: "The dataset is whole",
        ABSENT: "No build and no training there yet",
    }
    parts = [texts[snapshot.state]]
    if isinstance(snapshot, BuildSnapshot) and snapshot.finished_shards == snapshot.shards:
        parts.append("index and manifest are being written")
    if isinstance(snapshot, TrainingSnapshot):
        absent = "no checkpoint there" if snapshot.state == ENDED else "no checkpoint yet"
        parts.append(f"saved {snapshot.checkpoint}" if snapshot.checkpoint else absent)
    if _is_silent(snapshot):
        parts.append(f"no progress for {duration(snapshot.idle_s)}")
    return f"{'; '.join(parts)}."


def _share(snapshot: Snapshot) -> str:
    """Return the finished share for the browser's tab."""
    if isinstance(snapshot, BuildSnapshot) and snapshot.shards:
        return f"{100 * snapshot.finished_shards // snapshot.shards} % · "
    return ""


def _build(snapshot: BuildSnapshot, course: Course) -> _View:
    done = Bar(
        name="Finished shards",
        value=snapshot.finished_shards,
        smallest=snapshot.finished_shards,
        largest=snapshot.finished_shards,
        tone="accent",
        text=f"{snapshot.finished_shards:,} of {snapshot.shards:,}",
    )
    rate, left_s = snapshot.images_per_s, snapshot.left_s
    troubles = {"repaired": snapshot.repaired, "rejected": snapshot.rejected}
    return _View(
        progress=bar_chart("Finished shards", [done], target=float(snapshot.shards)),
        numbers=[
            (f"{snapshot.finished_samples:,}", f"of {snapshot.samples:,} samples"),
            ("–" if rate is None else f"{rate:,.0f}", "images/s"),
            ("–" if left_s is None else duration(left_s), "left"),
            *((f"{sum(reasons.values()):,}", what) for what, reasons in troubles.items()),
        ],
        curve=_course_curve(course, snapshot.samples),
        reasons=[
            (what, reason, count)
            for what, reasons in troubles.items()
            for reason, count in sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
        ],
    )


def _course_curve(course: Course, samples: int) -> _Curve | None:
    if len(course.points) < 2 or not samples:
        return None
    span_s = course.points[-1][0]
    unit, name = (1.0, " s") if span_s < 2 * _MINUTE_S else (_MINUTE_S, " min")
    if span_s >= 2 * _HOUR_S:
        unit, name = _HOUR_S, " h"
    edges = [at_s / unit for at_s, _ in course.points]
    heights = [float(found) for _, found in course.points[1:]]
    chart = area_chart("Samples since this page was opened", edges, [heights], float(samples), whole=True)
    return _Curve(chart, name)


def _training(snapshot: TrainingSnapshot, losses: Sequence[tuple[int, float]]) -> _View:
    numbers = snapshot.numbers
    shown = [(f"{snapshot.step:,}", "step")] if snapshot.step is not None else []
    for name, label, form in (
        ("epoch", "epoch", "{:.2f}"),
        ("loss", "loss", "{:.4f}"),
        ("images_per_s", "images/s", "{:,.0f}"),
        ("wait_share", "of the time waiting for data", "{:.0%}"),
        ("val_loss", "loss (validation)", "{:.4g}"),
        ("val_accuracy", "accuracy (validation)", "{:.4g}"),
    ):
        if name in numbers:
            shown.append((form.format(numbers[name]), label))
    return _View(numbers=shown, curve=_loss_curve(losses))


def _loss_curve(losses: Sequence[tuple[int, float]]) -> _Curve | None:
    """Lay out the loss over the steps, as means of equally many logged steps where there are more than MOST_POINTS."""
    if len(losses) < 2:
        return None
    together = -(-len(losses) // MOST_POINTS)
    groups = [losses[start : start + together] for start in range(0, len(losses), together)]
    heights = [fmean(loss for _, loss in group) for group in groups]
    highest = max(heights)
    if highest <= 0:
        return None
    edges = [float(group[0][0]) for group in groups] + [float(losses[-1][0] + 1)]
    return _Curve(area_chart("Loss over the last logged steps", edges, [heights], highest), across="")
