"""How fast a core of a TPU's host is, relative to the core on which the cost of an image was measured.

The figures are `dataprep/data/host_cores.csv`; every row says what it rests on.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from loaders.capacity.plan import ImageCost


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCores:
    """Cores of the hosts of a TPU generation."""

    processor: str
    """Name of the processor; empty if no source states it."""
    processor_source: str
    speed: float
    """Images a second that a core prepares, over those of a core of the machine `relative_to`."""
    relative_to: str
    """Processor of the machine that measured our table of costs."""
    basis: str
    """What kind of evidence the speed has: measured, published case, or assumed."""
    ground: str
    """What the speed rests on."""


@cache
def host_cores() -> Mapping[str, HostCores]:
    """Return the cores of hosts by TPU generation."""
    text = resources.files("dataprep").joinpath("data/host_cores.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {
        row["generation"]: HostCores(
            processor=row["processor"],
            processor_source=row["processor_source"],
            speed=float(row["core_speed"]),
            relative_to=row["relative_to"],
            basis=row["basis"],
            ground=row["ground"],
        )
        for row in rows
    }


def cost_on_host(cost: ImageCost, core_speed: float) -> ImageCost:
    """Return a measured cost as it is on a host whose cores are so fast, relative to the one that measured it."""
    return replace(cost, cpu_ms=cost.cpu_ms / core_speed, stored_ms=cost.stored_ms / core_speed)
