"""The packages are arranged as scripts/house.py asks, and what it looks for it finds."""

from __future__ import annotations

import ast

import pytest

from scripts import house
from scripts.house import (
    ROWS,
    cycles,
    sorted_out,
    unquoted,
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_of_the_table_is_met(row):
    kept, stale = sorted_out(row)
    assert stale == []
    assert kept == []


def test_every_excepted_row_exists():
    assert {*house.EXCEPTIONS} <= {row.name for row in ROWS}


def test_rooms_that_import_each_other_form_one_cycle():
    graph = {"a": {"b": ""}, "b": {"c": ""}, "c": {"b": "", "d": ""}, "d": {}, "e": {"f": ""}, "f": {"e": ""}}
    assert cycles(graph) == [["b", "c"], ["e", "f"]]


def test_imports_in_functions_and_for_types_count_as_imports():
    program = "import a.b\nif TYPE_CHECKING:\n    from c import d\ndef late():\n    from e.f import g\n"
    module = house.Module("a", house.ROOT, ast.parse(program))
    assert house.imported_by(module, ["a.b", "c", "c.d", "e.f", "x"]) == {"a.b", "c", "c.d", "e.f"}


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("f'run \"dataprep adopt {url}\" once'", "{url}"),
        ("f'{url}: damaged; run dataprep verify {storage.url}'", "{storage.url}"),
        ("f'a; dataprep adopt {shell_words(url)} --index {index.url}, or'", "{index.url}"),
        ("f'or set {DATA_URL}={data.url}'", "{data.url}"),
        ("f'{where}: no value: leave it out with --drop {name}, or not'", "{name}"),
        ("' '.join(f'--drop {name}' for name in faults)", "{name}"),
        ("'leave the column out with --drop {}'.format(name)", "--drop {}"),
        ("HINT.format(words=where)", "words=where"),
        ("f'pip install {need}'", "{need}"),
    ],
)
def test_word_of_a_printed_command_that_is_not_quoted_is_found(program, word):
    ((_, found),) = unquoted(ast.parse(program))
    assert found.endswith(word)


@pytest.mark.parametrize(
    "program",
    [
        "f'run \"dataprep adopt {shell_words(url)}\"; {url} is there'",
        "f'--split {split}: no such split; expected one of {names}'",
        "f'{url}: --label-from {name}: not a column'",
        "f'leave it out with --labels {NO_LABELS}, or build with --max-reject-ratio {ratio:g}'",
        "[f'--zone={zone}', f'--project={project}']",
        "HINT.format(words=shell_words(where))",
        "f'{name} is not a region that dataprep knows: {known}'",
    ],
)
def test_text_that_is_not_to_be_pasted_needs_no_quotes(program):
    assert list(unquoted(ast.parse(program))) == []
