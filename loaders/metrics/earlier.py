"""An earlier result of `dataprep bench` or `dataprep diagnose`, and how a new one differs from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.dataset.documents import decode
from dataprep.errors import UsageError
from dataprep.messages import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA_VERSION = 1
"""Version of the JSON of both commands."""
MAX_RESULT_BYTES = 64 << 20
"""Largest file that is read as an earlier result."""
_FACT = re.compile(
    r"(url|device|limit|verdict|settings .*|machine (cores|processor|platform|python|dataprep|codecs .*)|"
    r"sections .*(url|split|layout|samples))"
)
_FIGURE = re.compile(
    r"((stages|sections)( .*)? )?(\w+_)?(images_per_s|cpu_ms_per_image|utilisation)|(wait|transfer|compute)_share"
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A rate or a share before and now."""

    name: str
    before: float
    now: float
    ratio: float | None
    """The figure now divided by the figure before; None if that was 0."""

    def words(self) -> tuple[str, str, str, str]:
        """Return name, both values and ratio as text."""
        before, now = (f"{each:,.0f}" if each >= 10 else f"{each:.2g}" for each in (self.before, self.now))
        return self.name, before, now, "" if self.ratio is None else f"{self.ratio:.2f}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A result next to an earlier one."""

    differences: tuple[str, ...]
    """Differences of machine, versions, settings, data, device and verdict, each in one line. If there are several, the
    ratios do not show the effect of one."""
    figures: tuple[Figure, ...]

    def text(self) -> RenderableType:
        """Return the comparison for `rich` to print, the differences first."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for justify in ("left", "right", "right", "right"):
            table.add_column(justify=justify, no_wrap=True)
        table.add_row(*(Text(title, style="dim") for title in ("", "before", "now", "now / before")))
        for figure in self.figures:
            table.add_row(*map(printable, figure.words()))
        lines = [Text(printable(f"differs: {each}"), style="yellow", overflow="fold") for each in self.differences]
        return Group(*lines, *([Text("The ratios hold these differences, too.")] if lines else []), table)


def read_earlier(path: Path | None, part: str, command: str) -> Mapping[str, Any] | None:
    """Read the `--json` output of an earlier run of a command; None without a path. Every such result has the list
    `part`. Raises UsageError if the file is absent, too large, or not such a result."""
    if path is None:
        return None
    where, advice = f"--compare {path}", f"give a file that {command} wrote"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_RESULT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror or error}; {advice}") from error
    if len(data) > MAX_RESULT_BYTES:
        raise UsageError(f"{where}: more than {MAX_RESULT_BYTES:,} bytes; {advice}")
    found = decode(data, dict[str, object], where=where, advice=advice, error=UsageError)
    if not isinstance(found.get(part), list) or "schema_version" not in found:
        raise UsageError(f"{where}: it has no schema_version or no list {part!r}; {advice}")
    if found["schema_version"] != SCHEMA_VERSION:
        raise UsageError(
            f"{where}: schema_version {found['schema_version']}, expected {SCHEMA_VERSION}; measure it again"
        )
    return found


def compare(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> Comparison | None:
    """Compare a result with an earlier one, if there is one.

    Stages are matched by name, and datasets by URL and split unless each result has one dataset.
    """
    if before is None:
        return None
    old, new = dict(_leaves(before)), dict(_leaves(json.loads(json.dumps(now))))
    differences = [
        f"{name}: {old.get(name)} before, {new.get(name)} now"
        for name in sorted({*old, *new})
        if _FACT.fullmatch(name) and old.get(name) != new.get(name)
    ]
    figures = [
        Figure(name, old[name], new[name], new[name] / old[name] if old[name] > 0 else None)
        for name in new
        if _FIGURE.fullmatch(name) and all(isinstance(each.get(name), int | float) for each in (old, new))
    ]
    if not any("images_per_s" in figure.name for figure in figures):
        differences.append("no dataset is in both results; compare results of the same URLs, or of one URL each")
    return Comparison(tuple(differences), tuple(figures))


def _leaves(value: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of a document with their paths, in words: objects in a list of several are named."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _leaves(each, *path, name)
    elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        for each in value:
            name = " ".join(str(each[key]) for key in ("name", "url", "split") if key in each)
            yield from _leaves(each, *path, *([name] if len(value) > 1 else []))
    else:
        yield " ".join(path), value
