"""`--diagnose` of the training entries: what the run that its flags describe would wait for. Nothing is saved."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dataprep.errors import UsageError
from loaders.devices import Device
from loaders.diagnose import diagnose
from loaders.findings import Diagnosis, to_document
from loaders.loader import Loader
from loaders.trial import Setup


def diagnose_run(
    loader: Loader, device: Device, *, transfer_ahead: int, folder: Path | None, seconds: float = 3.0
) -> Diagnosis:
    """Measure a run, print what it waits for, and keep it as JSON, and as a page, beside its logs.

    Args:
        loader: Of the run; nothing is read from it.
        device: Its steps.
        transfer_ahead: Batches sent to the device while it computes.
        folder: Of its logs; None keeps nothing.
        seconds: For the run itself; a stage takes half of it.

    Raises:
        UsageError: The run is one of several hosts: each would stop after another number of steps.
    """
    hosts = loader.config.world_size
    if hosts > 1:
        raise UsageError(
            f"--diagnose on {hosts} hosts: expected one; start it on one host with that host's share of the batch, or "
            "ask `dataprep diagnose` with a simulated device"
        )
    setup = Setup(
        url=loader.dataset.url,
        split=loader.dataset.split.name,
        config=loader.config,
        transfer_ahead=transfer_ahead,
    )
    found = diagnose(setup, device, seconds=seconds, progress=_say)
    _show(found)
    if folder is not None:
        _keep(found, folder)
    return found


def _say(what: str) -> None:
    print(f"measuring {what}", file=sys.stderr)


def _show(found: Diagnosis) -> None:
    from rich.console import Console

    from loaders.report import diagnosis_text

    Console(highlight=False).print(diagnosis_text(found))


def _keep(found: Diagnosis, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "diagnosis.json").write_text(json.dumps(to_document(found)) + "\n")
    try:
        import jinja2
        import matplotlib

        del jinja2, matplotlib
    except ImportError:
        return  # the page needs what not every training machine has; the JSON says the same
    from dataprep.page import write_page
    from loaders.report import diagnosis_page

    write_page(diagnosis_page(found), folder / "diagnosis.html")
