"""CPU time and bytes that an image costs each loader: our measurements (`dataprep/data/input_costs.csv`), or a user's.

A user's measurements come from the JSON of `dataprep bench` (`loaders/bench/table.py`) or of `dataprep diagnose`
(`loaders/diagnosis/findings.py`).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

from msgspec import Struct, field

from dataprep.dataset.documents import convert
from dataprep.errors import UndecidedError, UsageError
from loaders.capacity.plan import ImageCost


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredCost:
    """One row of the table of measurements."""

    image_size: int
    """Side of the delivered images, pixels."""
    cost: ImageCost
    date: str
    machine: str
    """Processor of the machine that measured."""


CostTable: TypeAlias = Mapping[str, tuple[MeasuredCost, ...]]
"""Measurements by loader, those of the smallest images first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredFile:
    """Costs that a user measured."""

    costs: Mapping[str, ImageCost]
    """Costs by loader."""
    image_size: int | None
    """Side of the images that were delivered; None where the document does not say."""
    url: str | None
    """The dataset that was read; None where the document names none or several."""


class _Settings(Struct):
    """What is read of the settings of a measurement."""

    image_size: int | None = None


class _BenchSection(Struct):
    bytes_per_image: float
    cpu_ms_per_image: float
    url: str | None = None


class _Bench(Struct):
    """What is read of the JSON of `dataprep bench`."""

    sections: list[_BenchSection]
    settings: _Settings = field(default_factory=_Settings)


class _Stage(Struct):
    name: str
    cpu_s_per_image: float


class _Diagnosis(Struct):
    """What is read of the JSON of `dataprep diagnose`."""

    stages: list[_Stage]
    bytes_per_image: float
    url: str | None = None
    settings: _Settings = field(default_factory=_Settings)


@cache
def measured_here() -> CostTable:
    """Return our table of measurements."""
    return costs_in(resources.files("dataprep").joinpath("data/input_costs.csv").read_text(encoding="utf-8"))


def costs_in(text: str) -> CostTable:
    """Return the measurements in the text of a table such as `dataprep/data/input_costs.csv`."""
    found: dict[str, tuple[MeasuredCost, ...]] = {}
    for row in csv.DictReader(line for line in text.splitlines() if not line.startswith("#")):
        cost = ImageCost(
            loader=row["loader"],
            cpu_ms=float(row["cpu_ms_per_image"]),
            stored_ms=float(row["stored_ms_per_image"]),
            num_bytes=float(row["bytes_per_image"]),
            decodes="whole" if row["decodes"] == "whole" else "crop",
        )
        measured = MeasuredCost(image_size=int(row["image_size"]), cost=cost, date=row["date"], machine=row["machine"])
        found[cost.loader] = (*found.get(cost.loader, ()), measured)
    return found


def cost_from_table(loader: str, image_size: int, bytes_per_image: float, table: CostTable | None = None) -> ImageCost:
    """Return what an image of this size costs a loader, by our own table of measurements or by another one.

    Between and beyond two measured sizes the cost is assumed to be linear in the delivered pixels. The part of it that
    grows with the stored pixels is assumed to be linear in the stored bytes.

    Raises:
        UndecidedError: The loader was not measured at this size.
    """
    rows = (measured_here() if table is None else table)[loader]
    row = next((row for row in rows if row.image_size == image_size), None)
    if row is None and len(rows) > 1:
        row = _between(rows[0], rows[-1], image_size)
    if row is None:
        raise UndecidedError(
            f"{loader} at {image_size} pixels was not measured, only at {rows[0].image_size}; measure it with "
            "`dataprep bench` and give --measured FILE, or --cpu-ms-per-image"
        )
    stored_ms = row.cost.stored_ms * bytes_per_image / row.cost.num_bytes
    return replace(
        row.cost,
        cpu_ms=row.cost.cpu_ms - row.cost.stored_ms + stored_ms,
        stored_ms=stored_ms,
        num_bytes=bytes_per_image,
    )


def costs_from_document(document: Any, name: str) -> MeasuredFile:
    """Return the costs in the JSON of `dataprep bench --json` or `dataprep diagnose --json`.

    Of several sections the costliest one counts. The part that grows with the stored pixels has the same
    share as in our own measurements.

    Args:
        document: Parsed document.
        name: Name of the file, for errors.

    Raises:
        UsageError: The document is not the JSON of either command, or has no CPU time above 0.
    """
    if not isinstance(document, dict) or document.get("schema_version") != 1:
        raise UsageError(
            f"{name}: expected the JSON that `dataprep bench` or `dataprep diagnose` writes, of schema version 1"
        )
    where, advice = f"{name}: not the JSON of `dataprep bench` or `dataprep diagnose`", "measure again"
    if "stages" in document:
        diagnosis = convert(document, _Diagnosis, where=where, advice=advice, error=UsageError)
        found, settings, urls = _diagnosed(diagnosis), diagnosis.settings, {diagnosis.url}
    else:
        bench = convert(document, _Bench, where=where, advice=advice, error=UsageError)
        found, settings, urls = _benched(bench), bench.settings, {section.url for section in bench.sections}
    costs = {cost.loader: cost for cost in sorted(found, key=lambda cost: cost.cpu_ms)}
    if not costs or min(cost.cpu_ms for cost in costs.values()) <= 0:
        raise UsageError(f"{name}: no loader has a CPU time above 0 in it; measure for longer")
    return MeasuredFile(costs=costs, image_size=settings.image_size, url=urls.pop() if len(urls) == 1 else None)


def measured_cost(loader: str, cpu_ms: float, bytes_per_image: float) -> ImageCost:
    """Return a measured cost; its part for stored pixels has the share of this loader in our table, or else of ours."""
    row = measured_here().get(loader, measured_here()["dataprep"])[0].cost
    stored_ms = cpu_ms * row.stored_ms / row.cpu_ms
    return ImageCost(loader=loader, cpu_ms=cpu_ms, stored_ms=stored_ms, num_bytes=bytes_per_image, decodes=row.decodes)


def _between(low: MeasuredCost, high: MeasuredCost, image_size: int) -> MeasuredCost:
    share = (image_size**2 - low.image_size**2) / (high.image_size**2 - low.image_size**2)
    cpu_ms = low.cost.cpu_ms + share * (high.cost.cpu_ms - low.cost.cpu_ms)
    stored_ms = min(cpu_ms, low.cost.stored_ms + share * (high.cost.stored_ms - low.cost.stored_ms))
    return replace(low, image_size=image_size, cost=replace(low.cost, cpu_ms=cpu_ms, stored_ms=max(0.0, stored_ms)))


def _benched(bench: _Bench) -> list[ImageCost]:
    return [measured_cost("dataprep", section.cpu_ms_per_image, section.bytes_per_image) for section in bench.sections]


def _diagnosed(diagnosis: _Diagnosis) -> list[ImageCost]:
    """Return what the stages of our loader cost; nothing where one of them is missing."""
    cpu_s = {stage.name: stage.cpu_s_per_image for stage in diagnosis.stages}
    if not {"fetch", "prepare"} <= cpu_s.keys():
        return []
    return [measured_cost("dataprep", 1e3 * (cpu_s["fetch"] + cpu_s["prepare"]), diagnosis.bytes_per_image)]
