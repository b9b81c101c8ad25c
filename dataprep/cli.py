"""The `dataprep` command: a group whose commands are imported only when they are called."""

from __future__ import annotations

import codecs
import errno
import importlib
import io
import os
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast

import click

from dataprep import __version__
from dataprep.errors import DataprepError
from dataprep.host.program import collect_rarely, names_advice, unsupported
from dataprep.messages import did_you_mean, first_line, visible

INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
"""Exit codes after Ctrl-C and after SIGTERM, as in shells."""
_AGAIN = "run the same command again to continue"
NO_MEMORY = ("can't start new thread", "failed to map segment", "Cannot allocate memory")
"""Texts of errors, other than MemoryError, that threads and shared libraries raise when memory runs out."""
COMMANDS = {
    "adopt": "Index data that other tools wrote, so that loaders can read it in place.",
    "bench": "Measure how many images per second the loader delivers.",
    "build": "Build verified shards from original files, on disk or in a bucket.",
    "card": "Write the cards of a dataset: README.md for the Hugging Face Hub, croissant.json and _info.json.",
    "check-region": "Show where buckets and their readers are, and what reading them costs.",
    "convert": "Make a new dataset from an existing one: different format, smaller images, different shards.",
    "create-bucket": "Create a private bucket in a TPU's region, and an account that may use it.",
    "demo-data": "Write small original files in the layouts of the real datasets, to try out every command.",
    "diagnose": "Find what a training run waits for, what to change, and how much that helps.",
    "inspect": "Show counts, sizes, classes and pictures of a finished dataset.",
    "map": "Add columns: a value for each sample, computed by a function or joined from a table.",
    "plan-input": "Calculate whether a TPU's hosts can feed it, and what would help.",
    "recheck": "Ask sites again whether images from a table of URLs may be used, and list the images that may not.",
    "remove": "Remove samples from storage for good, without changing the others.",
    "replicate": "Copy a dataset to other regions, near its readers.",
    "retry-failed": "Fetch failed rows of a table of URLs again, and add their images as new shards.",
    "select": "Make a view of a dataset: samples chosen by conditions, lists, duplicates or at random.",
    "tpu": "Create, set up and delete TPU VMs, and run programs on all their workers.",
    "train": "Train on a dataset: start one of the training programs.",
    "verify": "Compare every byte of a dataset with its manifest.",
    "watch": "Show the progress of a build or a training run, from any host.",
}
"""One line of help by command name. Each is the object `command` of dataprep.commands.<name with underscores>."""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"dataprep.commands.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}{did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="dataprep")
def group() -> None:
    """Turn original image archives into verified training data, and feed TPUs with it.

    \b
    Try it:   dataprep demo-data coco originals
              dataprep build coco-dup5 --source originals --output shards --format webdataset --allow-partial
              dataprep verify shards --deep

    Exit codes: 0 done, 1 a check or an operation failed, 2 wrong usage or input, 3 undecided, 130 interrupted.
    """


class _Terminated(SystemExit):
    """SIGTERM was received. It ends the blocks that it comes through, as Ctrl-C does."""


def _terminate(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
    raise _Terminated(TERMINATED)


def main() -> None:
    """Run the command line, and end the process with the command's exit code."""
    if sys.argv[1:2] != ["train"]:  # a training program's environment and signals are those of its console script
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no linear algebra here: NumPy needs no thread per core
        collect_rarely()
        signal.signal(signal.SIGTERM, _terminate)
    try:
        code = exit_code_of(group, "dataprep", after_ctrl_c=f"interrupted; {_AGAIN}")
    except _Terminated:
        _tell(f"dataprep: terminated; {_AGAIN}")
        code = TERMINATED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has closed the pipe: drop the rest
        code = 0
    sys.exit(code)


def exit_code_of(command: click.Command, name: str, *, after_ctrl_c: str = "") -> int:
    """Run a command with the arguments of this process; an expected error becomes one line on stderr.

    Args:
        command: The command; it returns the exit code, and a value that is not an integer means 0.
        name: Name of the program, which begins the error's line.
        after_ctrl_c: Line for a command that Ctrl-C ended; empty for none.

    Returns:
        The exit code; INTERRUPTED after Ctrl-C.
    """
    if problem := unsupported():
        _tell(f"{name}: {problem}")
        return 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and (stream.errors == "strict" or _is_of_ascii_locale(stream)):
            stream.reconfigure(errors="backslashreplace")  # an ASCII locale must not end a command at its first "·"
    # Frameworks and clients of training programs colour their own lines.
    if name != "dataprep" or sys.argv[1:2] == ["train"]:
        return _run(command, name, after_ctrl_c)
    out, err = (cast(TextIO, VisibleStream(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        return _run(command, name, after_ctrl_c)


def _run(command: click.Command, name: str, after_ctrl_c: str) -> int:
    try:
        code = command(standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        if after_ctrl_c:
            _tell(f"{name}: {after_ctrl_c}")
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except DataprepError as error:
        _tell(f"{name}: {error}")
        return error.exit_code
    except UnicodeError as error:
        if not (advice := names_advice()):
            raise
        _tell(f"{name}: a name or a text has characters that cannot be written here ({error}); {advice}")
        return 2
    except (ImportError, MemoryError, OSError, RuntimeError) as error:
        if not (problem := _exhausted(error)):
            raise
        _tell(f"{name}: {problem}")
        return 1
    return code if isinstance(code, int) else 0


def _tell(line: str) -> None:
    click.echo(visible(line), err=True)


class VisibleStream:
    """A text stream that shows control characters escaped, whoever wrote them: names in archives, tables, manifests."""

    def __init__(self, stream: TextIO) -> None:
        self.unescaped = stream
        """The stream itself, for writers of control characters such as a progress bar."""

    def write(self, text: str) -> int:
        self.unescaped.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)


def _is_of_ascii_locale(stream: io.TextIOWrapper) -> bool:
    """Return whether a stream is this process's own, and cannot show all letters because of the locale.

    Other programs' streams are left as they are: they may belong to files whose encoding can no longer be changed.
    """
    return stream in (sys.__stdout__, sys.__stderr__) and codecs.lookup(stream.encoding).name != "utf-8"


def _exhausted(error: Exception) -> str:
    """Return the resource that the machine has run out of, and advice; empty if the error has another cause."""
    code = error.errno if isinstance(error, OSError) else None
    if code in (errno.ENOSPC, errno.EDQUOT):  # modules that write other files name them in their errors
        return f"the output cannot be written ({first_line(error)}); free some space, and run the same command again"
    if isinstance(error, MemoryError) or code == errno.ENOMEM or any(text in str(error) for text in NO_MEMORY):
        return (
            f"no memory left ({first_line(error)}); use fewer --workers, or raise the limit (ulimit -v, ulimit -u, or "
            "the container's), and run the same command again"
        )
    return ""
