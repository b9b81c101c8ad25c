"""Parameter types and options that several commands share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dataprep.errors import UsageError
from dataprep.host.cpu import available_cores
from dataprep.host.heartbeat import STALL_S

if TYPE_CHECKING:
    from click.types import OptionHelpExtra

Command = TypeVar("Command", bound=Callable[..., Any])

_MAX_STALL_MINUTES = 60 * 24 * 366.0
MOST_COUNT = 2**31 - 1
"""Largest count that an option accepts: no machine has this many threads, images or pixels."""


class Whole(click.IntRange):
    """A whole number; help shows only its lower bound, because no sensible value reaches the upper one."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number: int = click.INT.convert(value, param, ctx)
        if (self.min is not None and number < self.min) or (self.max is not None and number > self.max):
            self.fail(f"{number} is not in the range {super()._describe_range()}.", param, ctx)
        return number

    def _describe_range(self) -> str:
        return "" if self.min is None else f"x>={self.min}"


COUNT, COUNT_OR_NONE = Whole(1, MOST_COUNT), Whole(0, MOST_COUNT)
WHOLE = Whole(max=MOST_COUNT)
"""Whole number whose lower bound depends on other options, and is checked by the code that uses it."""
MOST_SEED = 2**64 - 1
SEED = Whole(max=MOST_SEED)
MOST_BYTES = 2.0**63
_LABEL = re.compile(r"([a-z][-_a-z0-9]{0,62})=([-_a-z0-9]{0,63})")
_PREFIXES = ("k", "M", "G", "T", "P")
_SIZES = {f"{prefix}B": 1000**power for power, prefix in enumerate(_PREFIXES, start=1)} | {
    f"{prefix.upper()}iB": 1024**power for power, prefix in enumerate(_PREFIXES, start=1)
}
_UNITS = {"": 1} | {unit.lower(): size for unit, size in _SIZES.items()}


class Bytes(click.ParamType[int]):
    """A size such as `256MiB`, `2 TB` or `1048576`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(value).lower())
        if match is None or match[2] not in _UNITS:
            self.fail(
                f"got {value!r}, expected a size such as 256MiB, 2 TB or 1048576; its unit is bytes, or one of "
                f"{', '.join(_SIZES)}",
                param,
                ctx,
            )
        size = float(match[1]) * _UNITS[match[2]]
        if size > MOST_BYTES:
            self.fail(f"got {value!r}, expected 8 EiB at most", param, ctx)
        return int(size)


class Finite(click.FloatRange):
    """A number within a range. `nan` and infinity, which a range check may accept, are refused."""

    name = "number"

    def _describe_range(self) -> str:
        return "" if self.min is None and self.max is None else super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"got {value!r}, expected a finite number", param, ctx)
        return number


class NamedDefaultOption(click.Option):
    """An option whose default is shown in words, as `[default: 256MiB]`; click would put them in parentheses."""

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default
        return extra


workers_option = click.option(
    "--workers",
    cls=NamedDefaultOption,
    type=COUNT,
    default=available_cores,
    show_default="cores of this machine",
    help="Number of worker processes.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")


def stall_option(what: str) -> Callable[[Command], Command]:
    """Return the option for the limit on time without progress; `what` is its help."""
    kind = Finite(0, _MAX_STALL_MINUTES, min_open=True)
    return click.option("--stall-minutes", type=kind, default=STALL_S / 60, show_default=True, help=what)


workers_stall_option = stall_option(
    "Minutes without progress after which a worker is killed and its shard is tried again."
)


label_option = click.option(
    "--label", "labels", metavar="KEY=VALUE", multiple=True, help="Label that the bill shows; may be repeated."
)


def parsed_labels(labels: Iterable[str]) -> dict[str, str]:
    """Return the labels that `label_option` gives.

    Raises:
        UsageError: Google Cloud allows no such label.
    """
    found = {}
    for label in labels:
        match = _LABEL.fullmatch(label)
        if match is None:
            raise UsageError(
                f"--label {label!r}: expected KEY=VALUE of a-z, 0-9, _ and -, the key's first a letter, each of at "
                "most 63 characters"
            )
        found[match[1]] = match[2]
    return found
