"""Parameter types and options that several commands share."""

from __future__ import annotations

import re
from typing import Any

import click

from dataprep.cpu import available_cores

_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


class Bytes(click.ParamType[int]):
    """A size such as `256MiB`, `1GB` or `1048576`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(value).lower())
        if match is None or match[2] not in _UNITS:
            self.fail(f"got {value!r}, expected a size such as 256MiB, 1GB or 1048576", param, ctx)
        return int(float(match[1]) * _UNITS[match[2]])


def human_bytes(count: float) -> str:
    """`262.1 MB`: decimal units, as disks and networks are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


workers_option = click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=available_cores,
    show_default="cores of this machine",
    help="Processes.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
