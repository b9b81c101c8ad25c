"""Tables that go to a file: no line is wrapped, and none ends in spaces."""

from __future__ import annotations

from rich.table import Table

from dataprep.host.piped import open_console, print_table


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
