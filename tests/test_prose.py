"""Docstrings, comments, help texts and test names that a newcomer would read twice are not let in.

Each pattern of PATTERNS is an opening or a word that was misread; LEFT counts those still in the tree, and may only
shrink. No text file has the lines that git writes where a merge needs a decision.
"""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.markdown import ROOT

FOLDERS = ("dataprep", "loaders", "pipelines", "train", "tests", "benchmarks", "scripts")


class Text(NamedTuple):
    """A piece of prose in a Python file."""

    where: str
    kind: str
    """`docstring` (of a constant, a field or an argument as well), `raises`, `comment`, `help` or `test`."""
    text: str


PATTERNS = {
    'begins with "Of"': ("docstring raises comment help", r"Of\b"),
    'begins with "So long", "So many" or the like': ("docstring comment help", r"So (long|many|much|often|far)\b"),
    'begins with "Nobody"': ("docstring comment help", r"Nobody\b"),
    'begins with "Times the"': ("docstring help", r"Times the\b"),
    'begins with "That" or "Those"': ("docstring help", r"(That|Those)\b"),
    "begins with a pronoun for something that is not on the line": ("docstring help", r"(It|Its|They|Their|Them)\b"),
    "refers to another docstring": ("docstring help", r"(Likewise|The same|As above|As before|Ditto)\.?$"),
    "counts without its noun": ("docstring help", r"(As many|Most that|At most so|Some of [0-9])\b"),
    "says twins for duplicates": ("docstring comment help test", r".*(?<![a-z])twins?(?![a-z])"),
    "says standing for existing": ("docstring comment help test", r".*\bstanding\b(?! by)"),
    "says impatience for a deadline": ("docstring comment help test", r".*impatien"),
    "puts the maximum last": ("docstring", r".*, at most[.;:]"),
    'says "Tell whether" for "Return whether"': ("docstring", r"(Tell|Say) whether\b"),
    "is a test of something unnamed": ("test", r"test_(one_that|it|its|they|those|that_of|so)_"),
}
"""By what is wrong: the kinds of text in which it is looked for, and how it is found from the text's beginning."""
LEFT: dict[str, int] = {}
"""How many texts are still to be rewritten."""
ARGUMENT = re.compile(r"^ *(\w+): (?=[A-Z])", re.MULTILINE)


def texts_of(where: str, source: str) -> Iterator[Text]:
    """Yield every piece of prose of a Python file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield Text(f"{where}:{node.lineno}", "test", node.name)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            first, *arguments = ARGUMENT.split(node.value.value)
            for name, text in zip(["", *arguments[::2]], [first, *arguments[1::2]], strict=True):
                kind = "raises" if name.endswith("Error") else "docstring"
                yield Text(f"{where}:{node.lineno}", kind, " ".join(text.split()))
        elif isinstance(node, ast.keyword) and node.arg == "help" and isinstance(node.value, ast.Constant):
            yield Text(f"{where}:{node.value.lineno}", "help", str(node.value.value))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(f"{where}:{token.start[0]}", "comment", token.string.lstrip("# "))


@cache
def texts() -> list[Text]:
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path.name != "test_prose.py")
    return [text for path in paths for text in texts_of(str(path.relative_to(ROOT)), path.read_text())]


def found_by(pattern: str, among: list[Text]) -> list[Text]:
    kinds, expression = PATTERNS[pattern]
    return [text for text in among if text.kind in kinds.split() and re.match(expression, text.text)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_text_needs_a_second_reading(pattern):
    found = found_by(pattern, texts())
    lines = [f"{text.where} {text.text[:70]}" for text in found]
    assert len(found) <= LEFT.get(pattern, 0), "\n".join([f"{len(found)} texts, this one {pattern}:", *lines])


def test_arguments_of_a_docstring_are_read_one_by_one():
    source = '"""Do it.\n\nArgs:\n    first: The first of two\n        lines.\n    second: Of --workers.\n"""'
    assert [text.text for text in texts_of("x.py", source)] == [
        "Do it. Args:",
        "The first of two lines.",
        "Of --workers.",
    ]


CONFLICT = re.compile(rb"^(?:<{7} |>{7} |\|{7} |={7}$)", re.MULTILINE)
"""A line that git writes where a merge needs a decision."""


def files_in(folder: Path) -> list[Path]:
    """The files that belong to a checkout; all of a folder that is none."""
    listed = subprocess.run(["git", "-C", folder, "ls-files", "-z"], capture_output=True, check=False)
    names = os.fsdecode(listed.stdout).split("\0") if listed.returncode == 0 else [*folder.rglob("*")]
    return sorted(path for name in names if (path := folder / name).is_file())


def with_conflicts(folder: Path) -> list[str]:
    contents = {path: path.read_bytes() for path in files_in(folder)}
    return [str(path.relative_to(folder)) for path, data in contents.items() if CONFLICT.search(data)]


def test_no_file_holds_an_undecided_merge():
    assert with_conflicts(ROOT) == []
