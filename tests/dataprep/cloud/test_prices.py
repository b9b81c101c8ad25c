"""Prices of a contract replace published ones; a file of anything else is refused."""

from importlib import resources

import pytest

from dataprep.cloud.prices import ANYWHERE, Prices, published_prices, read_prices, rows, table
from dataprep.cloud.region import verdict
from dataprep.errors import UsageError
from dataprep.storage.gcs_location import BucketLocation
from tests.support.markdown import ROOT

EUROPE = BucketLocation(location="EUROPE-WEST4", location_type="region", storage_class="STANDARD")
US = BucketLocation(location="US", location_type="multi-region", storage_class="STANDARD")


def test_prices_of_a_file_replace_the_published_ones(tmp_path):
    file = tmp_path / "prices.csv"
    file.write_text("# contract of 2026\nitem,of,where,usd\ntransfer_per_gib,US,us-central1,0.001\n")
    prices = read_prices(file)
    assert verdict(US, "us-central1-a", prices).usd_per_gib == 0.001
    assert verdict(EUROPE, "us-central1-a", prices).usd_per_gib == 0.05


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "item,of,where,usd\ntransfer_per_gib,a,b,free\n",
            "row 'transfer_per_gib,a,b,free', expected item,of,where,usd",
        ),
        ("item,of\ntransfer_per_gib,a\n", "expected item,of,where,usd"),
        ("item,of,where,usd\ntransfer_per_gib,a,b,-1\n", "costs '-1', expected 0 or more"),
        ("item,of,where,usd\ntransfer_per_gib,a,b,nan\n", "costs 'nan', expected 0 or more"),
        ("item,of,where,usd\ntransfer,a,b,1\n", "no price 'transfer'; expected one of cache_ingest_per_gib"),
    ],
)
def test_a_file_of_other_rows_is_refused(tmp_path, text, message):
    file = tmp_path / "prices.csv"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_prices(file)


def test_a_missing_price_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_prices(tmp_path / "none.csv")


def test_a_price_of_one_place_precedes_that_of_any_place():
    prices = Prices({("item", "a", "us"): 1.0, ("item", "a", ANYWHERE): 2.0})
    assert prices.find("item", "A", "US") == 1.0
    assert prices.find("item", "a", "eu") == 2.0
    assert prices.find("item", "b", "us") is None


def test_published_prices_are_amounts_of_money_by_names_in_lower_case():
    usd = published_prices().usd
    assert len(usd) > 100
    assert all(0 <= price < 1000 for price in usd.values())
    assert all(name == name.lower() for key in usd for name in key[1:])


TABLES = sorted(
    path.name for path in resources.files("dataprep").joinpath("data").iterdir() if path.name.endswith("csv")
)


def test_comments_and_blank_lines_are_skipped():
    assert rows(["# a comment", "", "a,b", "1,2", "# another", "3,4"]) == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]


@pytest.mark.parametrize("name", TABLES)
def test_every_row_of_a_table_is_whole(name):
    found = table(name)
    assert found
    assert all(None not in row and None not in row.values() for row in found)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_begins_with_its_source_or_date(name):
    text = resources.files("dataprep").joinpath("data", name).read_text(encoding="utf-8")
    assert text.startswith("#")
    assert "20" in text.partition("\n\n")[0]


def test_the_price_of_cloud_nat_in_the_documents_is_the_published_one():
    price = published_prices().find("nat_per_gib", ANYWHERE, ANYWHERE)
    assert 53e12 / 2**30 * price == pytest.approx(2_200, abs=50)
    assert "about 2,200 USD for 53 TB" in (ROOT / "docs/clusters.md").read_text()
