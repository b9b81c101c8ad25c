"""Reads docstrings and help texts as their authors mean them: plain text with `code`, examples and columns.

Sphinx reads reStructuredText. The texts keep to what a terminal and an editor show, so a few marks are added here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

_COLUMNS = re.compile(r"(\S.*?)  +(\S.*)")
"""A line such as `open_loader      Open a loader over one split`."""
_CODE = re.compile(r"(`+[^`]*`+)")
_PARAMETERS = re.compile(r"<dl>\n(?:<dd>.*</dd>\n)+</dl>")
_PACKAGES = ("dataprep.", "loaders.", "pipelines.", "train.")


def mark_blocks(lines: list[str]) -> list[str]:
    """Mark examples, which are indented after an empty line, and paragraphs in two columns, as names with meanings."""
    marked: list[str] = []
    for paragraph in _paragraphs(lines):
        text = [line for line in paragraph if line]
        columns = [_COLUMNS.fullmatch(line) for line in _joined(text)]
        if len(text) > 1 and all(columns) and not _is_tree(text):
            marked += [line for found in columns if found for line in (f"``{found[1]}``", f"    {escape(found[2])}")]
            marked.append("")
        elif _is_tree(text) or (_is_example(text) and not _ends_indented(marked)):
            marked += ["::", "", *(f"    {line}".rstrip() for line in paragraph)]
        else:
            marked += map(escape, paragraph)
    return marked


def escape(line: str) -> str:
    """Make the asterisks of a text, as in `*.tar`, plain characters, except in code."""
    parts = _CODE.split(line)
    parts[::2] = [part.replace("*", r"\*") for part in parts[::2]]
    return "".join(parts)


def mark_docstring(_app: Sphinx, what: str, _name: str, _item: object, _options: object, lines: list[str]) -> None:
    """Prepare a docstring for Napoleon, which takes what precedes a colon in an attribute's first line for its type."""
    lines[:] = ([""] if what in ("attribute", "data", "property") else []) + mark_blocks(lines)


def escape_help(_app: Sphinx, _context: object, lines: list[str]) -> None:
    """Prepare the help of a command; lines that it keeps apart, such as examples, are shown as they stand."""
    marked: list[str] = []
    for kept, group in groupby(lines, lambda line: line.startswith("| ")):
        text = list(group)
        if kept and any(line.startswith("|   ") for line in text):
            marked += ["", ".. code-block:: text", "", *(f"    {line[2:]}" for line in text), ""]
        else:
            marked += map(_option_line, text)
    lines[:] = marked


def _option_line(line: str) -> str:
    """Escape a line of an option. sphinx-click writes `**Required**`, and cuts the end of `NAME[=SUFFIX]`."""
    if line.startswith(".. option:: "):
        return re.sub(r"(\[[^\]>]*)>", r"\1]>", line)
    indent, required, rest = line.rpartition("**Required**")
    return indent + required + escape(rest)


def link_types(_app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.Node) -> nodes.Node | None:
    """Lead a type to the page that describes it, wherever its module is; other libraries' types are text.

    An exception under `Raises:` that is not described is left to Sphinx, which makes an error of it.
    """
    if node.get("refdomain") != "py":
        return None
    described = env.get_domain("py").objects
    last = node["reftarget"].rpartition(".")[2]
    types = (name for name, item in described.items() if item.objtype in ("class", "exception"))
    found = sorted(name for name in types if name.rpartition(".")[2] == last and name.startswith(_PACKAGES))
    if len(found) == 1:
        node["reftarget"] = found[0]
        return env.get_domain("py").resolve_any_xref(env, node["refdoc"], env.app.builder, found[0], node, text)[0][1]
    return None if node["reftype"] == "exc" else text


def list_parameters(
    _app: Sphinx, _page: str, _template: str, context: dict[str, Any], _document: nodes.document | None
) -> None:
    """Make plain boxes of a signature's parameters, each on a line: Sphinx makes definitions without terms of them."""
    context["body"] = _PARAMETERS.sub(_boxes, context.get("body", ""))


def _boxes(found: re.Match[str]) -> str:
    return found[0].replace("dl>", "div>").replace("dd>", "div>").replace("<div>", '<div class="parameters">', 1)


def _paragraphs(lines: Iterable[str]) -> list[list[str]]:
    """Cut lines after each run of empty lines."""
    found: list[list[str]] = [[]]
    for line in lines:
        if line and found[-1] and not found[-1][-1]:
            found.append([])
        found[-1].append(line)
    return found


def _joined(text: list[str]) -> list[str]:
    """Append each line that continues the second column to the line before."""
    lines: list[str] = []
    for line in text:
        if lines and line.startswith(" " * 8):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return lines


def _is_tree(text: list[str]) -> bool:
    return any(line.startswith(("├", "└")) for line in text)


def _is_example(text: list[str]) -> bool:
    return bool(text) and all(line.startswith("    ") for line in text)


def _ends_indented(lines: list[str]) -> bool:
    """Whether the last line that is not empty is indented: what follows continues it."""
    last = next((line for line in reversed(lines) if line), "")
    return last.startswith(" ")
