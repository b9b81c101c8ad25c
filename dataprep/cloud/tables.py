"""Reads the tables of `dataprep/data/`: CSV files whose comments name their source and date."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterable
from datetime import date
from importlib import resources


@functools.cache
def table(name: str) -> list[dict[str, str]]:
    """Return the rows of one of the package's tables."""
    return rows(_text(name).splitlines())


@functools.cache
def table_date(name: str) -> date:
    """Return the date that the first line of a table gives with `as of YYYY-MM-DD`.

    Raises:
        ValueError: The first line has no such date.
    """
    first = _text(name).partition("\n")[0]
    found = re.search(r"as of (\d{4}-\d{2}-\d{2})", first)
    if found is None:
        raise ValueError(f"{name}: its first line is {first!r}, expected one with `as of YYYY-MM-DD`")
    return date.fromisoformat(found[1])


@functools.cache
def table_source(name: str) -> str:
    """Return the address of the page that the first line of a table names as its source.

    Raises:
        ValueError: The first line names none.
    """
    first = _text(name).partition("\n")[0]
    found = re.search(r"Source: (\S+\.\S+), as of ", first)
    if found is None:
        raise ValueError(f"{name}: its first line is {first!r}, expected one with `Source: ADDRESS, as of YYYY-MM-DD`")
    return f"https://{found[1]}"


def fact(name: str) -> float:
    """Return a number of `storage_facts.csv`."""
    return next(float(row["value"]) for row in table("storage_facts.csv") if row["fact"] == name)


def rows(lines: Iterable[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV file, without blank lines and comments."""
    return list(csv.DictReader(line for line in lines if line.strip() and not line.startswith("#")))


def _text(name: str) -> str:
    return resources.files("dataprep").joinpath("data", name).read_text(encoding="utf-8")
