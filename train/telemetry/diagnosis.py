"""`diagnose` of the training programs: what a run would wait for. Nothing is saved."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from dataprep.errors import UsageError
from dataprep.pages import has_report_packages, write_page
from loaders.diagnosis.diagnose import diagnose
from loaders.diagnosis.findings import Diagnosis, Options, to_document
from loaders.diagnosis.observed_run import Device, RunSetup
from loaders.loader import Loader

RUN_S = 3.0
"""Length of the measurement of the run itself, seconds; each stage takes half of it."""


def diagnose_run(
    loader: Loader, device: Device, *, model: str, transfer_ahead: int, folder: Path | None, options: Options
) -> Diagnosis:
    """Measure a run, print what it waits for, and write that as JSON and as a page into the folder of its logs.

    Args:
        transfer_ahead: Number of batches that are sent to the device while it computes.
        options: Options of the run's command, which the advice names.

    Raises:
        UsageError: The run has several hosts, which would stop after different numbers of steps.
    """
    hosts = loader.config.world_size
    if hosts > 1:
        raise UsageError(
            f"`diagnose` on {hosts} hosts: expected one; start it on one host with that host's share of the batch, or "
            "use `dataprep diagnose` with a simulated device"
        )
    setup = RunSetup(
        url=loader.dataset.url,
        split=loader.dataset.split.name,
        config=replace(loader.config, metrics_port=None),  # loaders of trials are not the run that is watched
        transfer_ahead=transfer_ahead,
        options=options,
    )
    found = replace(diagnose(setup, device, seconds=RUN_S, progress=_say), device=f"{model} on {device.name}")
    _show(found)
    if folder is not None:
        _keep(found, folder)
    return found


def _say(what: str) -> None:
    print(f"measuring {what}", file=sys.stderr)


def _show(found: Diagnosis) -> None:
    from dataprep.host.piped import open_console, print_lines
    from loaders.diagnosis.report import diagnosis_text

    print_lines(open_console(), diagnosis_text(found))


def _keep(found: Diagnosis, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "diagnosis.json").write_text(json.dumps(to_document(found)) + "\n")
    if not has_report_packages():
        return  # the page needs packages that some training machines lack; the JSON has the same content
    from loaders.diagnosis.report import diagnosis_page

    write_page(diagnosis_page(found), folder / "diagnosis.html")
