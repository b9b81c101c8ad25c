"""Which files are tables, and of which splits."""

import shlex
import subprocess
import sys

import pytest

from dataprep.errors import SourceError, UsageError
from dataprep.sources.image_tables import stems, tables_by_split
from dataprep.storage import open_originals
from tests.support.builds import command, dataprep
from tests.support.own_data import write_files
from tests.support.tables import hub, hub_rows, write_hub


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
    assert notes == ["skipped, because they are not tables: 2 .md, 1 hidden or of the system, 2 without suffix"]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a.csv", "b.parquet"], "tables of different kinds, .csv and .parquet; .* such as `table` a.csv"),
        (["train.csv", "extra.csv"], "extra.csv: its name says none of the splits train, val and test"),
        (["train/val.csv", "test.csv"], "train/val.csv: its name says train and val"),
        ([], "no table .found no file.; expected one of .parquet, .csv, .tsv, .jsonl: check `source`$"),
        (["1.jpg", "2.jpg"], "no table .found 2 .jpg.; .* dataprep build folder `source`"),
    ],
)
def test_tables_that_do_not_belong_together(tmp_path, names, text):
    with pytest.raises(SourceError, match=text):
        found(tmp_path, *names)


def test_the_user_names_a_table_or_a_folder(tmp_path):
    names = ["a/train.csv", "a/val.csv", "b/x.jsonl", "c.txt"]
    assert found(tmp_path, *names, only="a/val.csv") == ({"val": ["a/val.csv"]}, [])
    assert found(tmp_path, only="a") == ({"train": ["a/train.csv"], "val": ["a/val.csv"]}, [])
    with pytest.raises(UsageError, match=r"c.txt is not a table by its name"):
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


def refused(source, folder):
    """What each command says that finds none of its own files in a source."""
    out = ["--output", folder / "out", "--format", "webdataset"]
    return [
        run.stderr.strip()
        for run in (
            dataprep("adopt", source, "--index", folder / "index"),
            dataprep("build", "folder", "--source", source, *out),
            dataprep("build", "table", "--source", source, *out),
        )
        if run.returncode == 2
    ]


def built(advice, folder):
    """Build the tables that an error names; return what is printed."""
    (source,) = shlex.split(advice.removeprefix("dataprep build table reads "))
    words = ["build", "table", "--source", source, "--output", folder.parent / "whole", "--format", "webdataset"]
    run = subprocess.run(command(*words, "--name=dogs"), capture_output=True, text=True, check=False, cwd=folder)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_a_folder_of_parquet_is_built_by_the_command_of_the_error(tmp_path):
    source = hub(tmp_path / "my tables")
    adopt, folder = refused(source, tmp_path)  # build table builds it
    assert adopt.endswith("nothing to adopt: dataprep build table reads tables")
    assert folder.endswith("no image: dataprep build table reads tables")
    assert "val: 3 samples" in built(shlex.quote(str(source)), tmp_path)


@pytest.mark.parametrize("splits", [(), ("test", "train")])
def test_what_save_to_disk_wrote_is_built_by_the_commands_of_the_error(tmp_path, splits):
    import datasets

    data = datasets.Dataset.from_parquet(str(write_hub(tmp_path / "x.parquet", hub_rows(3))), cache_dir=str(tmp_path))
    saved = tmp_path / "my 'saved'"
    (datasets.DatasetDict(dict.fromkeys(splits, data)) if splits else data).save_to_disk(str(saved))
    errors = refused(saved, tmp_path)
    assert len(errors) == 3
    (advice,) = {error.partition("save_to_disk of datasets")[2] for error in errors}
    work = tmp_path / "work"
    work.mkdir()
    code, build = advice.partition(": ")[2].split("; then: ")
    assert ("in an empty folder" in advice) == bool(splits)
    subprocess.run([sys.executable, *shlex.split(code)[1:]], check=True, cwd=work)
    stdout = built(build, work)
    assert all(f"{split}: 3 samples" in stdout for split in splits or ("train",))


def test_shards_of_mosaicml_are_named(tmp_path):
    source = write_files(tmp_path / "data", {"train/index.json": "{}", "train/shard.00000.mds": b"x"})
    errors = refused(source, tmp_path)
    assert len(errors) == 3
    assert all("shards of MosaicML's streaming (.mds) are not read" in error for error in errors)
