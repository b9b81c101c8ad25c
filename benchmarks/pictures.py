"""Draw what resume.py and loader_arena.py found, in .bench-venv.

.bench-venv/bin/python benchmarks/pictures.py resume docs/resume.png < benchmarks/results/resume.json
.bench-venv/bin/python benchmarks/pictures.py arena docs/arena.png < benchmarks/results/arena.json
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

import matplotlib

matplotlib.use("agg")  # no display

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch, Rectangle
from tables import ARENA_FORMATS, resume_change, resume_outcome

COLOURS = {"exact": ("#cfe4f5", "#0b3c5d"), "wrong": ("#f6b26b", "#4a2500"), "refused": ("#5f6670", "#ffffff")}
"""Background and text of a cell. Blue, orange and dark grey differ for every kind of colour vision, and in print."""
LEGEND = {
    "exact": "every sample exactly once",
    "wrong": "samples repeated or never seen",
    "refused": "does not resume",
}
NAME_WIDTH = 2.75
"""Width of the loaders' names, in columns."""
ROW_INCHES, COLUMN_INCHES = 0.42, 1.08
DPI = 150


def draw_arena(document: dict[str, Any], path: str) -> None:
    """Write bars: processor time and images/s of each loader at 224 pixels, bicubic, ours in blue."""
    rows = [
        (row["name"], *(statistics.median(row[each]) for each in ("rounds_cpu_ms", "rounds_images_per_s")))
        for row in document["rows"]
        if (row["image_size"], row["interpolation"]) == (224, "bicubic") and row["name"] not in ARENA_FORMATS
    ]
    rows.sort(key=lambda row: row[1], reverse=True)
    names = [name for name, _, _ in rows]
    colours = [COLOURS["exact"][1] if name.startswith("ours") else COLOURS["wrong"][0] for name in names]
    figure, axes = plt.subplots(1, 2, figsize=(10, 0.6 + 0.3 * len(rows)), dpi=DPI, sharey=True, layout="constrained")
    titles = ("CPU ms an image (less is better)", "images/s on two cores (more is better)")
    for number, (plot, title) in enumerate(zip(axes, titles, strict=True), start=1):
        bars = plot.barh(names, [row[number] for row in rows], color=colours)
        plot.bar_label(bars, fmt="{:,.2f}" if number == 1 else "{:,.0f}", padding=3, fontsize=8)
        plot.set_title(title, fontsize=10)
        plot.spines[["top", "right"]].set_visible(False)
        plot.margins(x=0.12)
    figure.savefig(path)


def draw_resume(document: dict[str, Any], path: str) -> None:
    """Write the picture."""
    rows = document["rows"]
    changes = [resume_change(change["ranks"]) for change in rows[0]["changes"]]
    width, height = len(changes) + NAME_WIDTH, len(rows) + 3.1
    figure = plt.figure(figsize=(width * COLUMN_INCHES, height * ROW_INCHES), dpi=DPI, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    stopped = f"{document['taken_before_the_stop']:,} of {document['samples']:,} samples"
    axes.text(0.12, 0.62, f"An epoch stopped after {stopped}, and resumed on another number of ranks", weight="bold")
    for column, change in enumerate(changes):
        axes.text(NAME_WIDTH + column + 0.5, 1.5, change, ha="center", va="center", weight="bold", fontsize=10)
    for number, row in enumerate(rows):
        middle = 2.0 + number + 0.5
        ours = "bold" if number == 0 else "normal"
        axes.text(0.12, middle, f"{row['loader']} {row['version']}", va="center", fontsize=10, weight=ours)
        for column, change in enumerate(row["changes"]):
            _draw_cell(axes, NAME_WIDTH + column, middle, change)
    _draw_legend(axes, 2.0 + len(rows) + 0.55)
    figure.savefig(path)


def _draw_cell(axes: Any, left: float, middle: float, change: dict[str, Any]) -> None:
    kind, text = resume_outcome(change)
    background, foreground = COLOURS[kind]
    size = {"width": 0.94, "height": 0.88}
    axes.add_patch(Rectangle((left + 0.03, middle - 0.44), facecolor=background, linewidth=0, **size))
    lines = text.replace(", ", "\n")
    axes.text(left + 0.5, middle, lines, ha="center", va="center", color=foreground, fontsize=9, linespacing=1.05)


def _draw_legend(axes: Any, middle: float) -> None:
    left = 0.12
    for kind, text in LEGEND.items():
        shape = FancyBboxPatch((left, middle - 0.2), 0.16, 0.4, boxstyle="square,pad=0", linewidth=0)
        shape.set_facecolor(COLOURS[kind][0])
        axes.add_patch(shape)
        axes.text(left + 0.24, middle, text, va="center", fontsize=9.5)
        left += 0.55 + len(text) * 0.075


if __name__ == "__main__":
    {"resume": draw_resume, "arena": draw_arena}[sys.argv[1]](json.load(sys.stdin), sys.argv[2])
