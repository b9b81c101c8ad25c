"""What a dataset leaves out: rows of a table of URLs by their newest status, and originals from events."""

from __future__ import annotations

from collections import Counter

import pytest

from dataprep.dataset.paths import readable
from dataprep.errors import BuildError, UsageError
from dataprep.inspection.inspect import inspect_dataset
from dataprep.inspection.rejected import rejected
from tests.support.fetched import FAULTS, ROWS, SHARD_ROWS, adopt_here, build_table, retry
from tests.support.img2dataset import write_img2dataset
from tests.support.own_data import build_own, picture, write_files
from tests.support.picture_web import picture_web


def key_of(row: int) -> str:
    return f"{row // SHARD_ROWS:05d}{row % SHARD_ROWS}"


def test_each_failed_row_is_listed_once_with_its_newest_reason(tmp_path):
    url = str(tmp_path / "out")
    with picture_web() as web:
        web.faults = dict(FAULTS)
        build_table(web, tmp_path, url, "webdataset")
        at = f"http://127.0.0.1:{web.port}"
        expected = {key_of(row): (f"http {code}", f"{at}/{row}.jpg") for row, code in FAULTS.items()}
        found = list(rejected(url))
        assert {row.key: (row.reason, row.origin) for row in found} == expected
        assert len(found) == len(FAULTS)
        assert {(row.split, row.status, row.detail) for row in found} == {("train", "failed_to_download", "")}
        web.faults = {2: 404}
        retry(url)
        left = dict.fromkeys((2, 5, 30), 404)
    assert sorted((row.key, row.reason) for row in rejected(url, "train")) == [
        (key_of(row), f"http {code}") for row, code in left.items()
    ]


def test_rejected_originals_are_listed_with_their_paths(finished):
    url = str(finished("imagenet-webdataset"))
    counts = {
        (split.name, trouble.reason): trouble.count
        for split in inspect_dataset(url).splits
        for trouble in split.troubles
        if trouble.kind == "rejected"
    }
    found = list(rejected(url))
    assert Counter((image.split, image.reason) for image in found) == counts
    assert counts
    assert all(image.status == "rejected" and image.origin == readable(image.key) and image.detail for image in found)


def test_a_build_that_was_not_finished_is_listed_with_files_and_splits(tmp_path):
    good = {f"{split}/dog/{number}.jpg": picture(number) for split in ("train", "test") for number in range(4)}
    bad = {"train/dog/broken_html.jpg": b"<html>", "test/dog/b.png": b"no picture"}
    source = write_files(tmp_path / "in", good | bad)
    with pytest.raises(BuildError):
        build_own(source, tmp_path / "out")
    found = list(rejected(str(tmp_path / "out")))
    assert {(image.split, image.key, image.origin) for image in found} == {
        ("train", "dog/broken_html", "train/dog/broken_html.jpg"),
        ("test", "dog/b", "test/dog/b.png"),
    }
    assert all(image.status == "rejected" and image.reason == "undecodable" and image.detail for image in found)
    assert [image.split for image in rejected(str(tmp_path / "out"), "test")] == ["test"]
    with pytest.raises(UsageError, match="--split val: the build has train, test"):
        list(rejected(str(tmp_path / "out"), "val"))


def test_a_place_without_a_dataset_or_a_build_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no dataset there"):
        list(rejected(str(tmp_path)))


def test_an_unknown_split_is_refused(fetched):
    with pytest.raises(UsageError, match="--split val: the dataset has train"):
        list(rejected(str(fetched("webdataset")), "val"))


def test_rows_that_img2dataset_failed_to_fetch_have_their_urls_and_our_reasons(tmp_path):
    folder = tmp_path / "cc3m"
    with picture_web() as web:
        write_img2dataset(web, folder, "webdataset", ROWS, messages={2: "<urlopen error timed out>", 5: "weird"})
    adopt_here(folder, index_url=str(tmp_path / "index"))
    found = {row.key: row for row in rejected(str(tmp_path / "index"))}
    assert {key: row.reason for key, row in found.items()} == {"000002": "timeout", "000005": "weird"}
    assert found["000002"].status == "failed_to_download"
    assert found["000002"].origin.endswith("/2.jpg")


def test_the_rows_of_each_split_are_listed_once_and_with_it(tmp_path):
    folder = tmp_path / "two"
    with picture_web() as web:
        web.faults = dict(FAULTS)
        for split in ("train", "val"):
            write_img2dataset(web, folder / split, "webdataset", ROWS)
        adopt_here(folder)
    found = list(rejected(str(folder)))
    keys = sorted(row.key for row in rejected(str(folder), "val"))
    assert sorted((row.split, row.key) for row in found) == [(split, key) for split in ("train", "val") for key in keys]
    assert len(set(keys)) == len(keys) > 0
