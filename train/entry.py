"""What all training entries do once their training is open."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from dataprep.errors import DataprepError

if TYPE_CHECKING:
    from train.loop import Training
    from train.run_flags import RunFlags


def run(training: Training, flags: RunFlags, *, name: str) -> int:
    """Train, or say what the training would wait for; the exit code.

    Args:
        training: Nothing of it is trained yet.
        flags: Of the entry.
        name: Of the model.
    """
    if flags.diagnose:
        from train.loop_diagnosis import diagnose_training

        with training.loader:
            diagnose_training(training, name=f"{name} on {training.runtime.name}")
        return 0
    training.resume(flags.resume)
    return training.run()


def run_entry(command: click.Command) -> None:
    """Run a command: expected errors become one line on stderr and an exit code."""
    name = command.name
    try:
        code = command(standalone_mode=False)
    except click.exceptions.Abort:
        code = 130
    except KeyboardInterrupt:
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except DataprepError as error:
        click.echo(f"{name}: {error}", err=True)
        code = error.exit_code
    sys.exit(code if isinstance(code, int) else 0)
