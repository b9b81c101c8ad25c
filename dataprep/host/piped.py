"""Tables on a terminal, and the same tables as plain lines where stdout is a file or a pipe."""

from __future__ import annotations

import click
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

_PIPED_COLUMNS = 10_000
"""Width where stdout is no terminal: no line is so long, so that none is wrapped."""


def open_console() -> Console:
    """Open a console on stdout, as wide as the terminal, or without an end of its lines where there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPED_COLUMNS)


def print_table(console: Console, table: Table) -> None:
    """Print a table's title and rows, without spaces at the ends of lines where stdout is no terminal."""
    if table.title:
        console.print(Text(str(table.title), style="table.title"))
        table.title = None
    print_lines(console, table)


def print_lines(console: Console, *parts: RenderableType) -> None:
    """Print what `rich` can show, each part below the last, without spaces at the ends of lines where stdout is no
    terminal."""
    if console.is_terminal:
        console.print(*parts, sep="\n")
        return
    with console.capture() as printed:
        console.print(*parts, sep="\n")
    for line in printed.get().splitlines():
        click.echo(line.rstrip())
