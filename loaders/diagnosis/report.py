"""A diagnosis as a text for a terminal, and as one self-contained HTML page; docs/bottleneck.md says how to read it.

The verdict comes first, then the stages, the parts of a step and the changes. Numbers become text here; the template
places them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dataprep.dataset.documents import JsonObject
from dataprep.messages import human_bytes, printable
from dataprep.pages import Bar, BarChart, Tone, area_chart, bar_chart, render_page
from loaders.diagnosis.findings import MIN_GAIN, STAGES, Diagnosis, Fix, StageRate, StepTimes
from loaders.diagnosis.prediction import COMPUTE_BOUND
from loaders.diagnosis.verdict import bound_of, is_main, transform_sentence
from loaders.metrics.earlier import Comparison

PASSES = 0.9
"""Utilisation of the accelerator at which a run passes MLPerf Storage."""
NEEDS = {"restart": "another run", "rebuild": "the dataset built again", "copy": "the dataset copied"}
SHARES_CORES = 0.25
"""Share of an image's CPU time from which on a stage is marked if the cores are the limit."""


def rate(images_per_s: float) -> str:
    """Return a rate as text: `1,840`, `3.2`, or `no limit`."""
    if math.isinf(images_per_s):
        return "no limit"
    return f"{images_per_s:,.0f}" if images_per_s >= 10 else f"{images_per_s:.2g}"


def percent(share: float) -> str:
    """Return a share as text: `43 %`."""
    return f"{100 * share:.0f} %"


def busy_share(found: Diagnosis, stage: StageRate) -> float:
    """Return the share of the time in which a stage is busy at the observed rate."""
    return min(1.0, found.observed_images_per_s / stage.images_per_s)


def busy_words(found: Diagnosis, stage: StageRate) -> str:
    """Return `busy_share` as text: `≤ 100 %` of a stage that was clearly slower alone than in the run, so that its rate
    alone is only a lower bound."""
    return f"{'≤ ' if is_lower_bound(found, stage) else ''}{percent(busy_share(found, stage))}"


def is_lower_bound(found: Diagnosis, stage: StageRate) -> bool:
    """Whether a stage alone was slower than the run by more than such measurements differ."""
    return stage.images_per_s < COMPUTE_BOUND * found.observed_images_per_s


def lower_bounds_note(found: Diagnosis) -> str:
    """Return sentences about stages that were slower alone than in the run, and the sign `≤`; empty if none."""
    notes = []
    alone, in_run = found.compute_alone_images_per_s, compute_rate(found)
    if not found.undecided and 0 < alone < COMPUTE_BOUND * in_run:
        notes.append(
            f"Alone the accelerator took {rate(alone)} images/s, in the steps of this run {rate(in_run)}: something "
            f"slowed it down while it was measured alone, and {rate(in_run)} is a lower bound of what it takes."
        )
    for stage in in_order(found.stages):
        if is_lower_bound(found, stage):
            notes.append(
                f"≤: the rate of {stage.name} alone is a lower bound, {rate(stage.images_per_s)} images/s, while the "
                f"run made {rate(found.observed_images_per_s)}; so it may be busy for less of the time."
            )
    return " ".join(notes)


def limiting_stages(found: Diagnosis) -> set[str]:
    """Return the limiting stage, none if undecided; if the cores are the limit, the stages that use most of them."""
    if found.undecided:
        return set()
    if found.limit != "cores":
        return {found.limit}
    cpu_s = sum(stage.cpu_s_per_image for stage in found.stages)
    return {stage.name for stage in found.stages if stage.cpu_s_per_image >= SHARES_CORES * cpu_s > 0}


def in_order(stages: Iterable[StageRate]) -> list[StageRate]:
    """Sort stages in the order in which an image passes them."""
    return sorted(stages, key=lambda stage: STAGES.index(stage.name))


def compute_rate(found: Diagnosis) -> float:
    """Return the images/s that the accelerator can take."""
    return next(stage.images_per_s for stage in found.stages if stage.name == "compute")


def change_rates(found: Diagnosis, fix: Fix) -> dict[str, str]:
    """Return the images/s of a change by origin: `predicted`, and `tried` and `applied` if it was run."""
    rates = {"predicted": rate(fix.predicted_images_per_s)}
    if fix.is_tried:
        rates["tried"] = rate(fix.images_per_s)
    if found.applied is not None and found.applied.name == fix.name:
        rates["applied"] = rate(found.applied.measured_images_per_s)
    return rates


def attainable_sentence(found: Diagnosis) -> str:
    """Return a sentence about the best division of the cores; empty if that gains little, or is undecided."""
    if found.undecided or found.attainable_images_per_s < MIN_GAIN * found.observed_images_per_s:
        return ""
    cores = ", ".join(f"{name} {count:.1f}" for name, count in found.allocation.items() if count >= 0.05)
    divided = f" ({cores} cores)" if cores else ""
    return f"With the best division of the cores: {rate(found.attainable_images_per_s)} images/s{divided}."


def transform_note(found: Diagnosis) -> str:
    """Return sentences about the user's transform: its part of preparing, and a run without it; empty without one."""
    transform = found.transform
    if transform is None:
        return ""
    note = f"{transform_sentence(transform)}, {1e3 * transform.cpu_s_per_image:.1f} ms of them CPU time."
    if transform.holds_lock:
        note += (
            " It holds the interpreter lock: the threads of a process take turns in it, so a process prepares at "
            f"most {rate(1 / transform.cpu_s_per_image)} images/s, whatever its number of threads. Worker processes "
            "have a lock each."
        )
    if (bound := bound_of(transform)) is None:
        return note
    source = "tried" if bound.is_tried else "predicted"
    return (
        f"{note} Without it: × {bound.gain:.2f}, {rate(bound.images_per_s)} images/s {source}, then limited by "
        f"{bound.limit}. That is a bound for a faster transform; no option brings it."
    )


def no_change_sentence(found: Diagnosis) -> str:
    """Return the sentence for a diagnosis without changes."""
    if found.undecided:
        return "No change was tried."
    if found.transform is not None and bound_of(found.transform) is not None:
        return "No setting helps; a faster transform does."
    cpu_s = sum(stage.cpu_s_per_image for stage in found.stages)
    if found.transform is not None and is_main(found.transform, found.limit, cpu_s):
        return "No setting helps."
    return "No single change divides the cores so." if attainable_sentence(found) else "No single change helps."


_BAR_CHARACTERS = 12
_STEP_CHARACTERS = 60
_PARTS = (("wait", "█", "red"), ("transfer", "▓", "yellow"), ("compute", "░", "blue"))
"""Parts of a step with their characters and colours; the characters alone tell them apart, too."""


def diagnosis_text(found: Diagnosis) -> RenderableType:
    """Return a diagnosis for `rich` to print, readable at 80 columns."""
    used = (
        f"{rate(found.observed_images_per_s)} of the accelerator's {rate(compute_rate(found))} images/s: "
        f"{percent(found.utilisation)} used (MLPerf asks for {percent(PASSES)})"
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
            for note in (transform_note(found), found.contention, lower_bounds_note(found), attainable_sentence(found))
            if note
        ),
        "",
        *_steps(found),
        "",
        _fixes(found) if found.fixes else _line(no_change_sentence(found)),
    ]
    return Group(*lines)


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


TEMPLATE = "report.html.j2"
STAGE_WORK = {
    "fetch": "reads from disk or bucket",
    "prepare": "decodes, crops, resizes",
    "transfer": "host to device",
    "compute": "the training step",
}
PLOT_MEDIANS = 3
"""Height of the plot of steps, in median steps: in a higher plot a single slow step would flatten all others."""


def diagnosis_page(found: Diagnosis, comparison: Comparison | None = None) -> str:
    """Return the page of a diagnosis."""
    headline, *more = re.split(r"(?<=[.!?]) (?=[A-Z])", found.verdict, maxsplit=1)
    return render_page(
        TEMPLATE,
        "loaders",
        headline=headline,
        more="".join(more),
        tone="good" if found.utilisation >= PASSES and not found.undecided else "warn",
        subject=(found.device, found.url),
        found=_found(found),
        beside=comparison,
        facts=_facts(found.machine, found.settings),
    )


def _found(found: Diagnosis) -> JsonObject:
    best = found.fixes[0] if found.fixes else None
    sentence = no_change_sentence(found).rstrip(".")
    none = sentence[0].lower() + sentence[1:]
    return {
        "numbers": [
            (rate(found.observed_images_per_s), "images/s observed"),
            (rate(compute_rate(found)), "images/s the accelerator takes"),
            (rate(found.predicted_images_per_s), "images/s predicted from the stages"),
            (f"× {best.gain:.2f}", f"by the best change, {best.name}") if best else ("–", none),
        ],
        "undecided": found.undecided,
        "utilisation": found.utilisation,
        "passes": PASSES,
        "transform": transform_note(found),
        "contention": found.contention,
        "lower_bounds": lower_bounds_note(found),
        "cores_limit": found.limit == "cores",
        "stages": [_stage(found, stage) for stage in in_order(found.stages)],
        "rates": _rates(found),
        "attainable": attainable_sentence(found),
        "bytes_per_image": human_bytes(found.bytes_per_image),
        "shares": [
            ("wait", found.wait_share, "for a batch"),
            ("transfer", found.transfer_share, "that the device waits for"),
            ("compute", found.compute_share, "the model's step"),
        ],
        "timeline": _timeline(found.timeline),
        "rate_names": ["predicted", "tried"] + (["applied"] if found.applied else []),
        "fixes": [_fix_row(found, fix) for fix in found.fixes],
        "no_change": no_change_sentence(found),
    }


def _stage(found: Diagnosis, stage: StageRate) -> JsonObject:
    return {
        "name": stage.name,
        "work": STAGE_WORK[stage.name],
        "rate": rate(stage.images_per_s),
        "busy": busy_share(found, stage),
        "busy_words": busy_words(found, stage),
        "cpu": f"{1e3 * stage.cpu_s_per_image:.2f} ms CPU an image",
        "limits": stage.name in limiting_stages(found),
    }


def _rates(found: Diagnosis) -> BarChart:
    """Return the rate of each stage alone, and of all together as predicted and as observed."""
    limits = limiting_stages(found) - {"compute"}
    rows = [
        _rate_bar(f"{stage.name} alone", stage.images_per_s, "warn" if stage.name in limits else "rest")
        for stage in in_order(found.stages)
    ]
    rows.append(_rate_bar("all together, predicted", found.predicted_images_per_s, "rest"))
    rows.append(_rate_bar("all together, observed", found.observed_images_per_s, "accent"))
    target = compute_rate(found)
    if math.isinf(target):  # the rate of a simulated device that takes no time
        target = max((bar.value for bar in rows if not math.isinf(bar.value)), default=1.0)
    return bar_chart("Rates against what the accelerator takes", rows, target)


def _rate_bar(name: str, images_per_s: float, tone: Tone) -> Bar:
    value = images_per_s
    return Bar(name=name, value=value, smallest=value, largest=value, tone=tone, text=rate(value))


def _timeline(steps: Sequence[StepTimes]) -> JsonObject | None:
    """Return the stacked parts of every step, ms, over the seconds since the first step."""
    parts_ms = [[1e3 * part for part in (step.compute_s, step.transfer_s, step.wait_s)] for step in steps]
    whole_ms = [sum(parts) for parts in parts_ms]
    if not any(whole_ms):
        return None
    highest_ms = 1.05 * min(max(whole_ms), PLOT_MEDIANS * median(whole_ms)) or 1.0
    edges_s = [*(step.started_s for step in steps), steps[-1].started_s + whole_ms[-1] / 1e3]
    chart = area_chart("Parts of every step, milliseconds", edges_s, list(zip(*parts_ms, strict=True)), highest_ms)
    cut = sum(whole > highest_ms for whole in whole_ms)
    more = f"; {cut} longer than the plot is high, up to {max(whole_ms):,.0f} ms" if cut else ""
    return {"chart": chart, "caption": f"{len(steps):,} steps, median {median(whole_ms):,.1f} ms{more}"}


def _fix_row(found: Diagnosis, fix: Fix) -> JsonObject:
    return {
        "name": fix.name,
        "advice": fix.advice,
        "rates": change_rates(found, fix),
        "gain": f"× {fix.gain:.2f}",
        "needs": NEEDS[fix.needs],
        "limit": fix.limit,
    }


def _facts(machine: Mapping[str, Any], settings: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    titled = (("Machine", machine), ("Settings", settings))
    return [(title, [_fact(name, value) for name, value in facts.items()]) for title, facts in titled if facts]


def _fact(name: str, value: Any) -> tuple[str, str]:
    if name.endswith("_bytes") and isinstance(value, int):
        return name.removesuffix("_bytes"), human_bytes(value)
    return name, _words(value) or "–"


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
