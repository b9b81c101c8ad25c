"""What the tests read out of the documents: fenced blocks, commands, links, tables.

The rules that documents follow:

- ```console: `$ ` begins a command, a backslash at its end continues it; what follows up to the next is its output.
- ```sh: commands to be read, not run: they need original files, an account, or minutes.
- ```python: a program that runs as it stands; a ```text block after it is its output.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)

_FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_VARIES = re.compile(r"(…|\b\d+\.\d s\b)")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    info: str
    """What stands after the fence, e.g. `console`."""
    text: str
    line: int
    """Number of the first line in the document."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a console or sh block, continued lines joined."""

    text: str
    output: str
    """As the document shows it."""
    line: int


def blocks(document: str) -> list[Block]:
    """The fenced blocks of a document, in order. `document` is relative to the repository's root."""
    text = (ROOT / document).read_text()
    return [
        Block(found[2], textwrap.dedent(found[3]), text.count("\n", 0, found.start(3)) + 1)
        for found in _FENCE.finditer(text)
    ]


def commands(block: Block) -> list[Command]:
    """The commands of a console or sh block."""
    prompt = "$ " if block.info == "console" else ""
    found: list[Command] = []
    lines = iter(enumerate(block.text.splitlines(), block.line))
    for number, line in lines:
        if not line.startswith(prompt):
            last = found[-1]
            found[-1] = Command(last.text, f"{last.output}{line}\n", last.line)
        elif line.strip():
            while line.endswith("\\"):
                line = f"{line[:-1].rstrip()} {next(lines)[1].strip()}"
            found.append(Command(line.removeprefix(prompt), "", number))
    return found


def words_of(command: str, program: str) -> list[str] | None:
    """What `program` is given in a shell command; None where the command is another one."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=";|&<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words = []
    for word in lexer:
        if set(word) <= set(";|&<>"):
            break
        words.append(word)
    return words[1:] if words[:1] == [program] else None


def links(document: str) -> Iterator[str]:
    """The targets of a document's links that are files beside it."""
    for target in _LINK.findall((ROOT / document).read_text()):
        if "://" not in target and not target.startswith("#"):
            yield target.partition("#")[0]


def links_to_headings(document: str) -> Iterator[tuple[str, str]]:
    """The documents, relative to the repository's root, and headings in them to which a document's links lead."""
    for target in _LINK.findall((ROOT / document).read_text()):
        path, _, heading = target.partition("#")
        if "://" not in target and heading and (not path or path.endswith(".md")):
            found = (ROOT / document).parent / path if path else ROOT / document
            yield found.resolve().relative_to(ROOT).as_posix(), heading


def anchors(document: str) -> set[str]:
    """The names by which links lead to the headings of a document, as GitHub makes them."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", (ROOT / document).read_text())):
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        again = (f"{name}-{number}" for number in count(1))
        found.add(name if name not in found else next(each for each in again if each not in found))
    return found


UNDECIDED = 3


def is_undecided(command: str, code: int, output: str) -> bool:
    """Whether a diagnosis could not be made because other programs, such as other tests, keep the machine busy."""
    said = " ".join(output.split())  # a terminal's lines end anywhere
    return code == UNDECIDED and " diagnose " in command and "Run it again while nothing else runs" in said


def shows(expected: str, output: str) -> bool:
    """Whether an output is the one that a document shows.

    In the document `…` stands for anything on its line, a line of `…` alone for any number of lines, and a number of
    seconds such as `1.2 s` for any other. Blanks at the end of a line do not count.
    """
    lines = []
    for line in expected.splitlines():
        if line.strip() == "…":
            lines.append(r"(?:.*\n)*")
            continue
        parts = _VARIES.split(line.rstrip())
        parts[::2] = map(re.escape, parts[::2])
        parts[1::2] = [".*" if part == "…" else r"\d+\.\d s" for part in parts[1::2]]
        lines.append("".join(parts) + "\n")
    return re.fullmatch("".join(lines), re.sub(r"[ \t]+$", "", output, flags=re.MULTILINE)) is not None
