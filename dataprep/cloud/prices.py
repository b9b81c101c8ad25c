"""Tables of `dataprep/data/`, whose comments name their source and date, and the prices of Google Cloud in them.

A contract's prices can replace the published ones. All names of prices are in lower case.
"""

from __future__ import annotations

import csv
import functools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from importlib import resources
from pathlib import Path

from dataprep.errors import UsageError

Key = tuple[str, str, str]
"""Key of a price: the columns `item`, `of` (what is charged) and `where`."""
ANYWHERE = "*"
COLUMNS = ("item", "of", "where", "usd")
TABLES = ("network_prices.csv", "storage_prices.csv", "cache_prices.csv", "egress_prices.csv")
STALE_DAYS = 180
"""Age of a table, in days, from which its prices should be compared with the page again."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in USD."""

    usd: Mapping[Key, float]

    def find(self, item: str, of: str, where: str) -> float | None:
        """Return the price for one place, else the one for all places; None if none is published."""
        of, where = of.lower(), where.lower()
        found = self.usd.get((item, of, where))
        return self.usd.get((item, of, ANYWHERE)) if found is None else found


@functools.cache
def published_prices() -> Prices:
    """Return the prices in the package's own tables."""
    return Prices({key: usd for name in TABLES for key, usd in _prices_in(name, table(name)).items()})


def price_dates() -> dict[str, date]:
    """Return the date of each table: on that day the price page was read."""
    return {name: _origin(name)[1] for name in TABLES}


def stale_tables(today: date) -> str:
    """Return a line about the tables that are older than STALE_DAYS; empty if none is."""
    old = {name: read for name, read in price_dates().items() if (today - read).days > STALE_DAYS}
    if not old:
        return ""
    found = [f"{name} of {read}, {(today - read).days} days ago" for name, read in old.items()]
    pages = dict.fromkeys(_origin(name)[0] for name in old)
    return (
        f"old prices: {', '.join(found)}; compare them with {', '.join(pages)}; a newer version of this package may "
        "have newer ones, and check-region accepts your own prices as `prices`"
    )


def read_prices(path: Path) -> Prices:
    """Read a CSV file whose rows replace published prices, with a contract's prices or newer ones.

    Raises:
        UsageError: The file cannot be read, or has another row than `item,of,where,usd`.
    """
    try:
        found = rows(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); give a CSV file with {','.join(COLUMNS)}") from error
    return Prices({**published_prices().usd, **_prices_in(str(path), found)})


def _prices_in(name: str, entries: Iterable[Mapping[str, str]]) -> dict[Key, float]:
    known = {key[0] for key in published_prices().usd} if name not in TABLES else None
    found = {}
    for row in entries:
        try:
            item, of, where, usd = row["item"], row["of"].lower(), row["where"].lower(), float(row["usd"])
        except (KeyError, TypeError, ValueError, AttributeError):
            shown = ",".join(str(value) for value in row.values())
            raise UsageError(f"{name}: row {shown!r}, expected {','.join(COLUMNS)} and a number in usd") from None
        if not 0 <= usd < math.inf:
            raise UsageError(f"{name}: {item} of {of} in {where} costs {row['usd']!r}, expected 0 or more")
        if known is not None and item not in known:
            raise UsageError(f"{name}: no price {item!r}; expected one of {', '.join(sorted(known))}")
        found[item, of, where] = usd
    return found


@functools.cache
def table(name: str) -> list[dict[str, str]]:
    """Return the rows of one of the package's tables."""
    return rows(_text(name).splitlines())


def fact(name: str) -> float:
    """Return a number from `storage_facts.csv` by name."""
    return next(float(row["value"]) for row in table("storage_facts.csv") if row["fact"] == name)


def rows(lines: Iterable[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV file, without blank lines and comments."""
    return list(csv.DictReader(line for line in lines if line.strip() and not line.startswith("#")))


@functools.cache
def _origin(name: str) -> tuple[str, date]:
    """Return the page that a table was read from, and the day on which it was read."""
    found = re.match(r"# Source: (\S+), as of (\d{4}-\d{2}-\d{2})", _text(name))
    if found is None:
        raise ValueError(f"{name}: its first line must begin with `# Source: ADDRESS, as of YYYY-MM-DD`")
    return f"https://{found[1]}", date.fromisoformat(found[2])


def _text(name: str) -> str:
    return resources.files("dataprep").joinpath("data", name).read_text(encoding="utf-8")
