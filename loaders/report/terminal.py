"""A diagnosis for a terminal: the verdict first, then the stages, the parts of a step and the changes."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dataprep.messages import printable
from loaders.diagnosis.comparison import DiagnosisComparison
from loaders.diagnosis.findings import Diagnosis, Fix, Limit
from loaders.report.wording import (
    NEEDS,
    PASSES,
    attainable_sentence,
    busy_share,
    busy_words,
    change_rates,
    compute_rate,
    figure_words,
    in_order,
    limiting_stages,
    lower_bounds_note,
    no_change_sentence,
    percent,
    rate,
    transform_note,
)

_BAR_CHARACTERS = 12
_STEP_CHARACTERS = 60
_PARTS = (("wait", "█", "red"), ("transfer", "▓", "yellow"), ("compute", "░", "blue"))
"""Parts of a step with their characters and colours; the characters alone tell them apart, too."""


def diagnosis_text(found: Diagnosis) -> RenderableType:
    """Return a diagnosis for `rich` to print, readable at 80 columns."""
    used = (
        f"{rate(found.observed_images_per_s)} of {rate(compute_rate(found))} images/s that the accelerator takes: "
        f"{percent(found.utilisation)} used ({percent(PASSES)} is a pass)"
    )
    lines: list[RenderableType] = [
        _line(found.verdict, "bold"),
        "",
        _line(f"{found.device} · {found.url}", "dim"),
        *([] if found.undecided else [_line(used)]),
        "",
        _stages(found),
        "",
        _line(f"predicted together {rate(found.predicted_images_per_s)}, observed {rate(found.observed_images_per_s)}"),
        *(
            _line(note, "dim")
            for note in (
                transform_note(found),
                found.contention,
                lower_bounds_note(found),
                attainable_sentence(found),
            )
            if note
        ),
        "",
        *_steps(found),
        "",
        _fixes(found) if found.fixes else _line(no_change_sentence(found)),
    ]
    return Group(*lines)


def comparison_text(comparison: DiagnosisComparison, limit: Limit | None) -> RenderableType:
    """Return a comparison for `rich` to print, and first what differed besides the rates.

    Args:
        comparison: What is printed.
        limit: What limits the run now; None if that is undecided.
    """
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    table.add_row(*(Text(title, style="dim") for title in ("", "before", "now", "now / before")))
    for figure in comparison.figures:
        table.add_row(*figure_words(figure))
    lines = [_line(f"differs: {difference}", "yellow") for difference in comparison.differences]
    if lines:
        lines.append(_line("The ratios below hold these differences, too."))
    lines.append(_line(f"before: {comparison.before_verdict}", "dim"))
    if limit not in (None, comparison.before_limit):
        lines.append(_line(f"The limit was {comparison.before_limit}, and is {limit} now.", "bold"))
    return Group(*lines, table)


def _stages(found: Diagnosis) -> Table:
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "left", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    table.add_row(*(Text(title, style="dim") for title in ("stage", "images/s alone", "", "busy", "CPU ms/image", "")))
    limits = limiting_stages(found)
    for stage in in_order(found.stages):
        busy = busy_share(found, stage)
        limiting = stage.name in limits
        bar = _bar(busy, "yellow" if limiting else "blue")
        mark = ("shares the cores" if found.limit == "cores" else "the limit") if limiting else ""
        cpu_ms = f"{1e3 * stage.cpu_s_per_image:.2f}"
        style = "bold" if limiting else ""
        table.add_row(
            Text(stage.name, style), rate(stage.images_per_s), bar, busy_words(found, stage), cpu_ms, Text(mark, style)
        )
        if stage.name == "prepare" and found.transform is not None:
            part = busy * min(1.0, found.transform.s_per_image / found.transform.prepare_s_per_image)
            cpu_ms = f"{1e3 * found.transform.cpu_s_per_image:.2f}"
            table.add_row("  transform", "", _bar(part, "blue"), percent(part), cpu_ms, "")
    return table


def _bar(share: float, style: str) -> Text:
    bar = Text("█" * round(_BAR_CHARACTERS * share), style=style)
    bar.pad_right(_BAR_CHARACTERS - len(bar))
    return bar


def _steps(found: Diagnosis) -> list[Text]:
    """Return one bar of all three parts, and its legend."""
    bar, words = Text(), Text("a step: ")
    for name, character, colour in _PARTS:
        share = getattr(found, f"{name}_share")
        bar.append(character * round(_STEP_CHARACTERS * share), style=colour)
        words.append(character, style=colour).append(f" {name} {percent(share)}  ")
    return [words, bar]


def _fixes(found: Diagnosis) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right")
    for rank, fix in enumerate(found.fixes, start=1):
        table.add_row(f"{rank}.", _fix(found, fix))
    return table


def _fix(found: Diagnosis, fix: Fix) -> Text:
    text = Text(fix.name, style="bold")
    rates = ", ".join(f"{source} {images_per_s}" for source, images_per_s in change_rates(found, fix).items())
    gain = f": × {fix.gain:.2f}; images/s {rates}; then limited by {fix.limit}; "
    text.append(f"{gain}needs {NEEDS[fix.needs]}", style="not bold")
    return text.append(f"\n{printable(fix.advice)}", style="not bold dim")


def _line(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style, overflow="fold")
