"""Descriptions that other tools wrote, or somebody damaged."""

import json
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.adoption import AdoptRequest, find, head_files
from dataprep.errors import SourceError, UsageError
from dataprep.storage import ObjectInfo
from dataprep.storage.local import LocalStorage
from loaders import open_loader
from tests.support.adoption import CLASSES, adopt_here, contents, image_of, read_all, upload
from tests.support.finished import build_here
from tests.support.interop import read_with_torchvision
from tests.support.own_data import picture, write_files


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (
            "features.json",
            {"numClasses": "1000000000000"},
            r"not as TFDS writes it: \$\.featuresDict.*\.numClasses: expected int <= 1000000, got .1000000000000",
        ),
        ("features.json", {"numClasses": "many"}, "features.json: not as TFDS writes it"),
        ("dataset_info.json", {"splits": None}, "dataset_info.json: not as TFDS writes it"),
        ("dataset_info.json", {"splits": [{"name": 3}]}, "dataset_info.json: not as TFDS writes it"),
        ("dataset_info.json", {"redistributionInfo": []}, "dataset_info.json: not as TFDS writes it"),
        ("dataset_info.json", {"name": None}, "dataset_info.json: not as TFDS writes it"),
    ],
)
def test_a_damaged_description_of_tfds_is_named(originals, tmp_path, file, change, message):
    dataset = tmp_path / "dataset"
    build_here("imagenet", originals["imagenet"], dataset, "tfrecord")
    for name in ("dataset.json", "label.labels.txt"):
        (dataset / name).unlink()
    document = json.loads((dataset / file).read_bytes())
    target = document["featuresDict"]["features"]["label"]["classLabel"] if file == "features.json" else document
    target.update(change)
    (dataset / file).write_text(json.dumps(document))
    with pytest.raises(SourceError, match=message):
        adopt_here(dataset, tmp_path / "index")


@pytest.mark.parametrize("file", ["features.json", "dataset_info.json", "label.labels.txt"])
def test_a_description_larger_than_any_is_not_read(originals, tmp_path, file):
    dataset = tmp_path / "dataset"
    build_here("imagenet", originals["imagenet"], dataset, "tfrecord")
    (dataset / "dataset.json").unlink()
    if file == "features.json":
        (dataset / "label.labels.txt").unlink()
    with (dataset / file).open("wb") as description:
        description.truncate(1 << 40)
    with pytest.raises(SourceError, match=f"{file}: 1,099,511,627,776 bytes, expected at most 67,108,864; download it"):
        adopt_here(dataset, tmp_path / "index")


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
    with pytest.raises(UsageError, match="`index` DIR"):
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


def test_images_without_class_folders_have_no_labels(folder, tmp_path):
    write_files(tmp_path / "flat", {f"{n}.jpg": picture(n) for n in range(3)} | {"notes.txt": b"x"})
    adoption = adopt_here(tmp_path / "flat", tmp_path / "i")
    assert [(key, label) for key, label, *_ in read_all(tmp_path / "i")[0]] == [("0", -1), ("1", -1), ("2", -1)]
    assert (adoption.manifest.classes, adoption.notes) == ((), ("train: 1 file left out: 1 .txt",))
    assert not adopt_here(tmp_path / "flat", tmp_path / "i").changes
    write_files(tmp_path / "flat", {"3.jpg": picture(3)})
    assert "4 images, 3 when they were adopted" in adopt_here(tmp_path / "flat", tmp_path / "i").changes
    write_files(folder / "test", {"0.jpg": picture(0)})
    assert adopt_here(folder).manifest.classes == ("ant", "bee", "cat", "dog")
    assert [label for _, label, *_ in read_all(folder, "test")[0]] == [-1]


def test_hidden_folders_beside_splits_are_left_out(folder):
    write_files(folder / ".git", {"a.jpg": picture(0)})
    assert [split.name for split in adopt_here(folder).manifest.splits] == ["train", "val"]


def test_labels_of_two_splits_must_mean_the_same(folder, tmp_path):
    (folder / "val" / "zebra").mkdir()
    (folder / "val" / "zebra" / "z.jpg").write_bytes(image_of(1))
    with pytest.raises(UsageError, match=r"val has class folders that train does not have \('zebra'\)"):
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
    with pytest.raises(UsageError, match=r"no image \(found .*1 .tif, 1 .ppm; .*not read: convert"):
        adopt_here(tmp_path / "y", tmp_path / "j")


class Level(LocalStorage):
    """A folder that lists a level or a beginning alone, as buckets do."""

    def folders(self, prefix: str = "") -> list[str]:
        inside = [info.name.removeprefix(f"{prefix}/") for info in self.list(prefix)]
        return sorted({name.partition("/")[0] for name in inside if "/" in name})

    def first(self, prefix: str, most: int) -> list[ObjectInfo]:
        return list(islice(self.list(prefix), most))


FILES = st.sampled_from([f"{n}.jpg" for n in range(9)] + ["deep/1.jpg", "notes.txt", ".hidden.jpg"])


@given(
    tree=st.dictionaries(st.sampled_from(["a", "b", "c d", "é", ".git"]), st.sets(FILES, max_size=9), min_size=1),
    heads=st.lists(st.sampled_from(range(2, 21, 2)), min_size=1, max_size=2, unique=True).map(sorted),
    split=st.sampled_from(["", "train/"]),
)
def test_a_head_is_what_the_whole_index_begins_with(tmp_path_factory, tree, heads, split):
    root = tmp_path_factory.mktemp("tree")
    for folder, names in tree.items():
        for name in names:
            path = root / split / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
    storage = Level(root)
    with patch("dataprep.adoption.find.FILES_OF_FOLDER", 2):
        for number, images in enumerate(heads, 1):
            head = head_files(storage, images)
            if head is None:
                break  # as loaders do: the next head is of a folder that has this one
            known = find(storage, AdoptRequest(url=storage.url, heads=tuple(heads[:number])), head)
            whole = find(storage, AdoptRequest(url=storage.url, heads=tuple(heads)))
            cuts = whole.images["train"].heads
            assert known.images["train"].heads == cuts[:number]
            assert known.classes == whole.classes
            assert known.images["train"].files == whole.images["train"].files[: cuts[number - 1]]
            plain = find(storage, AdoptRequest(url=storage.url))
            names = [sorted(info.name for _, info in each.images["train"].files) for each in (whole, plain)]
            assert names[0] == names[1]


def test_no_head_is_taken_of_what_may_be_all_or_does_not_begin_with_pictures(tmp_path):
    for number in range(4):
        path = tmp_path / "a" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    assert head_files(Level(tmp_path), 3) is not None
    assert head_files(Level(tmp_path), 4) is None
    (tmp_path / "b").mkdir()
    (tmp_path / "b/readme.txt").write_bytes(b"x")
    assert head_files(Level(tmp_path), 200) is None
    assert head_files(Level(tmp_path / "a"), 3) is None
    (tmp_path / "val").mkdir()
    (tmp_path / "val/1.jpg").write_bytes(b"x")
    assert head_files(Level(tmp_path), 3) is None  # a folder of a split beside classes
