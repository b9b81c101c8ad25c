"""The best accuracy of a run, over all of its evaluations."""

from __future__ import annotations

import json
from collections.abc import Mapping

from train.telemetry.logs import LOG_FILE, Logs


class BestAccuracy:
    """Remembers the best accuracy, which includes evaluations that the log has from before a resume.

    Args:
        logs: Logs of the run.
    """

    def __init__(self, logs: Logs) -> None:
        self._folder, self._best = logs.folder, 0.0

    def judge(self, found: Mapping[str, float]) -> dict[str, float]:
        """Return the numbers of an evaluation with `best_accuracy` added."""
        self._best = max(self._best, found["accuracy"], self._logged())
        return {**found, "best_accuracy": self._best}

    def _logged(self) -> float:
        path = None if self._folder is None else self._folder / LOG_FILE
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        return max((json.loads(line).get("val_accuracy", 0.0) for line in lines), default=0.0)
