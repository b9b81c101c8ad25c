"""Results of earlier runs, read from files, and their differences from a new result, except rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dataprep.dataset.documents import decode
from dataprep.errors import UsageError
from dataprep.host.versions import MachineDocument

MAX_RESULT_BYTES = 64 << 20
"""Largest file that is read as an earlier result."""
_FACTS = ("cores", "processor", "platform", "python", "dataprep")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Versioned:
    schema_version: int


def read_earlier(path: Path, kind: type[Result], schema_version: int, command: str) -> Result:
    """Read what a command printed with `--json` in an earlier run.

    Raises:
        UsageError: The file is absent, too large, or not such a result.
    """
    advice = f"give a file that {command} wrote"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_RESULT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--compare {path}: {error.strerror or error}; {advice}") from error
    if len(data) > MAX_RESULT_BYTES:
        raise UsageError(f"--compare {path}: more than {MAX_RESULT_BYTES:,} bytes; {advice}")
    where = f"--compare {path}"
    found = decode(data, _Versioned, where=where, advice=advice, error=UsageError).schema_version
    if found != schema_version:
        raise UsageError(f"{where}: schema_version {found}, expected {schema_version}; measure it again")
    return decode(data, kind, where=where, advice=advice, error=UsageError)


def machine_differences(before: MachineDocument, now: MachineDocument) -> Iterator[str]:
    """Yield a line for each fact of the machine and its software that differs; the time and the load may."""
    old, new = ({name: value for name, value in each.items() if name in _FACTS} for each in (before, now))
    yield from changed("machine", old, new)
    yield from changed("version of", before["codecs"], now["codecs"])


def changed(what: str, before: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    """Yield a line for each value that differs."""
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if old != new:
            yield f"{what} {name}: {old} before, {new} now"
