"""Tables that go to a file: no line is wrapped, and none ends in spaces."""

import io

from rich.progress import Progress, TextColumn
from rich.table import Table

from dataprep.cli import VisibleStream
from dataprep.host.piped import VisibleConsole, open_console, print_table


def test_lines_of_a_table_that_goes_to_a_file_are_whole_and_end_with_their_text(capsys):
    table = Table("name", "what", title="prices", box=None)
    table.add_row("a" * 100, "b" * 100)
    table.add_row("short", "")
    print_table(open_console(), table)
    title, head, first, second = capsys.readouterr().out.splitlines()
    assert (title, head.split(), first.split(), second.split()) == (
        "prices",
        ["name", "what"],
        ["a" * 100, "b" * 100],
        ["short"],
    )
    assert [line for line in (title, head, first, second) if line != line.rstrip()] == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal_escapes_names_and_reads_no_markup_in_them(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    console = VisibleConsole(VisibleStream(terminal), width=80)
    with Progress(TextColumn("{task.description}", markup=False), console=console) as bar:
        bar.add_task("reading a[/b]\x1b]0;P\x07.csv")
        console.print("passed over: [link=x]\u202e[/]")
    shown = terminal.getvalue()
    assert r"reading a[/b]\u001b]0;P.csv" in shown  # rich itself leaves the bell out
    assert r"passed over: [link=x]\u202e[/]" in shown
    assert "\x1b[" in shown  # the bar's own moves of the cursor
