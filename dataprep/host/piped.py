"""Tables on a terminal, and the same tables as plain lines if stdout is a file or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TextIO

import click
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from dataprep.messages import visible

_PIPED_COLUMNS = 10_000
"""Width if stdout is not a terminal: longer than any line, so no line is wrapped."""


class VisibleConsole(Console):
    """A console that escapes control characters in the texts that it shows; its own reach the terminal.

    Args:
        stream: The terminal: stdout or stderr.
    """

    def __init__(self, stream: TextIO, width: int | None = None) -> None:
        super().__init__(file=getattr(stream, "unescaped", stream), width=width, highlight=False, markup=False)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(
            part if part.control else Segment(visible(part.text), part.style) for part in buffer
        )


def open_console() -> Console:
    """Open a console on stdout, as wide as the terminal; without a terminal, lines are not wrapped."""
    console = VisibleConsole(sys.stdout)
    return console if console.is_terminal else VisibleConsole(sys.stdout, _PIPED_COLUMNS)


def print_table(console: Console, table: Table) -> None:
    """Print a table's title and rows, without spaces at the ends of lines if stdout is not a terminal."""
    if table.title:
        console.print(Text(str(table.title), style="table.title"))
        table.title = None
    print_lines(console, table)


def print_lines(console: Console, *parts: RenderableType) -> None:
    """Print parts that `rich` can show, one below the other; off a terminal without spaces at the ends of lines."""
    if console.is_terminal:
        console.print(*parts, sep="\n")
        return
    with console.capture() as printed:
        console.print(*parts, sep="\n")
    for line in printed.get().splitlines():
        click.echo(line.rstrip())
