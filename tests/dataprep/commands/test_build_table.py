"""`dataprep build table` as a newcomer uses it."""

import json

import pytest

from dataprep.dataset.index import read_events
from dataprep.dataset.manifest import read_manifest
from dataprep.storage import open_storage
from tests.support.builds import dataprep, refuses, succeeds
from tests.support.finished import verify_here
from tests.support.own_data import picture, write_files
from tests.support.tables import hub, listed
from tests.support.words import replaced


def command(source, output, *more):
    return ["build", "table", "--source", source, "--output", output, "--format", "webdataset", *more]


def test_a_folder_of_the_hub(tmp_path):
    source, output = hub(tmp_path / "Dog Breeds"), tmp_path / "out"
    shown = succeeds(*command(source, output, "--dry-run"))
    assert "images are in parquet files: " in shown.stderr
    assert "are unpacked below the output's _build/, and removed when the dataset is complete" in shown.stderr
    assert "train: 10 samples in 1 shard," in shown.stdout
    assert not output.exists()
    run = succeeds(*command(source, output, "--licence", "CC0-1.0", "--json"))
    found = json.loads(run.stdout)
    assert (found["name"], found["licence"], found["classes"]) == ("dog-breeds", "CC0-1.0", ["beagle", "husky", "pug"])
    assert [(split["name"], split["samples"]) for split in found["splits"]] == [("train", 10), ("val", 3)]
    assert {source["name"] for source in found["sources"]} == {
        "data/train-00000-of-00002.parquet",
        "data/train-00001-of-00002.parquet",
        "data/validation-00000-of-00001.parquet",
    }
    assert not (output / "_build").exists()
    again = dataprep(*command(source, output, "--licence", "CC0-1.0"))
    assert "was already complete; nothing was done" in again.stdout
    assert not (output / "_build").exists()
    assert verify_here(output, deep=True).verdict == "complete"


def test_one_table_beside_its_images_and_the_output(tmp_path):
    source = listed(tmp_path / "dogs") / "dogs.csv"
    succeeds(*command(source, tmp_path / "dogs/out", "--label-from", "breed", "--workers", 1))
    manifest = read_manifest(open_storage(str(tmp_path / "dogs/out")))
    assert (manifest.name, manifest.classes, manifest.splits[0].samples) == ("dogs", ("beagle", "pug"), 4)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--table", "dogs.csv"], "--table dogs.csv: --source is a table itself"),
        (["--label-from", "folder"], "a table has its labels in a column"),
        (["--output", "hf://datasets/some/dogs"], "--output hf://datasets/some/dogs: dataprep only reads from there"),
        (["--split", "training"], "--split training: expected one of train, val, test"),
    ],
)
def test_options_that_are_refused(tmp_path, more, text):
    run = refuses(*replaced(command(listed(tmp_path / "dogs") / "dogs.csv", tmp_path / "out"), *more))
    assert text in run.stderr


def pictures(root, *more, count=20):
    """Write a table of pictures, more rows of it, and files that these name: a TIFF, and one without a byte."""
    files = {f"images/{number}.jpg": picture(number) for number in range(count)}
    files |= {"images/scan.tif": picture(1, "TIFF"), "images/empty.jpg": b""}
    rows = [f"images/{number}.jpg,{number % 2}" for number in range(count)]
    return write_files(root, files | {"data.csv": "\n".join(["image,label", *rows, *more, ""])}) / "data.csv"


ODD = ("images/scan.tif,0", "images/absent.jpg,1", "images/empty.jpg,1")


def test_images_that_cannot_be_used_are_rejected_and_listed_if_the_ratio_allows_it(tmp_path):
    source, output = pictures(tmp_path / "pics", *ODD), tmp_path / "out"
    refused = refuses(*command(source, output, "--dry-run"))
    assert "'data.csv' line 22: 'images/scan.tif': a picture of type tif, which is not read; " in refused.stderr
    assert "1 of 23 images are not below" in refused.stderr and "'images/absent.jpg' (line 23)" in refused.stderr
    assert "1 image without a byte: 'images/empty.jpg' (line 24); replace it, or remove the row" in refused.stderr
    assert refused.stderr.count("or have them rejected and listed with --max-reject-ratio 0.1305") == 3
    assert dataprep(*command(source, output, "--max-reject-ratio", 0.1)).returncode == 2  # three of 23 are more
    told = "warning: train: 3 of 23 images cannot be used (missing, empty or of a type that is not read)"
    for more in (["--dry-run"], ["--workers", 1]):
        run = succeeds(*command(source, output, "--max-reject-ratio", 0.1305, *more))
        assert f"{told}, and will be rejected and listed: 'images/scan.tif' (line 22), " in run.stderr
    assert "3 rejected (1 empty, 1 missing, 1 undecodable)" in run.stdout
    rejected = {
        event.key: (event.kind, event.reason)
        for event in read_events(open_storage(str(output)), "index/train-events.parquet")
    }
    assert rejected == {
        "images/scan": ("rejected", "undecodable"),
        "images/absent": ("rejected", "missing"),
        "images/empty": ("rejected", "empty"),
    }
    listing = dataprep("inspect", output, "--rejected").stdout
    assert "images/scan\ta picture of type TIFF, which is not read\n" in listing
    assert verify_here(output, deep=True).verdict == "complete"


@pytest.mark.parametrize("more", [["--dry-run"], []])
def test_all_missing_images_are_in_the_json(tmp_path, more):
    source = pictures(tmp_path / "pics", *(f"images/absent-{number}.jpg,1" for number in range(5)))
    run = refuses(*command(source, tmp_path / "out", "--json", *more))
    assert (
        "5 of 25 images are not below" in run.stderr and "... (the JSON output lists all); put them there" in run.stderr
    )
    found = json.loads(run.stdout)
    assert found["missing"] == [
        {"image": f"images/absent-{number}.jpg", "row": f"'data.csv' line {22 + number}"} for number in range(5)
    ]
    assert "5 of 25 images are not below" in found["error"]


def test_pictures_that_no_row_names_are_told(tmp_path):
    source, told = pictures(tmp_path / "pics"), "note: 2 pictures next to the table's are in no row"
    shown = dataprep(*command(source, tmp_path / "out", "--dry-run"))
    assert f"{told}, so they are left out: 'images/empty.jpg', 'images/scan.tif'\n" in shown.stderr
    run = dataprep(*command(source, tmp_path / "out", "--workers", 1, "--json"))
    assert any(note.startswith(told) for note in json.loads(run.stdout)["notes"])
