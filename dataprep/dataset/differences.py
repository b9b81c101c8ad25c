"""Comparison of two JSON documents, such as two plans or two loader states."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dataprep.dataset.documents import JsonObject
from dataprep.messages import shortened

MAX_CHARACTERS = 60
"""Maximum number of characters shown of each value."""


def differences(ours: JsonObject, theirs: JsonObject, path: str = "", *, where: str = "there") -> list[str]:
    """Return what differs between two documents, one line each, for the person who has to decide.

    `plan_hash` is left out, because it only says that something differs; `splits` are compared by name.

    Args:
        ours: Our document.
        theirs: The other document.
        path: Names of the enclosing fields, with a dot after each.
        where: Words for the place of the other document.
    """
    lines: list[str] = []
    for name in sorted(ours.keys() | theirs.keys()):
        here, there = ours.get(name), theirs.get(name)
        if name == "plan_hash" or here == there:
            continue
        label = f"{path}{name}"
        if isinstance(here, dict) and isinstance(there, dict):
            lines += differences(here, there, f"{label}.", where=where)
        elif name == "splits" and here and there:
            lines += differences(_by_name(here), _by_name(there), f"{label}.", where=where)
        else:
            lines.append(f"{label} is {_short(there)} {where}, {_short(here)} here")
    return lines


def _by_name(splits: Sequence[JsonObject]) -> JsonObject:
    return {split["name"]: split for split in splits}


def _short(value: Any) -> str:
    return shortened(json.dumps(value), MAX_CHARACTERS)
