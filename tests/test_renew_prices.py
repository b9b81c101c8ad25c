"""scripts/renew_prices.py: what it prints of other prices, what it writes, and tables that grow old."""

from __future__ import annotations

import json
import shutil
import warnings
from datetime import date, timedelta

import pytest

from dataprep.cloud.prices import STALE_DAYS, TABLES, price_dates, stale_tables
from scripts.renew_prices import DATA, main

PAGE = "item,of,where,usd\n"
CACHE = DATA / "cache_prices.csv"


@pytest.fixture
def data(tmp_path):
    for name in TABLES:
        shutil.copy(DATA / name, tmp_path)
    return tmp_path


@pytest.fixture
def page(tmp_path):
    def write(*rows: str):
        path = tmp_path / "page.csv"
        path.write_text(PAGE + "".join(f"{row}\n" for row in rows))
        return str(path)

    return write


def cache_rows() -> list[str]:
    return [line for line in CACHE.read_text().splitlines() if line.startswith("cache_")]


def test_the_same_prices_differ_in_nothing(data, page, capsys):
    assert main(["--page", page(*cache_rows()), "--read", "2026-09-20"], data) == 0
    assert capsys.readouterr().out == "nothing differs\n"


def test_what_differs_is_printed_and_nothing_is_written_unasked(data, page, capsys):
    rows = [row.replace("0.0032", "0.004") for row in cache_rows()]
    assert main(["--page", page(*rows), "--read", "2027-01-02"], data) == 1
    assert capsys.readouterr().out == "cache_prices.csv: cache_ingest_per_gib,rapid-cache,*: 0.0032 -> 0.004\n"
    assert (data / CACHE.name).read_bytes() == CACHE.read_bytes()


def test_writing_changes_the_price_and_the_date_alone(data, page):
    rows = [row.replace("0.0032", "0.004") for row in cache_rows()]
    assert main(["--page", page(*rows), "--read", "2027-01-02", "--write"], data) == 0
    expected = CACHE.read_text().replace("0.0032", "0.004").replace("as of 2026-09-20", "as of 2027-01-02")
    assert (data / CACHE.name).read_text() == expected


def test_a_table_of_which_rows_were_not_read_keeps_its_date(data, page, capsys):
    assert main(["--page", page(*cache_rows()[1:]), "--read", "2027-01-02", "--write"], data) == 0
    assert "not read, so the table keeps its date" in capsys.readouterr().out
    assert (data / CACHE.name).read_bytes() == CACHE.read_bytes()


def test_a_price_that_no_table_has_is_named(data, page, capsys):
    assert main(["--page", page("cache_magic,x,*,1")], data) == 1
    assert "not in any table: cache_magic,x,*,1; add the row by hand" in capsys.readouterr().out


@pytest.mark.parametrize("rows", ["cache_read_per_gib,rapid-cache", "cache_read_per_gib,rapid-cache,*,free"])
def test_a_file_of_another_form_is_wrong_usage(data, page, capsys, rows):
    assert main(["--page", page(rows)], data) == 2
    assert "expected" in capsys.readouterr().err


def test_the_catalog_of_google_is_compared_by_sku(data, tmp_path, capsys):
    def sku(number: str, *nanos: int) -> dict:
        tiers = [{"unitPrice": {"units": "0", "nanos": price}} for price in nanos]
        return {"skuId": number, "pricingInfo": [{"pricingExpression": {"tieredRates": tiers}}]}

    path = tmp_path / "skus.json"
    path.write_text(json.dumps({"skus": [sku("8878-37D4-D2AC", 0, 20_000_000), sku("C7FF-4F9E-C0DB", 60_000_000)]}))
    assert main(["--catalog", str(path)], data) == 1
    assert capsys.readouterr().out.splitlines() == [
        "network_prices.csv: transfer_per_gib,europe,north-america: 0.05 -> 0.06",
        "network_prices.csv: transfer_per_gib,north-america,europe: 0.05 -> 0.06",
    ]


def test_a_table_is_stale_after_its_days():
    newest, oldest = max(price_dates().values()), min(price_dates().values())
    assert stale_tables(oldest + timedelta(days=STALE_DAYS)) == ""
    assert [name for name in TABLES if name in stale_tables(oldest + timedelta(days=STALE_DAYS + 1))] == [
        name for name, read in price_dates().items() if read == oldest
    ]
    line = stale_tables(newest + timedelta(days=STALE_DAYS + 1))
    assert [name for name in TABLES if f"{name} of {price_dates()[name]}, " in line] == list(TABLES)
    assert (
        line.count(
            "a newer version of this package may have newer ones, and check-region accepts your own prices as `prices`"
        )
        == 1
    )
    assert line.count("compare them with https://cloud.google.com/storage/pricing, https://cloud-cost-") == 1
    assert "\n" not in line


@pytest.mark.filterwarnings("default")
def test_stale_tables_are_warned_of():
    """Warns and does not fail: a date alone must not break a build."""
    if line := stale_tables(date.today()):
        warnings.warn(line, UserWarning, stacklevel=1)
