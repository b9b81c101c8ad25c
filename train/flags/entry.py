"""Running an entry: train or diagnose, and end with an exit code."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from dataprep.arguments import StrictCommand
from dataprep.cli import exit_code_of
from dataprep.errors import DataprepError
from dataprep.host.program import leave_current_folder

if TYPE_CHECKING:
    from train.flags.shared import RunFlags
    from train.loops.loop import Training

_OUT_OF_MEMORY = re.compile(r"MemoryError|allocate memory|out of memory|RESOURCE_EXHAUSTED", re.IGNORECASE)
"""Words with which PyTorch and XLA say that a host or a device has no memory left."""


class EntryCommand(StrictCommand):
    """Command of an entry, which turns a lack of memory into an error of one line."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the entry; return its exit code."""
        try:
            return super().invoke(ctx)
        except (MemoryError, RuntimeError) as error:
            if not _OUT_OF_MEMORY.search(f"{type(error).__name__} {error}"):
                raise
            raise DataprepError("out of memory with this model and batch; choose a smaller model or batch") from error


def run(training: Training[Any], flags: RunFlags, *, model: str) -> int:
    """Train, or measure what the training would wait for; return the exit code.

    Args:
        training: A run of which nothing is trained yet.
        flags: Flags of the entry.
        model: Name of the model, for the report of `--diagnose`.
    """
    if flags.diagnose:
        return training.diagnose(model, flags.diagnosed_options(training.loader.config.batch_size))
    training.resume(flags.resume)
    if flags.init and not training.step:
        training.begin_with(flags.init)
    return training.run()


def run_entry(command: click.Command) -> None:
    """Run an entry with the arguments of this process, and end the process with its exit code.

    Args:
        command: The entry; its name is that of its console script, and begins every error.
    """
    leave_current_folder()
    sys.exit(exit_code_of(command, command.name or ""))
