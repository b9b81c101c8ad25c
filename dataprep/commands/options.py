"""Options that several commands share which are not made of a request."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from dataprep.arguments import MOST_COUNT, Finite, Whole
from dataprep.errors import UsageError
from dataprep.host.heartbeat import MAX_STALL_MINUTES, STALL_S

Command = TypeVar("Command", bound=Callable[..., Any])
COUNT, COUNT_OR_NONE = Whole(1, MOST_COUNT), Whole(0, MOST_COUNT)
WHOLE = Whole(max=MOST_COUNT)
"""Whole number whose lower bound depends on other options, and is checked by the code that uses it."""
_LABEL = re.compile(r"([a-z][-_a-z0-9]{0,62})=([-_a-z0-9]{0,63})")


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")


def stall_option(what: str) -> Callable[[Command], Command]:
    """Return the option for the limit on time without progress; `what` is its help."""
    kind = Finite(0, MAX_STALL_MINUTES, min_open=True)
    return click.option("--stall-minutes", type=kind, default=STALL_S / 60, show_default=True, help=what)


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
