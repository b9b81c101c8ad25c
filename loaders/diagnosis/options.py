"""Options of a command line that set what a change sets: `dataprep diagnose` has others than a training command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command."""

    name: str
    """Name as it is typed, e.g. `--num_workers`."""
    unit: int = 1
    """Number by which a setting is divided: a batch of 128 images may be `--batch_size 64` on each of 2 devices."""
    value: str = ""
    """Word that is printed as the value instead of the setting's; empty: the setting's value is."""

    def text(self, setting: object) -> str:
        """Return the option with its value, as it is typed.

        Args:
            setting: Value of the setting.
        """
        shown = setting // self.unit if isinstance(setting, int) else setting
        return f"{self.name} {self.value or shown}"


Options = Mapping[str, Option]
"""Options by the names of the settings (`loaders.diagnosis.findings.Changes`); a setting without one cannot be set."""

DIAGNOSE: Options = {
    "threads": Option("--threads"),
    "processes": Option("--processes"),
    "decoder": Option("--decoder"),
    "prefetch_batches": Option("--prefetch-batches"),
    "reads_in_flight": Option("--reads-in-flight"),
    "cache_dir": Option("--cache-dir", value="DIR"),
    "batch_size": Option("--batch-size"),
    "transfer_ahead": Option("--transfer-ahead"),
}
"""Options of `dataprep diagnose`."""
