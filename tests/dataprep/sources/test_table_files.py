"""Which files are tables, and of which splits."""

from __future__ import annotations

import pytest

from dataprep.errors import SourceError, UsageError
from dataprep.sources.table_files import stems, tables_by_split
from dataprep.storage import open_originals
from tests.support.own_data import write_files


def found(root, *names, only=""):
    notes = []
    tables = tables_by_split(open_originals(str(write_files(root, dict.fromkeys(names, b"x")))), only, notes)
    return {split: [table.name for table in tables[split]] for split in tables}, notes


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["a.csv"], {"train": ["a.csv"]}),
        (["b.parquet", "a/x.parquet"], {"train": ["a/x.parquet", "b.parquet"]}),
        (
            [
                "data/train-00000-of-00002.parquet",
                "data/train-00001-of-00002-ab12.parquet",
                "data/validation-0.parquet",
            ],
            {
                "train": ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002-ab12.parquet"],
                "val": ["data/validation-0.parquet"],
            },
        ),
        (
            ["default/partial-train/0000.parquet", "default/test/0000.parquet", ".cache/train.parquet"],
            {"train": ["default/partial-train/0000.parquet"], "test": ["default/test/0000.parquet"]},
        ),
        (["Dev.tsv", "my_training_set.tsv"], {"train": ["my_training_set.tsv"], "val": ["Dev.tsv"]}),
        (["constrained.csv", "latest.csv"], {"train": ["constrained.csv", "latest.csv"]}),
    ],
)
def test_splits_are_in_the_names(tmp_path, names, splits):
    assert found(tmp_path, *names)[0] == splits


def test_other_files_are_passed_over_and_counted(tmp_path):
    splits, notes = found(tmp_path, "train.csv", "images/1.jpg", "README.md", "LICENSE", "x/more.md", "Icon\r", "a\\b")
    assert splits == {"train": ["train.csv"]}
    assert notes == ["passed over, because they are not tables: 2 .md, 1 hidden or of the system, 2 without suffix"]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a.csv", "b.parquet"], "tables of different kinds, .csv and .parquet; .* such as --table a.csv"),
        (["train.csv", "extra.csv"], "extra.csv: its name says none of the splits train, val and test"),
        (["train/val.csv", "test.csv"], "train/val.csv: its name says train and val"),
        ([], "no table .found no file.; expected one of .parquet, .csv, .tsv, .jsonl: check --source$"),
        (["1.jpg", "2.jpg"], "no table .found 2 .jpg.; .* dataprep build folder --source"),
    ],
)
def test_tables_that_do_not_belong_together(tmp_path, names, text):
    with pytest.raises(SourceError, match=text):
        found(tmp_path, *names)


def test_the_user_names_a_table_or_a_folder(tmp_path):
    names = ["a/train.csv", "a/val.csv", "b/x.jsonl", "c.txt"]
    assert found(tmp_path, *names, only="a/val.csv") == ({"val": ["a/val.csv"]}, [])
    assert found(tmp_path, only="a") == ({"train": ["a/train.csv"], "val": ["a/val.csv"]}, [])
    with pytest.raises(UsageError, match=r"c.txt is no table by its name"):
        found(tmp_path, only="c.txt")
    with pytest.raises(SourceError, match=r"absent: no table"):
        found(tmp_path, only="absent")


def test_a_stem_is_short_and_of_one_table(tmp_path):
    tables = tables_by_split(
        open_originals(str(write_files(tmp_path, dict.fromkeys(["d/a/0.csv", "d/b/0.csv", "d/b/1.x.csv"], b"x")))),
        "",
        [],
    )["train"]
    assert list(stems(tables).values()) == ["a/0", "b/0", "b/1.x"]
    assert list(stems(tables[1:]).values()) == ["0", "1.x"]
