"""Command lines from dataclasses: a field is a flag, spelt with underscores as in other training scripts.

@dataclass(frozen=True, kw_only=True)
class Flags:
    epochs: int = flag(400, "Epochs to train.", COUNT)

@click.command()
@flags_of(Flags)
def command(**values): flags = Flags(**values)

A field that is itself a dataclass makes nested flags: `dataset: Dataset` gives --dataset.root if `Dataset` has `root`.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from dataprep.arguments import StrictCommand
from dataprep.cli import exit_code_of
from dataprep.errors import DataprepError, UsageError
from dataprep.host.program import leave_current_folder

if TYPE_CHECKING:
    from train.flags.shared import RunFlags
    from train.loops.loop import Training

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers that a flag takes, from `low` to `high`; never infinities or NaN."""

    low: float
    high: float = math.inf
    above: bool = False
    """Whether `low` itself is refused."""
    below: bool = False
    """Whether `high` itself is refused."""
    unset: int | None = None
    """Number that means "not given", e.g. -1; None: there is no such number."""

    def __contains__(self, value: float) -> bool:
        if value == self.unset:
            return True
        is_high_enough = value > self.low if self.above else value >= self.low
        is_low_enough = value < self.high if self.below else value <= self.high
        is_finite = isinstance(value, int) or math.isfinite(value)
        return is_finite and is_high_enough and is_low_enough

    def __str__(self) -> str:
        if self.high == math.inf:
            text = f"above {self.low:,}" if self.above else f"{self.low:,} or more"
        elif self.above or self.below:
            low, high = ("above" if self.above else "at least"), ("below" if self.below else "at most")
            text = f"{low} {self.low:,} and {high} {self.high:,}"
        else:
            text = f"{self.low:,} to {self.high:,}"
        return text if self.unset is None else f"{text}, or {self.unset}"


MOST_COUNT = 2**31 - 1
COUNT = Range(1, MOST_COUNT)
COUNT_OR_NONE = Range(0, MOST_COUNT)
COUNT_OR_UNSET = Range(1, MOST_COUNT, unset=-1)
POSITIVE = Range(0, above=True)
POSITIVE_OR_UNSET = Range(0, above=True, unset=-1)
NOT_NEGATIVE = Range(0)
SHARE = Range(0, 1)
SHARE_ABOVE_0 = Range(0, 1, above=True)
SHARE_BELOW_1 = Range(0, 1, below=True)
PERCENT = Range(0, 100)
SIDE = Range(1, 10_000)
"""Range of an image's side in pixels: a square of the largest one has the 100 million that an image may have."""
SEED = Range(-(2**63), 2**64 - 1)
"""Range of the seeds that generators take."""
THREADS = Range(1, 1024)
PORT = Range(1, 65535)
METRICS_ADDRESS = "Address of this host that the port of metrics is on; 0.0.0.0: all of them."
"""Help of the flag --metrics_address."""
THREADS_OR_NONE = Range(0, 1024)


def flag(
    default: Any,
    text: str,
    within: Range | None = None,
    *,
    choices: Sequence[str] = (),
    either: bool = False,
    also: Sequence[str] = (),
) -> Any:
    """Make a field that is a flag.

    Args:
        default: Value if the flag is not given.
        text: Line of help.
        within: Range of a number; every numeric flag has one.
        choices: All values of a flag that takes only these.
        either: Whether a boolean flag also has `--no_NAME`.
        also: Other names, which older scripts use.
    """
    metadata = {"text": text, "within": within, "choices": choices, "either": either, "also": also}
    return dataclasses.field(default=default, metadata=metadata)


def redefined(kind: type[Any], name: str, **changes: Any) -> Any:
    """Make a field that is a flag of a base class, with another default, text, range or other names.

    Args:
        kind: Base class.
        name: Name of the flag.
        changes: Arguments of `flag` that differ from those in the base class.
    """
    (own,) = (each for each in dataclasses.fields(kind) if each.name == name)
    return flag(**{"default": own.default, **own.metadata, **changes})


def check_ranges(flags: Any, prefix: str = "--") -> None:
    """Compare the numbers of a dataclass of flags with their ranges.

    Args:
        flags: Dataclass whose fields are made by `flag`, or are such dataclasses.
        prefix: Prefix of a field's name on the command line.

    Raises:
        UsageError: A number is out of its range; the message says which, what was given and what is expected.
    """
    for each in dataclasses.fields(flags):
        within, value = each.metadata.get("within"), getattr(flags, each.name)
        if dataclasses.is_dataclass(value):
            check_ranges(value, f"{prefix}{each.name}.")
        if within is None or value is None:
            continue
        for number in value if isinstance(value, tuple) else (value,):
            if number not in within:
                raise UsageError(f"{prefix}{each.name} must be {within}, got {number}")


def flags_of(
    kind: type[Any], refused: Mapping[str, str] | None = None, *, prefix: str = "--", switches: bool = True
) -> Callable[[Command], Command]:
    """Add options for all fields of a dataclass, and for flags of older scripts that are refused with a reason.

    Args:
        kind: Dataclass whose fields are made by `flag`, or are such dataclasses.
        refused: Reasons by the flags' names.
        prefix: Prefix of a flag's name.
        switches: Whether a boolean is set by the flag's name alone; otherwise `=True` or `=False` follows.
    """

    def decorate(command: Command) -> Command:
        for name, reason in (refused or {}).items():
            spelling = f"{prefix}{name}"
            command = click.option(
                spelling,
                _parameter(name),
                is_flag=False,
                flag_value="",
                hidden=True,
                expose_value=False,
                callback=_refuser(spelling, reason),
            )(command)
        for key in reversed(list(_keys(kind))):
            command = _option(key, prefix, switches)(command)
        return command

    return decorate


def given_flags(context: click.Context, kind: type[Any]) -> dict[str, object]:
    """Return the values of the flags that the command line itself gives, by the flags' names.

    Args:
        context: Context of a command with `flags_of(kind)`.
        kind: Dataclass of the flags.
    """
    parameters = {key.name: _parameter(key.name) for key in _keys(kind)}
    return {
        name: context.params[parameter]
        for name, parameter in parameters.items()
        if context.get_parameter_source(parameter) is not ParameterSource.DEFAULT
    }


def flag_values(flags: Any, prefix: str = "") -> dict[str, object]:
    """Return all values of a dataclass of flags by the flags' names; those of dataclasses in it come last."""
    values = {each.name: getattr(flags, each.name) for each in dataclasses.fields(flags)}
    nested = {name: value for name, value in values.items() if dataclasses.is_dataclass(value)}
    found = {prefix + name: value for name, value in values.items() if name not in nested}
    for name, value in nested.items():
        found |= flag_values(value, f"{prefix}{name}.")
    return found


@dataclass(frozen=True, slots=True)
class _Key:
    """A flag: a field of a dataclass, or of a dataclass nested in it."""

    name: str
    """Name with those of the enclosing dataclasses before it, e.g. `dataset.root`."""
    field: dataclasses.Field[Any]
    kind: Any
    """Type of the flag's value; a tuple of types if it has several values."""


def _keys(kind: type[Any], prefix: str = "") -> Iterator[_Key]:
    hints = typing.get_type_hints(kind)
    for each in dataclasses.fields(kind):
        hint = hints[each.name]
        if dataclasses.is_dataclass(hint):
            yield from _keys(hint, f"{prefix}{each.name}.")  # type: ignore[arg-type]
            continue
        plain = next((part for part in typing.get_args(hint) if part is not types.NoneType), hint)
        several = typing.get_origin(plain) is tuple
        yield _Key(prefix + each.name, each, typing.get_args(plain) if several else plain)


def _option(key: _Key, prefix: str, switches: bool) -> Callable[[Command], Command]:
    default, metadata = key.field.default, key.field.metadata
    spellings = [f"{prefix}{name}" for name in (key.name, *metadata["also"])]
    if metadata["either"]:
        spellings[0] += f"/--no_{key.name}"
    parameter = _parameter(key.name)
    if key.kind is bool and switches:
        return click.option(*spellings, parameter, is_flag=True, default=default, help=metadata["text"])
    return click.option(
        *spellings,
        parameter,
        is_flag=False,
        type=click.Choice(list(metadata["choices"])) if metadata["choices"] else key.kind,
        default=default,
        show_default=default not in (None, ""),
        help=metadata["text"],
    )


def _parameter(name: str) -> str:
    """Return the name that click gives a flag's value."""
    return name.replace(".", "_")


def _refuser(spelling: str, reason: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def refuse(_context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            raise UsageError(f"{spelling}: {reason}")

    return refuse


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
