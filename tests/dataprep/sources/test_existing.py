"""References into the shards of a finished dataset; its manifest and its index may be a stranger's."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.dataset.manifest import bytes_entry, read_manifest
from dataprep.errors import DataprepError, UsageError
from dataprep.sources.existing import Existing, padded_classes, refuse_other_files, split_facts
from dataprep.storage import open_storage
from tests.support.adoption import adopt_here
from tests.support.converting import content, converted
from tests.support.own_data import build_own, class_folders
from tests.support.raw_tar import tar_of
from tests.support.shared import made_once, shared_folder


@pytest.fixture(scope="module")
def cats(tmp_path_factory):
    """A dataset of two classes without features."""

    def make(path):
        build_own(class_folders(path.with_name("existing-source")), path)

    return made_once(shared_folder(tmp_path_factory) / "existing-cats", make)


def existing(url):
    storage = open_storage(str(url))
    return Existing(read_manifest(storage), storage, storage)


def test_splits_keep_their_passes_and_others_are_named(cats):
    assert {name: facts.repeats for name, facts in split_facts(existing(cats), ()).items()} == {"train": 1, "val": 1}
    assert list(split_facts(existing(cats), ("val",))) == ["val"]
    with pytest.raises(UsageError, match=r"`split` test: .* has train, val"):
        split_facts(existing(cats), ("test",))


def test_numbers_as_names_of_classes_are_sorted_like_numbers():
    names = tuple(map(str, range(12)))
    assert padded_classes(names)[:3] == ("00", "01", "02")
    assert padded_classes(names) == tuple(sorted(padded_classes(names)))
    assert padded_classes(("0", "1")) == ("0", "1")
    assert padded_classes(("ant", "bee")) == ("ant", "bee")
    assert padded_classes(()) == ()


def with_index(cats, folder, change):
    """A copy of the dataset whose index of train has another column, and whose manifest has its digest."""
    copy = shutil.copytree(cats, folder)
    path = copy / "index/train.parquet"
    file = pq.ParquetFile(path)
    groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
    with pq.ParquetWriter(path, groups[0].schema) as writer:
        for group in groups:
            writer.write_table(change(group))
    document = json.loads((copy / "dataset.json").read_text())
    for split in document["splits"]:
        if split["name"] == "train":
            split["index"] = bytes_entry("index/train.parquet", path.read_bytes())
    (copy / "dataset.json").write_text(json.dumps(document))
    return copy


def column(name, value):
    def change(table):
        at = table.schema.get_field_index(name)
        values = [value, *table.column(name).to_pylist()[1:]]
        return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))

    return change


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("image_offset", -1, "images outside of"),
        ("image_offset", 2**62, "images outside of"),
        ("image_bytes", 2**62, "images outside of"),
        ("image_bytes", 0, "images outside of"),
        ("record_bytes", 2**40, "images outside of"),
        ("label", 2, "one of 2 classes"),
        ("label", -2, "one of 2 classes"),
        ("label", -1, "2 of 14 samples of train have no label"),
        ("key", "../../etc/passwd", "expected a key"),
        ("key", "a" * 300, "expected a key"),
        ("key", "dogs/dog=200", "two images have the key"),
        ("image_crc32c", 7, "has CRC32C"),
    ],
)
def test_a_hostile_index_is_refused_in_one_line(cats, tmp_path, name, value, words):
    source = with_index(cats, tmp_path / "source", column(name, value))
    with pytest.raises(DataprepError, match=words) as raised:
        converted(source, tmp_path / "out", "tfrecord")
    assert all(line.startswith("  ") for line in str(raised.value).split("\n")[1:])
    assert len(str(raised.value)) < 1000


def test_an_index_without_checksums_is_accepted_only_where_data_are_adopted(tmp_path):
    data = class_folders(tmp_path / "data")
    adopt_here(data)
    manifest = converted(data, tmp_path / "out")
    assert (manifest.classes, manifest.licence) == (("cats", "dogs"), "unknown, not stated")
    files = [f"train/{name}/{name[:3]} 0.jpeg" for name in ("cats", "dogs")]
    assert all((data / file).exists() for file in files)
    assert len(content(tmp_path / "out")["splits"]["train"][1]) == 14


def test_images_that_would_be_one_file_of_an_image_folder_are_named(tmp_path):
    image = (class_folders(tmp_path / "pictures") / "train/cats/cat 0.jpeg").read_bytes()
    (tmp_path / "data").mkdir()
    members = [(f"{folder}/7.{suffix}", data) for folder in "ab" for suffix, data in (("jpg", image), ("cls", b"0"))]
    (tmp_path / "data/train-0.tar").write_bytes(tar_of(members))
    adopt_here(tmp_path / "data")
    with pytest.raises(UsageError, match=r"a/7 and b/7 of train-0.tar would both be train/0/7.jpg"):
        converted(tmp_path / "data", tmp_path / "out", "imagefolder", num_shards=1)


def test_a_retry_under_way_is_waited_for(cats, tmp_path):
    copy = shutil.copytree(cats, tmp_path / "copy")
    (copy / "_change").mkdir()
    (copy / "_change/plan.json").write_text("{}")
    with pytest.raises(UsageError, match="retry-failed is under way"):
        refuse_other_files(existing(copy))
