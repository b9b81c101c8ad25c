"""A diagnosis as one self-contained HTML page; docs/bottleneck.md says how to read it.

Numbers become text here and in wording.py; the template places them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from dataprep.dataset.documents import JsonObject
from dataprep.messages import human_bytes
from dataprep.pages import Bar, BarChart, Tone, area_chart, bar_chart, render_page
from loaders.diagnosis.findings import Diagnosis, Fix, StageRate, StepTimes
from loaders.metrics.earlier import Comparison
from loaders.report import terminal

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
        tone="good" if found.utilisation >= terminal.PASSES and not found.undecided else "warn",
        subject=(found.device, found.url),
        found=_found(found),
        beside=comparison,
        facts=_facts(found.machine, found.settings),
    )


def _found(found: Diagnosis) -> JsonObject:
    best = found.fixes[0] if found.fixes else None
    sentence = terminal.no_change_sentence(found).rstrip(".")
    none = sentence[0].lower() + sentence[1:]
    return {
        "numbers": [
            (terminal.rate(found.observed_images_per_s), "images/s observed"),
            (terminal.rate(terminal.compute_rate(found)), "images/s the accelerator takes"),
            (terminal.rate(found.predicted_images_per_s), "images/s predicted from the stages"),
            (f"× {best.gain:.2f}", f"by the best change, {best.name}") if best else ("–", none),
        ],
        "undecided": found.undecided,
        "utilisation": found.utilisation,
        "passes": terminal.PASSES,
        "transform": terminal.transform_note(found),
        "contention": found.contention,
        "lower_bounds": terminal.lower_bounds_note(found),
        "cores_limit": found.limit == "cores",
        "stages": [_stage(found, stage) for stage in terminal.in_order(found.stages)],
        "rates": _rates(found),
        "attainable": terminal.attainable_sentence(found),
        "bytes_per_image": human_bytes(found.bytes_per_image),
        "shares": [
            ("wait", found.wait_share, "for a batch"),
            ("transfer", found.transfer_share, "that the device waits for"),
            ("compute", found.compute_share, "the model's step"),
        ],
        "timeline": _timeline(found.timeline),
        "rate_names": ["predicted", "tried"] + (["applied"] if found.applied else []),
        "fixes": [_fix(found, fix) for fix in found.fixes],
        "no_change": terminal.no_change_sentence(found),
    }


def _stage(found: Diagnosis, stage: StageRate) -> JsonObject:
    return {
        "name": stage.name,
        "work": STAGE_WORK[stage.name],
        "rate": terminal.rate(stage.images_per_s),
        "busy": terminal.busy_share(found, stage),
        "busy_words": terminal.busy_words(found, stage),
        "cpu": f"{1e3 * stage.cpu_s_per_image:.2f} ms CPU an image",
        "limits": stage.name in terminal.limiting_stages(found),
    }


def _rates(found: Diagnosis) -> BarChart:
    """Return the rate of each stage alone, and of all together as predicted and as observed."""
    limits = terminal.limiting_stages(found) - {"compute"}
    rows = [
        _rate_bar(f"{stage.name} alone", stage.images_per_s, "warn" if stage.name in limits else "rest")
        for stage in terminal.in_order(found.stages)
    ]
    rows.append(_rate_bar("all together, predicted", found.predicted_images_per_s, "rest"))
    rows.append(_rate_bar("all together, observed", found.observed_images_per_s, "accent"))
    return _bars("Rates against what the accelerator takes", rows, terminal.compute_rate(found))


def _rate_bar(name: str, images_per_s: float, tone: Tone) -> Bar:
    return Bar(
        name=name,
        value=images_per_s,
        smallest=images_per_s,
        largest=images_per_s,
        tone=tone,
        text=terminal.rate(images_per_s),
    )


def _bars(title: str, bars: Sequence[Bar], target: float) -> BarChart:
    if math.isinf(target):  # the rate of a simulated device that takes no time
        target = max((bar.value for bar in bars if not math.isinf(bar.value)), default=1.0)
    return bar_chart(title, bars, target)


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


def _fix(found: Diagnosis, fix: Fix) -> JsonObject:
    return {
        "name": fix.name,
        "advice": fix.advice,
        "rates": terminal.change_rates(found, fix),
        "gain": f"× {fix.gain:.2f}",
        "needs": terminal.NEEDS[fix.needs],
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
