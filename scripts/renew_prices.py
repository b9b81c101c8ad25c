"""Renews the price tables of dataprep/data/, and prints what changes.

    python scripts/renew_prices.py --page rows.csv --read 2026-12-01            # print what differs, change nothing
    python scripts/renew_prices.py --page rows.csv --read 2026-12-01 --write
    python scripts/renew_prices.py --catalog skus.json

`--page` is a CSV file `item,of,where,usd` with the prices that the price page shows on the day `--read`. A table gets
that day as its date only if all its rows were read. `--catalog` is the answer of the Cloud Billing Catalog for Cloud
Storage (GET https://cloudbilling.googleapis.com/v1/services/95FF-2EF5-5EA1/skus?key=KEY); it is compared for the SKUs
in `price_skus.csv`, and dates stay. Exit code 0: nothing differs, or it was written; 1: something differs; 2: wrong
usage.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from dataprep.cloud.prices import COLUMNS, TABLES, Key, rows

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "dataprep/data"
SKUS = Path(__file__).with_name("price_skus.csv")
_DATE = re.compile(r"as of \d{4}-\d{2}-\d{2}")
_NANO = 1e-9


def main(arguments: list[str] | None = None, data: Path = DATA) -> int:
    options = _parser().parse_args(arguments)
    try:
        read = catalog_prices(options.catalog) if options.catalog else page_prices(options.page)
        changed = [line for name in TABLES for line in renew(data / name, read, options.read, write=options.write)]
        known = {key for name in TABLES for key in _prices((data / name).read_text(encoding="utf-8"))}
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"renew_prices: {error}; expected the file that --help describes", file=sys.stderr)
        return 2
    changed += [
        f"not in any table: {','.join(key)},{read[key]:g}; add the row by hand" for key in sorted(read.keys() - known)
    ]
    print("\n".join(changed) if changed else "nothing differs")
    return 1 if changed and not options.write else 0


def renew(path: Path, read: Mapping[Key, float], day: date | None, *, write: bool) -> list[str]:
    """Compare a table with prices, and write them into it if asked.

    Args:
        path: The table.
        read: Prices by key; those of other tables are ignored.
        day: Day on which the prices were read; None if the table's date must stay.
        write: Change the file.

    Returns:
        A line for each price that differs, and for each row that was not read if others of the table were.
    """
    text = path.read_text(encoding="utf-8")
    old = _prices(text)
    if not old.keys() & read.keys():
        return []
    differs = {key: read[key] for key in old.keys() & read.keys() if read[key] != old[key]}
    lines = [f"{path.name}: {','.join(key)}: {old[key]:g} -> {usd:g}" for key, usd in sorted(differs.items())]
    missing = sorted(old.keys() - read.keys())
    if day is not None:
        lines += [f"{path.name}: {','.join(key)}: not read, so the table keeps its date" for key in missing]
    if write:
        path.write_text(_renewed(text, differs, None if missing else day), encoding="utf-8")
    return lines


def page_prices(path: Path) -> dict[Key, float]:
    """Return the prices of a CSV file with the columns of the tables."""
    return _prices(path.read_text(encoding="utf-8"))


def catalog_prices(path: Path) -> dict[Key, float]:
    """Return the prices of the SKUs in `price_skus.csv`: the last tier's, because the first may be free."""
    skus = {sku["skuId"]: sku for sku in json.loads(path.read_text(encoding="utf-8"))["skus"]}
    found = {}
    for row in rows(SKUS.read_text(encoding="utf-8").splitlines()):
        if row["sku"] in skus:
            tiers = skus[row["sku"]]["pricingInfo"][-1]["pricingExpression"]["tieredRates"]
            usd = tiers[-1]["unitPrice"]
            price = int(usd.get("units") or 0) + int(usd.get("nanos") or 0) * _NANO
            found[row["item"], row["of"], row["where"]] = round(price, 9)
    return found


def _prices(text: str) -> dict[Key, float]:
    found = {}
    for row in rows(text.splitlines()):
        if None in row.values() or set(row) != set(COLUMNS):
            raise ValueError(f"row {','.join(map(str, row.values()))!r}, expected {','.join(COLUMNS)}")
        found[row["item"], row["of"], row["where"]] = float(row["usd"])
    return found


def _renewed(text: str, differs: Mapping[Key, float], day: date | None) -> str:
    """Return a table with other prices and another date; comments, order and all other rows stay as they are."""
    lines = text.splitlines()
    if day is not None:
        lines[0] = _DATE.sub(f"as of {day}", lines[0])
    for number, line in enumerate(lines):
        item, of, where = ([*next(csv.reader([line]), []), "", "", ""])[:3]
        if (item, of, where) in differs and not line.startswith("#"):
            lines[number] = f"{item},{of},{where},{differs[item, of, where]:.9f}".rstrip("0").rstrip(".")
    return "\n".join(lines) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--page", type=Path, help="CSV file with prices that were read from the page")
    source.add_argument("--catalog", type=Path, help="JSON file of the Cloud Billing Catalog")
    parser.add_argument("--read", type=date.fromisoformat, help="day on which the page was read")
    parser.add_argument("--write", action="store_true", help="change the tables")
    return parser


if __name__ == "__main__":
    sys.exit(main())
