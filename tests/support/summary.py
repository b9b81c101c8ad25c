"""The last line of a run: which tests did not run, and why. It imports nothing else, so that a run ends soon."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the whole run, not each worker's, with a line that says what did not run and why."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workerinput"):
        reporter.write_line(not_run(reporter.stats.get("skipped", ())))


def not_run(skipped: Iterable[pytest.CollectReport | pytest.TestReport]) -> str:
    """Count skipped tests by their reasons, in one line."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if not reasons:
        return "No test was skipped."
    return f"Not run: {'; '.join(f'{count} ({reason})' for reason, count in sorted(reasons.items()))}."
