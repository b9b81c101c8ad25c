"""Command lines from dataclasses: a field is a flag, spelt with the underscores that training scripts have.

@dataclass(frozen=True, kw_only=True)
class Flags:
    epochs: int = flag(400, "Epochs to train.")

@click.command()
@flags_of(Flags)
def command(**values): flags = Flags(**values)
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from dataprep.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])


def flag(
    default: Any, text: str, *, choices: Sequence[str] = (), either: bool = False, also: Sequence[str] = ()
) -> Any:
    """A field that is a flag.

    Args:
        default: Its value where it is not given.
        text: Its line of help.
        choices: All that it may be, where they are few.
        either: Of a truth value, `--no_NAME` is a flag, too.
        also: Other names of it, of older scripts.
    """
    metadata = {"text": text, "choices": choices, "either": either, "also": also}
    return dataclasses.field(default=default, metadata=metadata)


def flags_of(kind: type[Any], refused: Mapping[str, str] | None = None) -> Callable[[Command], Command]:
    """Options for all fields of a dataclass, and for flags of older scripts that are refused with a reason.

    Args:
        kind: Its fields are made by `flag`.
        refused: Reasons by the flags' names.
    """
    hints = typing.get_type_hints(kind)

    def decorate(command: Command) -> Command:
        for name, reason in (refused or {}).items():
            command = click.option(
                f"--{name}", is_flag=False, flag_value="", hidden=True, expose_value=False, callback=_refuser(reason)
            )(command)
        for each in reversed(dataclasses.fields(kind)):
            command = _option(each, hints[each.name])(command)
        return command

    return decorate


def _option(each: dataclasses.Field[Any], hint: Any) -> Callable[[Command], Command]:
    text, choices, either = (each.metadata[key] for key in ("text", "choices", "either"))
    spellings = [f"--{name}" for name in (each.name, *each.metadata["also"])]
    if either:
        spellings[0] += f"/--no_{each.name}"
    plain = next((part for part in typing.get_args(hint) if part is not types.NoneType), hint)
    if plain is bool:
        return click.option(*spellings, each.name, is_flag=True, default=each.default, help=text)
    if typing.get_origin(plain) is tuple:
        plain = typing.get_args(plain)
    kind = click.Choice(list(choices)) if choices else plain
    shown = each.default not in (None, "")
    return click.option(*spellings, each.name, type=kind, default=each.default, show_default=shown, help=text)


def _refuser(reason: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def refuse(_context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            raise UsageError(f"--{parameter.name}: {reason}")

    return refuse
