"""What `dataprep diagnose` finds: rates of the stages, where a step's time goes, the verdict, and what would change it.

All rates are images/s of one host. `to_document` is the JSON that `--json` prints; docs/bottleneck.md describes it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

SCHEMA_VERSION = 1

Stage = Literal["fetch", "prepare", "transfer", "compute"]
STAGES: tuple[Stage, ...] = ("fetch", "prepare", "transfer", "compute")
"""In the order in which an image passes them."""
Limit = Literal["fetch", "prepare", "transfer", "compute", "cores"]
"""A stage, or the cores that several stages share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRate:
    """One stage alone, as it is set up now."""

    name: Stage
    images_per_s: float
    """With nothing else running."""
    cpu_s_per_image: float
    """Of the whole machine, other processes that serve this stage included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """One step as the training loop sees it, seconds."""

    started_s: float
    """Since the first step that is listed."""
    wait_s: float
    """For a batch."""
    transfer_s: float
    """Of the time in which the device waited for the batch to arrive; 0 where it travels during the step before."""
    compute_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """One change, and what it should bring."""

    name: str
    """`workers`, `prefetch`, `cache`, `resize`, `batch`, `transfer-ahead`, `location`, `decoder` or `format`."""
    settings: dict[str, Any]
    """What is set: fields of `LoaderConfig`, `transfer_ahead`, or `short_side` of a rebuilt dataset."""
    needs: Literal["restart", "rebuild", "copy"]
    """Another run with other settings; the dataset built again; or the dataset copied to another bucket."""
    images_per_s: float
    """Of a short run with it, where it was tried; otherwise predicted."""
    predicted_images_per_s: float
    """From the stages as they would be."""
    is_tried: bool
    gain: float
    """Over the observed rate: 1.0 changes nothing, 2.0 doubles it."""
    limit: Limit
    """What holds it back then."""
    advice: str
    """One line that says what to do, with the option or the command."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """The best fix that needs no rebuild, tried."""

    name: str
    settings: dict[str, Any]
    predicted_images_per_s: float
    measured_images_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """Everything that a report shows."""

    url: str
    device: str
    """As the device calls itself, e.g. `cpu (resnet50)` or `simulated:2000`."""
    verdict: str
    """One sentence: what is waited for, what to do, what it brings."""
    limit: Limit
    observed_images_per_s: float
    predicted_images_per_s: float
    """From the stages alone."""
    contention: str
    """Empty, or why the stages together are more than a tenth slower than alone."""
    utilisation: float
    """Of the accelerator: observed over compute alone, 0..1. MLPerf Storage passes at 0.9."""
    stages: tuple[StageRate, ...]
    wait_share: float
    """Of the time of all steps; the three add up to 1."""
    transfer_share: float
    compute_share: float
    timeline: tuple[StepTimes, ...]
    """At most 200 steps."""
    fixes: tuple[Fix, ...]
    """The best first; only those that gain at least 5 %."""
    applied: Applied | None
    bytes_per_image: float
    settings: dict[str, Any]
    machine: dict[str, Any]
    """`cores`, `python`, `platform`, `memory_bytes` and versions."""
    attainable_images_per_s: float = 0.0
    """With the cores divided among the stages as well as can be, and nothing else changed."""
    allocation: dict[str, float] = field(default_factory=dict)
    """Cores of each stage at that rate."""


def to_document(found: Diagnosis) -> dict[str, Any]:
    """JSON values."""
    return {"schema_version": SCHEMA_VERSION, **asdict(found)}
