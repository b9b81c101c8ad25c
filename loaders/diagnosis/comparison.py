"""A diagnosis beside an earlier one: what differed, and how the rates and the parts of a step changed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dataprep.host.versions import MachineDocument
from loaders.diagnosis.findings import SCHEMA_VERSION, Diagnosis, Limit, StageRate
from loaders.metrics.earlier import changed, machine_differences, read_earlier


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierDiagnosis:
    """What is compared of an earlier diagnosis."""

    url: str
    device: str
    verdict: str
    limit: Limit
    observed_images_per_s: float
    predicted_images_per_s: float
    utilisation: float
    stages: tuple[StageRate, ...]
    wait_share: float
    transfer_share: float
    compute_share: float
    settings: dict[str, object]
    machine: MachineDocument


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedFigure:
    """One figure before and now."""

    name: str
    unit: str
    """`images/s`, or `share` for a number between 0 and 1."""
    before: float
    now: float
    ratio: float | None
    """The figure now over that before; null where that was 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DiagnosisComparison:
    """A diagnosis beside an earlier one."""

    differences: tuple[str, ...]
    """Machine, versions, settings, data and device that differed, each in one line; only without any do ratios show
    what the change of one thing brought."""
    before_verdict: str
    before_limit: Limit
    figures: tuple[ComparedFigure, ...]


def read_diagnosis(path: Path) -> EarlierDiagnosis:
    """Read what `dataprep diagnose --json` printed.

    Raises:
        UsageError: The file is absent, too large, or no such diagnosis.
    """
    return read_earlier(path, EarlierDiagnosis, SCHEMA_VERSION, "dataprep diagnose --json")


def compare_diagnoses(before: EarlierDiagnosis, now: Diagnosis) -> DiagnosisComparison:
    """Return how a diagnosis differs from an earlier one. Stages are matched by name."""
    subjects = ({"url": each.url, "device": each.device} for each in (before, now))
    differences = [*changed("data and", *subjects), *machine_differences(before.machine, now.machine)]
    settings = json.loads(json.dumps(now.settings))  # as they are read from a file: tuples are lists there
    differences += changed("setting", before.settings, settings)
    stages = {stage.name: stage.images_per_s for stage in before.stages}
    figures = [
        _figure("observed", "images/s", before.observed_images_per_s, now.observed_images_per_s),
        _figure("predicted", "images/s", before.predicted_images_per_s, now.predicted_images_per_s),
        *(
            _figure(f"{stage.name} alone", "images/s", stages[stage.name], stage.images_per_s)
            for stage in now.stages
            if stage.name in stages
        ),
        _figure("accelerator used", "share", before.utilisation, now.utilisation),
        _figure("waiting for a batch", "share", before.wait_share, now.wait_share),
        _figure("waiting for its transfer", "share", before.transfer_share, now.transfer_share),
        _figure("computing", "share", before.compute_share, now.compute_share),
    ]
    return DiagnosisComparison(
        differences=tuple(differences),
        before_verdict=before.verdict,
        before_limit=before.limit,
        figures=tuple(figures),
    )


def _figure(name: str, unit: str, before: float, now: float) -> ComparedFigure:
    return ComparedFigure(name=name, unit=unit, before=before, now=now, ratio=now / before if before > 0 else None)
