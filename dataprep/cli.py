"""The `dataprep` command: a group whose commands are imported only when they are called."""

from __future__ import annotations

import importlib
import os
import sys

import click

from dataprep import __version__
from dataprep.errors import DataprepError

COMMANDS = {
    "adopt": "Let the loaders read data that other tools wrote, as they are.",
    "bench": "Images/s of our loader and of others on the same data.",
    "build": "Original files to verified shards, on disk or in a bucket.",
    "check-region": "Where a bucket and this machine are, and what reading across costs.",
    "create-bucket": "A bucket beside a TPU, closed to the public, and an account that may use it.",
    "demo-data": "Write small originals, packed as the real ones are, to try everything with.",
    "diagnose": "What a training run waits for, what to change, and what that brings.",
    "inspect": "Counts, sizes, classes and pictures of a finished dataset.",
    "plan-input": "Whether the hosts of a TPU can feed it, and what would change that.",
    "replicate": "Copies of a dataset beside those who read it, by Cloud Storage itself.",
    "retry-failed": "Fetch again what failed of a table of URLs, as new shards of a finished dataset.",
    "tpu": "Create TPU VMs, set them up, run and end programs on all their workers, delete them.",
    "verify": "Compare every byte of a dataset with its manifest.",
}
"""Name to one line of help; the module is dataprep.commands.<name with underscores>, its command `command`."""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"dataprep.commands.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="dataprep")
def group() -> None:
    """From original image archives to TPU-friendly shards beside the TPU.

    \b
    Try it:   dataprep demo-data coco originals
              dataprep build coco-dup5 --source originals --output shards --format webdataset --allow-partial
              dataprep verify shards --deep

    Exit codes: 0 done, 1 a check failed, 2 usage or input, 3 cannot tell, 130 interrupted.
    """


def main() -> None:
    """Entry point: expected errors become one line on stderr and an exit code."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy would start a thread a core for algebra that is not here
    try:
        code = group(standalone_mode=False)
    except click.exceptions.Abort:
        code = _interrupted()
    except KeyboardInterrupt:
        code = _interrupted()
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except DataprepError as error:
        click.echo(f"dataprep: {error}", err=True)
        code = error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left: nothing more to say
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


def _interrupted() -> int:
    click.echo("dataprep: interrupted; run the same command again to go on", err=True)
    return 130
