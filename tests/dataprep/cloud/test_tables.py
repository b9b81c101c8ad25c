"""Every table of `dataprep/data/` names its source and date, and has no row with a cell too many or too few."""

from importlib import resources

import pytest

from dataprep.cloud.tables import rows, table

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
