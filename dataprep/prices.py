"""The tables of `dataprep/data/`: what Google Cloud charges, and which places there are. All names in lower case."""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from dataprep.errors import UsageError

Key = tuple[str, str, str]
ANYWHERE = "*"
COLUMNS = ("item", "of", "where", "usd")
_TABLES = ("network_prices.csv", "storage_prices.csv")


@dataclass(frozen=True, slots=True)
class Prices:
    """USD by item, what it is charged of, and where."""

    usd: Mapping[Key, float]

    def find(self, item: str, of: str, where: str) -> float | None:
        """The price that holds there, else the one that holds anywhere; None where none is published."""
        of, where = of.lower(), where.lower()
        found = self.usd.get((item, of, where))
        return self.usd.get((item, of, ANYWHERE)) if found is None else found


@functools.cache
def published_prices() -> Prices:
    """Those of the tables that come with dataprep."""
    return Prices({key: usd for name in _TABLES for key, usd in _prices_in(name, table(name)).items()})


def read_prices(path: Path) -> Prices:
    """The published prices with the rows of a CSV file in their place: a contract's, or newer ones.

    Raises:
        UsageError: The file cannot be read, or has another row than `item,of,where,usd`.
    """
    try:
        rows = _rows(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); give a CSV file with {','.join(COLUMNS)}") from error
    return Prices({**published_prices().usd, **_prices_in(str(path), rows)})


@functools.cache
def table(name: str) -> list[dict[str, str]]:
    """The rows of a table in `dataprep/data/`, without its comments."""
    return _rows(resources.files("dataprep").joinpath("data", name).read_text(encoding="utf-8").splitlines())


def _rows(lines: Iterable[str]) -> list[dict[str, str]]:
    return list(csv.DictReader(line for line in lines if line.strip() and not line.startswith("#")))


def _prices_in(name: str, rows: Iterable[Mapping[str, str]]) -> dict[Key, float]:
    known = {key[0] for key in published_prices().usd} if name not in _TABLES else None
    found = {}
    for row in rows:
        try:
            item, of, where, usd = row["item"], row["of"].lower(), row["where"].lower(), float(row["usd"])
        except (KeyError, TypeError, ValueError, AttributeError):
            shown = ",".join(str(value) for value in row.values())
            raise UsageError(f"{name}: row {shown!r}, expected {','.join(COLUMNS)} and a number in usd") from None
        if not 0 <= usd < math.inf:
            raise UsageError(f"{name}: {item} of {of} in {where} costs {row['usd']!r}, expected 0 or more")
        if known is not None and item not in known:
            raise UsageError(f"{name}: no price {item!r}; there are {', '.join(sorted(known))}")
        found[item, of, where] = usd
    return found
