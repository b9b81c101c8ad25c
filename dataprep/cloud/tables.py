"""Reads the tables of `dataprep/data/`: CSV files whose comments name their source and date."""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterable
from importlib import resources


@functools.cache
def table(name: str) -> list[dict[str, str]]:
    """Return the rows of one of the package's tables."""
    return rows(resources.files("dataprep").joinpath("data", name).read_text(encoding="utf-8").splitlines())


def rows(lines: Iterable[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV file, without blank lines and comments."""
    return list(csv.DictReader(line for line in lines if line.strip() and not line.startswith("#")))
