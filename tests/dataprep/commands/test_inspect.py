"""`dataprep inspect`: a dataset as text and as JSON, and what it refuses."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from dataprep.commands.inspect import command
from dataprep.errors import UsageError
from dataprep.inspection.inspect import inspect_dataset
from tests.support.adoption import adopt_here
from tests.support.builds import dataprep
from tests.support.fetched import FAULTS
from tests.support.own_data import build_own, class_folders, picture, write_files


def inspected(*words: object) -> str:
    result = CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_numbers_bars_and_troubles_are_printed(finished):
    shown = inspected(finished("imagenet-webdataset"))
    for text in ("imagenet · webdataset", "about 4:3", "█", "rejected: ", " classes of "):
        assert text in shown
    train, _ = inspect_dataset(str(finished("imagenet-webdataset"))).splits
    assert f"{train.samples:,} in {train.shards} shards" in shown
    for trouble in train.troubles:
        assert f"{trouble.kind}: {trouble.count:,} {trouble.reason}" in shown


def test_every_bin_that_is_not_empty_has_a_bar(finished):
    shown = inspected(finished("imagenet-webdataset"), "--split", "train")
    bars = re.findall(r"^ +\S.*?  +([█▏▎▍▌▋▊▉]*) +(\d[\d,]*) +\d+\.\d % *$", shown, re.MULTILINE)
    (train,) = inspect_dataset(str(finished("imagenet-webdataset")), "train").splits
    counts = [count for bins in (train.widths, train.heights, train.aspects, train.sizes) for count in bins.counts]
    assert [int(count.replace(",", "")) for _, count in bars] == counts
    assert [bool(bar) for bar, _ in bars] == [count > 0 for count in counts]
    assert max(len(bar) for bar, _ in bars) == 24


def test_json_has_the_chosen_split(finished):
    (split,) = json.loads(inspected(finished("imagenet-webdataset"), "--json", "--split", "val"))["splits"]
    assert (split["name"], sum(split["aspects"]["counts"])) == ("val", split["samples"])


def test_a_missing_dataset_is_wrong_usage(tmp_path):
    with pytest.raises(UsageError, match="no dataset there"):
        inspected(tmp_path / "nothing")


def test_the_help_says_what_is_listed_of_a_rejected_image(tmp_path):
    files = {f"cats/{number}.jpg": picture(number) for number in range(4)}
    source = write_files(tmp_path / "in", files | {"cats/my bad.jpg": b"<html>"})
    words = ("build", "folder", "--source", source, "--output", tmp_path / "out", "--format", "webdataset")
    detail = "no image: cannot identify image file"
    assert dataprep(*words, "--workers", 1).returncode == 1
    listed = inspected(tmp_path / "out", "--rejected").rstrip("\n").split("\t")
    assert listed == ["train", "rejected", "undecodable", "cats/my=20bad", "cats/my bad.jpg", detail]
    assert dataprep(*words, "--workers", 1, "--max-reject-ratio", 0.5).returncode == 0
    listed = inspected(tmp_path / "out", "--rejected").rstrip("\n").split("\t")
    assert listed == ["train", "rejected", "undecodable", "cats/my=20bad", "cats/my bad", detail]
    words = " ".join(inspected("--help").split())
    assert (
        "split, status, reason, key, then the URL of a row, or the path of an image and what is wrong with it. A "
        "finished dataset no longer has the paths, and shows the keys as text."
    ) in words


def test_a_page_that_cannot_be_written_ends_it_in_one_line(finished, tmp_path):
    run = dataprep("inspect", finished("imagenet-webdataset"), "--html", tmp_path / "no/such/folder.html")
    assert (run.returncode, "cannot be written (No such file or directory)" in run.stderr) == (2, True)
    assert (run.stdout, run.stderr.count("\n")) == ("", 1)


def test_examples_of_a_trouble_end_with_the_number_and_the_place_of_the_others(tmp_path):
    write_files(tmp_path / "in", {f"{number}.png": picture(number, "PNG") for number in range(5)})
    words = ("--source", tmp_path / "in", "--output", tmp_path / "out", "--format", "webdataset", "--workers", 1)
    assert dataprep("build", "folder", *words).returncode == 0
    shown = inspected(tmp_path / "out")
    assert "repaired: 5 png" in shown
    assert "and 2 more: index/train-events.parquet" in shown
    assert re.search(r"5 in 1 shard *$", shown, re.MULTILINE) and "1 pass, 1 stored" in shown


@pytest.fixture(scope="module")
def leaking(tmp_path_factory):
    """A dataset of which 2 images of val are in train as well, and one of train is there twice."""
    folder = tmp_path_factory.mktemp("leaking")
    same = {"train/1.jpg": 1, "train/2.jpg": 2, "train/3.jpg": 3, "train/again.jpg": 3}
    other = {"val/1.jpg": 1, "val/copy.jpg": 2, "val/4.jpg": 4}
    write_files(folder / "in", {name: picture(number) for name, number in (same | other).items()})
    build_own(folder / "in", folder / "out")
    return folder / "out"


def test_images_of_two_splits_are_named_in_text_json_and_page(leaking, tmp_path):
    lines = inspected(leaking).splitlines()
    [line] = [line for line in lines if "also in" in line]
    assert line.startswith("2 images of val are also in train: ")
    assert sorted(line.partition(": ")[2].split(", ")) == ["1", "copy (there 2)"]
    [shared] = json.loads(inspected(leaking, "--json"))["shared"]
    assert (shared["split"], shared["other"], shared["count"]) == ("val", "train", 2)
    assert sorted(shared["examples"]) == [["1", "1"], ["copy", "2"]]
    inspected(leaking, "--html", tmp_path / "page.html")
    assert f"<li>{line}</li>" in (tmp_path / "page.html").read_text()
    alone = json.loads(inspected(leaking, "--json", "--split", "val"))
    assert alone["shared"] == []


def test_duplicates_of_each_split_are_counted_in_text_and_json(leaking):
    lines = [" ".join(line.split()) for line in inspected(leaking).splitlines() if line.startswith("  duplicates ")]
    counts = "duplicates among all images of the split, {} have the size and CRC32C of an earlier one"
    assert lines == [counts.format(1), counts.format(0)]
    splits = json.loads(inspected(leaking, "--json"))["splits"]
    assert [(split["compared"], split["duplicates"]) for split in splits] == [(4, 1), (3, 0)]


def test_without_checksums_no_duplicates_are_looked_for(tmp_path):
    adopt_here(class_folders(tmp_path / "data"))
    assert re.search(r"^  duplicates +not looked for: the index has no checksums", inspected(tmp_path / "data"), re.M)
    document = json.loads(inspected(tmp_path / "data", "--json"))
    assert [(split["compared"], split["duplicates"]) for split in document["splits"]] == [(0, 0)] * 2
    assert document["shared"] == []


def test_a_name_is_shown_as_it_was_written_and_json_has_the_key_and_the_path(tmp_path):
    write_files(tmp_path / "in", {"süß 1.png": picture(1, "PNG")})
    words = ("--source", tmp_path / "in", "--output", tmp_path / "out", "--format", "webdataset", "--workers", 1)
    assert dataprep("build", "folder", *words).returncode == 0
    assert re.search(r"^ +süß 1 ", inspected(tmp_path / "out"), re.MULTILINE)
    (split,) = json.loads(inspected(tmp_path / "out", "--json"))["splits"]
    [[event]] = [trouble["examples"] for trouble in split["troubles"]]
    assert (event["key"], event["path"]) == ("s=C3=BC=C3=9F=201", "süß 1")


def test_the_licence_of_adopted_data_is_said_to_be_unknown(tmp_path):
    adopt_here(class_folders(tmp_path / "data"))
    shown = dataprep("inspect", tmp_path / "data").stdout
    assert re.search(r"licence +unknown, not stated *\n", shown)
    assert re.search(r"classes .*: .*", shown) and "fewest" not in shown


def test_lines_that_go_to_a_file_are_neither_wrapped_nor_end_with_spaces(tmp_path):
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    adopt_here(class_folders(folder))
    lines = inspected(folder).splitlines()
    assert [line.split() for line in lines if line.startswith("  at ")] == [["at", str(folder)]]
    assert [line for line in lines if line != line.rstrip()] == []


def test_rejected_rows_are_lines_or_entries_of_one_object(fetched):
    url = fetched("webdataset")
    lines = inspected(url, "--rejected").splitlines()
    assert len(lines) == len(FAULTS)
    assert re.fullmatch(r"train\tfailed to download\thttp 503\t000002\thttp://127\.0\.0\.1:\d+/2\.jpg", lines[0])
    found = json.loads(inspected(url, "--rejected", "--json"))
    assert (found["url"], len(found["rejected"])) == (str(url), len(FAULTS))
    assert found["rejected"][0].keys() == {"split", "key", "status", "reason", "origin", "detail"}


def test_a_dataset_without_rejected_images_has_an_empty_list(finished):
    url = finished("imagenet-webdataset")
    assert (inspected(url, "--rejected", "--split", "val") == "") == (
        json.loads(inspected(url, "--rejected", "--split", "val", "--json"))["rejected"] == []
    )
    with pytest.raises(UsageError, match="--rejected with --html"):
        inspected(url, "--rejected", "--html", "page.html")
