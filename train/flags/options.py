"""Options of the training programs, as requests of dataprep.arguments: groups, ranges, and how a program runs and ends.

Dashes and underscores are the same on these command lines: the programs that they replace write `--data_path`.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dataprep.arguments import IMAGES, MOST_COUNT, OTHER, READ, Request, RequestCommand, command_of, option, spelled
from dataprep.cli import exit_code_of
from dataprep.errors import DataprepError, UsageError, needing
from dataprep.host.program import leave_current_folder
from dataprep.messages import counted

if TYPE_CHECKING:
    from train.flags.shared import RunOptions
    from train.loops.loop import Training

Asked = TypeVar("Asked", bound=Request)
Spec = Mapping[str, Any]
MODEL, TRAIN, SAVE, DEVICES = "Model", "Training", "Checkpoints and logs", "Devices"
HEADINGS = (READ, IMAGES, MODEL, TRAIN, SAVE, DEVICES, OTHER)
"""Headings of options in --help, in their order."""
COUNT: Spec = {"low": 1, "high": MOST_COUNT}
COUNT_OR_NONE: Spec = {"low": 0, "high": MOST_COUNT}
COUNT_OR_UNSET: Spec = {**COUNT, "unset": -1}
POSITIVE: Spec = {"low": 0, "open_low": True}
POSITIVE_OR_UNSET: Spec = {**POSITIVE, "unset": -1}
NOT_NEGATIVE: Spec = {"low": 0}
SHARE: Spec = {"low": 0, "high": 1}
SHARE_ABOVE_0: Spec = {**SHARE, "open_low": True}
SHARE_BELOW_1: Spec = {**SHARE, "open_high": True}
SIDE: Spec = {"low": 1, "high": 10_000}
"""Range of an image's side in pixels: a square of the largest one has the 100 million that an image may have."""
SEED: Spec = {"low": -(2**63), "high": 2**64 - 1}
"""Range of the seeds that generators take."""
THREADS: Spec = {"low": 1, "high": 1024}
THREADS_OR_NONE: Spec = {**THREADS, "low": 0}
PORT: Spec = {"low": 1, "high": 65535}
_SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 110,
    "token_normalize_func": lambda word: word.replace("_", "-"),
}
_OUT_OF_MEMORY = re.compile(r"MemoryError|allocate memory|out of memory|RESOURCE_EXHAUSTED", re.IGNORECASE)
"""Words of PyTorch and XLA that mean that a host or a device has no memory left."""


def flag(default: Any, text: str, group: str = OTHER, within: Spec = MappingProxyType({}), **about: Any) -> Any:
    """Declare an option field as `dataprep.arguments.option` does, but with the default first and then the help text.

    Args:
        group: One of HEADINGS.
        within: Allowed range; required for numbers.
    """
    return option(text, default=default, group=group, **within, **about)


def redefined(kind: type[Request], name: str, **changes: Any) -> Any:
    """Make a field that is an option of a base class, with another default, text or range, or other spellings."""
    (own,) = (each for each in dataclasses.fields(kind) if each.name == name)
    spec = own.metadata["option"]
    about = {each.name: getattr(spec, each.name) for each in dataclasses.fields(spec)}
    return option(**{"text": about.pop("help"), "default": own.default, **about, **changes})


def given_of(flags: Request, names: Iterable[str]) -> list[str]:
    """Return the fields among `names` that flags have with values other than their defaults."""
    defaults = {each.name: each.default for each in dataclasses.fields(flags)}
    return [name for name in names if name in defaults and getattr(flags, name) != defaults[name]]


def with_defaults(flags: Asked, values: Mapping[str, float], images: int, *, tells: bool) -> Asked:
    """Return flags with a value for each that is None; with `tells`, print the values in one line on stderr.

    Args:
        images: Images of an epoch, which decided the values.
    """
    taken = {name: value for name, value in values.items() if getattr(flags, name) is None}
    if taken and tells:
        text = ", ".join(f"`{name}` {value:g}" for name, value in taken.items())
        click.echo(spelled(type(flags), f"{text}: the defaults for {counted(images, 'image')}"), err=True)
    return dataclasses.replace(flags, **taken)


class EntryCommand(RequestCommand):
    """Command of a training program; it turns a lack of memory into an error of one line."""

    has_json = False

    def invoke(self, ctx: click.Context) -> Any:
        """Run the program; return its exit code."""
        try:
            with needing("torch", str(self.name)):  # what needs others, such as JAX, says so itself
                return super().invoke(ctx)
        except (MemoryError, RuntimeError) as error:
            if not _OUT_OF_MEMORY.search(f"{type(error).__name__} {error}"):
                raise
            raise DataprepError("out of memory with this model and batch; choose a smaller model or batch") from error


def entry_of(
    kind: type[Asked], run: Callable[..., int], name: str, *, epilog: str, refused: Mapping[str, str] | None = None
) -> RequestCommand:
    """Make the command of a training program, whose function gets the flags and returns an exit code.

    Args:
        refused: Reasons why options of the programs that it replaces are refused, by their names after the prefix.
    """
    command = command_of(kind, run, name, epilog=epilog, cls=EntryCommand)
    command.context_settings = _SETTINGS
    for word, reason in (refused or {}).items():
        spelling = kind.option_of(word)
        command.params.append(
            click.Option(
                [spelling, word.replace(".", "_")],
                is_flag=False,
                flag_value="",
                hidden=True,
                expose_value=False,
                callback=partial(_refuse, spelling, spelled(kind, reason)),
            )
        )
    return command


def _refuse(spelling: str, reason: str, _context: click.Context, _parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        raise UsageError(f"{spelling}: {reason}")


def run(training: Training[Any], flags: RunOptions, *, model: str) -> int:
    """Train, or measure what the training would wait for; return the exit code. The report names the model."""
    if flags.diagnose:
        options = flags.diagnosed_options(training.loader.config.batch_size, training.description)
        return training.diagnose(model, options)
    training.resume(flags.resume)
    if flags.init and not training.step:
        training.begin_with(flags.init)
    return training.run()


def run_entry(command: click.Command) -> None:
    """Run a program with the arguments of this process, and end the process with its exit code."""
    leave_current_folder()
    sys.exit(exit_code_of(command, command.name or ""))
