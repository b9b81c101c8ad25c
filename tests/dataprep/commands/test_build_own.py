"""What the commands for a user's own data share."""

from __future__ import annotations

import pytest

from dataprep.commands.build_own import place_of
from dataprep.sources.tables import is_table


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("gs://bucket/lists/train.csv", ("gs://bucket/lists", "train.csv")),
        ("gs://bucket/lists", ("gs://bucket/lists", "")),
        ("/data/x.parquet", ("/data", "x.parquet")),
        ("/x.parquet", ("/", "x.parquet")),
        ("/data", ("/data", "")),
    ],
)
def test_a_single_file_lies_in_the_folder_above(source, place):
    assert place_of(source, is_table) == place


def test_a_folder_may_have_the_name_of_a_file(tmp_path):
    (tmp_path / "x.parquet").mkdir()
    assert place_of(f"{tmp_path}/x.parquet", is_table) == (f"{tmp_path}/x.parquet", "")
