"""Numbers of a run in Weights & Biases, which a resumed run adds to the same run there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dataprep.errors import UsageError

RUN_FILE = "wandb-run.txt"
"""File in the folder of logs with the run's identifier."""


class WandbRun:
    """A run of a project; `WANDB_MODE=offline` keeps it in the folder until `wandb sync`.

    Args:
        project: Name of the project.
        folder: Folder of the logs; None: the run has no files of its own, and cannot be gone on with.
        resumed: Whether to go on with the run that the folder names.

    Raises:
        UsageError: The package is not installed.
    """

    def __init__(self, project: str, folder: Path | None, *, resumed: bool) -> None:
        try:
            import wandb
        except ImportError as error:
            raise UsageError(f"--wandb needs its package ({error}): pip install wandb") from error
        kept = None if folder is None else folder / RUN_FILE
        name = kept.read_text().strip() if resumed and kept is not None and kept.exists() else None
        self._run = wandb.init(project=project, id=name, resume="allow" if name else None, dir=folder)
        # Steps that were done again after a kill have smaller numbers, which wandb's own steps may not have.
        self._run.define_metric("*", step_metric="step")
        if kept is not None:
            kept.write_text(f"{self._run.id}\n")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers of a step."""
        self._run.log({**values, "step": step})

    def close(self) -> None:
        """Send what was not sent yet."""
        self._run.finish()
