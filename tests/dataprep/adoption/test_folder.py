"""Image folders and buckets of class folders, adopted: the samples that torchvision counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataprep.errors import UsageError
from loaders import open_loader
from tests.support.adoption import CLASSES, adopt_here, contents, image_of, read_all, upload
from tests.support.interop import read_with_torchvision
from tests.support.own_data import picture, write_files


def test_an_image_folder_is_what_torchvision_counts(folder):
    adopted = adopt_here(folder)
    assert adopted.manifest.classes == (*CLASSES, "dog")
    assert (adopted.manifest.shuffled, adopted.manifest.checked) == (False, "none")
    assert {split.name: split.samples for split in adopted.manifest.splits} == {"train": 27, "val": 16}
    samples, _ = read_all(folder)
    theirs = read_with_torchvision(folder / "train", has_classes=True)
    ours = [(str(Path(file).with_suffix("")).removeprefix("train/"), label, sha) for _, label, sha, file in samples]
    assert ours == theirs


def test_classes_in_the_root_need_an_index_elsewhere(folder, tmp_path):
    """torchvision would take index/ for a class."""
    with pytest.raises(UsageError, match="--index DIR"):
        adopt_here(folder / "train")
    before = contents(folder)
    adopt_here(folder / "train", tmp_path / "index")
    assert contents(folder) == before
    samples, _ = read_all(tmp_path / "index")
    theirs = read_with_torchvision(folder / "train", has_classes=True)
    assert [(label, sha) for _, label, sha, _ in samples] == [(label, sha) for _, label, sha in theirs]


def test_class_folders_in_a_bucket_are_adopted_as_on_a_disk(folder, tmp_path, bucket_url):
    upload(folder, bucket_url)
    adopt_here(bucket_url)
    adopt_here(folder, tmp_path / "index")
    samples, rows = read_all(bucket_url)
    assert samples == read_all(tmp_path / "index")[0]
    assert all(row["image_crc32c"] is not None for row in rows)  # a bucket keeps them


def test_loops_of_links_are_not_followed_and_hidden_files_are_skipped(folder):
    (folder / "train" / "ant" / "again").symlink_to(folder / "train" / "ant")
    (folder / "train" / "ant" / "._plain.jpg").write_bytes(b"of a Mac")
    (folder / "train" / ".cache" / "x").mkdir(parents=True)
    (folder / "train" / ".cache" / "x.jpg").write_bytes(image_of(1))
    adopted = adopt_here(folder)
    assert adopted.manifest.splits[0].samples == 27
    assert ".cache" not in adopted.manifest.classes


def test_files_that_cannot_be_loaded_are_listed(folder):
    (folder / "train" / "ant" / "empty.jpg").touch()
    (folder / "train" / "ant" / "back\\slash.jpg").write_bytes(image_of(1))
    (folder / "train" / "ant" / "PLAIN.jpg").write_bytes(image_of(2))  # a key that differs in case only
    (folder / "train" / "bee" / "plain.jpg").rename(folder / "train" / "bee" / "\udcff.jpg")
    adopted = adopt_here(folder)
    assert adopted.manifest.splits[0].rejected == {"empty": 1, "name": 2}
    assert len(read_all(folder)[0]) == 27


def test_labels_of_two_splits_must_mean_the_same(folder, tmp_path):
    (folder / "val" / "zebra").mkdir()
    (folder / "val" / "zebra" / "z.jpg").write_bytes(image_of(1))
    with pytest.raises(UsageError, match=r"val has class folders that train has not \('zebra'\)"):
        adopt_here(folder)
    adopted = adopt_here(folder, splits=(("train", "train"),))
    assert [split.name for split in adopted.manifest.splits] == ["train"]
    adopt_here(folder, tmp_path / "no labels", splits=(("all", "val"),), labels="none")
    assert {label for _, label, *_ in read_all(tmp_path / "no labels", "all")[0]} == {-1}


def test_digests_are_recorded_on_request(folder):
    adopt_here(folder, digest=True)
    _, rows = read_all(folder)  # compares them
    assert all(row["image_crc32c"] is not None for row in rows)


def test_pictures_that_no_loader_reads_are_left_out_and_named(tmp_path):
    names = ["a/1.jpg", "a/2.jfif", "a/3.gif", "a/4.tif", "b/5.ppm", "b/6.PNG", "b/Icon\r", "b/Thumbs.db", "b/x.txt"]
    write_files(tmp_path / "x", {name: picture(1) for name in names})
    adoption = adopt_here(tmp_path / "x", tmp_path / "i")
    assert "train: 5 files left out: " in adoption.notes[0]
    for words in ("1 .tif", "1 .ppm", "2 hidden or of the system", "1 .txt", ".tif, .ppm is not read: convert such"):
        assert words in adoption.notes[0]
    with open_loader(str(tmp_path / "i"), batch_size=4, image_size=8, shuffle=False) as loader:
        assert [sorted(batch.keys) for batch in loader] == [["a/1", "a/2", "a/3", "b/6"]]
    write_files(tmp_path / "y", {"a/1.tif": b"x", "b/1.ppm": b"x"})
    with pytest.raises(UsageError, match=r"no image in a class folder, .*1 .tif, 1 .ppm .*not read: convert"):
        adopt_here(tmp_path / "y", tmp_path / "j")
