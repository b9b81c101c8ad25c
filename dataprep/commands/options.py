"""Options that several commands share which are not made of a request."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
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
    """Return the labels that `label_option` gives. Raises UsageError if Google Cloud does not allow one."""
    return checked_labels({key: value if equals else "=" for key, equals, value in (e.partition("=") for e in labels)})


def checked_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels of a resource.

    Raises:
        UsageError: Google Cloud does not allow such a label.
    """
    for key, value in labels.items():
        if _LABEL.fullmatch(f"{key}={value}") is None:
            raise UsageError(
                f"`label` {key}={value}: expected KEY=VALUE of a-z, 0-9, _ and -, the key's first a letter, each of at "
                "most 63 characters"
            )
    return dict(labels)
