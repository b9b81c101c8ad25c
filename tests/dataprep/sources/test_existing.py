"""References into the shards of a finished dataset, which may be a stranger's, and fields that become features."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.dataset.manifest import bytes_entry, read_manifest
from dataprep.errors import DataprepError, UsageError
from dataprep.sources.existing import Existing, padded_classes, refuse_other_files, split_facts
from dataprep.storage import open_storage
from loaders.dataset import open_dataset
from tests.support.adoption import adopt_here, image_of
from tests.support.converting import content, converted
from tests.support.own_data import Notes, build_own, class_folders, write_files
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


def adopted(folder, members, **how):
    write_files(folder, {"train-0.tar": tar_of(members)})
    adopt_here(folder, **how)
    return folder


def test_images_that_would_be_one_file_of_an_image_folder_are_named(tmp_path):
    image = (class_folders(tmp_path / "pictures") / "train/cats/cat 0.jpeg").read_bytes()
    members = [(f"{folder}/7.{suffix}", data) for folder in "ab" for suffix, data in (("jpg", image), ("cls", b"0"))]
    adopted(tmp_path / "data", members)
    with pytest.raises(UsageError, match=r"a/7 and b/7 of train-0.tar would both be train/0/7.jpg"):
        converted(tmp_path / "data", tmp_path / "out", "imagefolder", num_shards=1)


def test_a_retry_under_way_is_waited_for(cats, tmp_path):
    copy = shutil.copytree(cats, tmp_path / "copy")
    (copy / "_change").mkdir()
    (copy / "_change/plan.json").write_text("{}")
    with pytest.raises(UsageError, match="retry-failed is under way"):
        refuse_other_files(existing(copy))


def shards(folder, rows, **how):
    """Tars as img2dataset or a user's script writes them, with a caption, a document and no label."""
    members = []
    for number, row in enumerate(rows):
        members.append((f"{number:05d}.jpg", image_of(number)))
        if "txt" in row:
            members.append((f"{number:05d}.txt", row["txt"]))
        members.append((f"{number:05d}.json", json.dumps(row.get("json", {})).encode()))
    return adopted(folder, members, **how)


def told(source, output, how=None):
    """What a conversion says."""
    notes = Notes()
    converted(source, output, how=how or {}, num_shards=1, progress=notes)
    return notes.lines


ROWS = [
    {"txt": "ein Grünfink".encode(), "json": {"score": 1, "tags": ["a"], "height": 20}},
    {"txt": b"two", "json": {"score": 2.5, "tags": [], "height": 20}},
]


def values(url, *names):
    dataset = open_dataset(str(url), "train")
    index, read_fields = dataset.open_index(5.0), dataset.open_fields(names)
    found = {}
    for shard in range(len(dataset.split.shards)):
        entries = index.shard(shard)
        for entry in range(len(entries)):
            start = int(entries.record_offset[entry])
            record = dataset.storage.read_range(index.file(shard, entry), start, int(entries.record_bytes[entry]))
            found[entries.key(entry)] = read_fields(record, shard, entry)
    return found


def test_named_fields_become_features_of_one_type(tmp_path):
    source = shards(tmp_path / "data", ROWS)
    manifest = converted(source, tmp_path / "out", "tfrecord", how={"fields": ("score", "tags", "txt")}, num_shards=1)
    kinds = {name: feature.kind for name, feature in manifest.features.items()}
    assert kinds == {"score": "float64", "tags": "text", "txt": "text"}
    assert values(tmp_path / "out", "score", "tags", "txt") == {
        "00000": {"score": 1.0, "tags": ["a"], "txt": "ein Grünfink"},
        "00001": {"score": 2.5, "tags": [], "txt": "two"},
    }


def test_fields_that_are_left_out_are_named(tmp_path):
    assert told(shards(tmp_path / "data", ROWS), tmp_path / "out", {"fields": ("txt",)}) == [
        "its samples also have score, tags; `field` NAME keeps a field as a feature",
        "warning: the field 'height' is left out: it is '20' where the dataset has 16 ('00000'); to keep it, rename it "
        "in the original data, and build again",
    ]


@pytest.mark.parametrize("suffix", ["jpg", "jpeg", "png"])
def test_the_image_is_no_field_that_is_left_out(tmp_path, suffix):
    image = image_of(1, "PNG" if suffix == "png" else "JPEG")
    source = adopted(tmp_path / "data", [(f"a.{suffix}", image), ("a.txt", b"one")])
    assert told(source, tmp_path / "out") == ["its samples also have txt; `field` NAME keeps a field as a feature"]


ALL = {"all_fields": True}


def all_kept(tmp_path, rows, **how):
    """Values and notes of a conversion that keeps all fields."""
    notes = Notes()
    manifest = converted(shards(tmp_path / "data", rows), tmp_path / "out", how=ALL | how, num_shards=1, progress=notes)
    return values(tmp_path / "out", *manifest.features), notes.lines


def test_all_fields_that_every_sample_has_are_kept_and_others_are_named(tmp_path):
    rows = [
        {"txt": b"one", "json": {"caption": "one", "n": 1, "a/b": 1, "some": 2, "none": None, "file_name": "x.jpg"}},
        {"txt": b"two", "json": {"caption": "two", "n": 2, "a/b": 1, "mixed": 1, "deep": {"a": {"b": 1}}}},
        {"txt": b"three", "json": {"caption": "three", "n": 3, "a/b": 1, "mixed": "x", "cls": 5, "big": 2**70}},
    ]
    found, lines = all_kept(tmp_path, rows)
    assert found == {f"{n:05d}": {"caption": word, "n": n + 1} for n, word in enumerate(("one", "two", "three"))}
    assert lines[0] == "fields kept as features: caption, n (`field` NAME keeps some, `no_fields` none)"
    left_out = [line.partition("the field ")[2].partition(" is left out: ")[0] for line in lines[1:]]
    assert left_out == ["'a/b'", "'big'", "'cls'", "'deep'", "'file_name'", "'mixed'", "'some'"]
    assert all(line.startswith("warning: ") and "\n" not in line and len(line) < 400 for line in lines[1:])
    assert lines[-1].endswith("every image needs one; `default` some=VALUE keeps it")


def test_a_caption_that_img2dataset_found_empty_is_an_empty_text(tmp_path):
    rows = [{"txt": b"one", "json": {"caption": "one"}}, {"txt": b"", "json": {"caption": None}}]
    found, lines = all_kept(tmp_path, rows)
    assert found == {"00000": {"caption": "one"}, "00001": {"caption": ""}}
    assert not [line for line in lines if line.startswith("warning")]


CAT = {"label": "cat", "image": "a.jpg", "orientation": "left", "key": "a", "width": 20, "height": 20}


@pytest.mark.parametrize("how", [ALL, {"fields": ("n",)}, {"fields": ()}])
def test_names_that_every_dataset_has_are_named_where_their_values_are_left_out(tmp_path, how):
    """The classes of these samples come from another field, so that their label is lost."""
    source = shards(tmp_path / "data", [{"json": CAT | {"n": n}} for n in range(2)], labels="n")
    left_out = [line for line in told(source, tmp_path / "out", how) if line.startswith("warning: the field ")]
    assert [line.split("'")[1] for line in left_out] == ["height", "image", "key", "label", "orientation", "width"]
    classes = f"values as classes: dataprep adopt {source} with `labels` label and an `index` of its own, and convert"
    assert classes in left_out[3]
    assert all("to keep it, rename it in the original data, and build again" in line for line in left_out)


@pytest.mark.parametrize("how", [ALL, {"fields": ("n",)}])
def test_a_key_and_sides_that_are_those_of_the_sample_are_not_called_left_out(tmp_path, how):
    rows = [{"json": {"key": f"{n:05d}", "height": 16 + n % 5, "width": 24 + n % 7, "n": n}} for n in range(12)]
    lines = told(shards(tmp_path / "data", rows), tmp_path / "out", how)
    assert not [line for line in lines if "left out" in line]


def test_sides_of_other_images_than_the_first_are_compared_too(tmp_path):
    rows = [{"json": {"height": 16 if n == 0 else 999, "n": n}} for n in range(3)]
    _, lines = all_kept(tmp_path, rows)
    assert [line.partition(" where")[0] for line in lines[1:]] == [
        "warning: the field 'height' is left out: it is '999'"
    ]


def test_labels_and_names_of_classes_that_are_kept_are_not_called_left_out(tmp_path):
    rows = [{"json": {"label": f" {name} ", "class_name": name, "orientation": 1}} for name in ("cat", "dog")]
    source, notes = shards(tmp_path / "data", rows), Notes()
    manifest = converted(source, tmp_path / "out", how=ALL, num_shards=1, progress=notes)
    assert (manifest.classes, notes.lines) == (("cat", "dog"), [])
    assert adopt_here(tmp_path / "out", tmp_path / "index", labels="class_name").manifest.classes == ("cat", "dog")
    assert told(tmp_path / "index", tmp_path / "again", ALL) == []


def test_a_named_field_that_has_a_label_is_refused_with_the_way_to_classes(tmp_path):
    source = shards(tmp_path / "data", [{"json": CAT}], labels="none")
    with pytest.raises(DataprepError, match=r"`field` label: .*adopt .*/data with `labels` label and"):
        converted(source, tmp_path / "out", how={"fields": ("label",)}, num_shards=1)


def test_a_second_picture_is_a_field_and_the_image_is_none(tmp_path):
    mask = image_of(7, "PNG")
    source = adopted(tmp_path / "data", [("a.jpg", image_of(1)), ("a.png", mask), ("a.cls", b"0")])
    manifest = converted(source, tmp_path / "out", how=ALL, num_shards=1)
    assert {name: feature.kind for name, feature in manifest.features.items()} == {"png": "bytes"}
    assert values(tmp_path / "out", "png") == {"a": {"png": mask}}


def test_all_fields_of_a_tfrecord_are_kept_but_for_the_image(tmp_path):
    build = converted(shards(tmp_path / "data", ROWS), tmp_path / "features", "tfrecord", how={"fields": ("txt",)})
    assert list(build.features) == ["txt"]
    for name in ("dataset.json", "dataset_info.json", "features.json"):
        (tmp_path / "features" / name).unlink(missing_ok=True)
    shutil.rmtree(tmp_path / "features/index")
    adopt_here(tmp_path / "features")
    manifest = converted(tmp_path / "features", tmp_path / "out", how=ALL, num_shards=1)
    assert list(manifest.features) == ["txt"]
    assert {each["txt"] for each in values(tmp_path / "out", "txt").values()} == {"ein Grünfink", "two"}


@pytest.mark.parametrize(
    ("rows", "how", "words"),
    [
        (ROWS, {"fields": ("caption2",)}, "field 'caption2' does not exist; choose one of these: .jpg, .txt, .json"),
        ([ROWS[0], {"json": {}}], {"fields": ("txt",)}, "does not exist"),
        ([{"json": {"x": 1}}, {"json": {"x": None}}], {"fields": ("x",)}, "give no `field` x to leave it out"),
        ([{"json": {"x": 1}}, {"json": {"x": "a"}}], {"fields": ("x",)}, "int64 in .*, but text in"),
        (ROWS, {"fields": ("height",)}, "the name 'height' is taken"),
    ],
)
def test_fields_that_cannot_be_features_are_refused_in_one_line(tmp_path, rows, how, words):
    source = shards(tmp_path / "data", rows)
    with pytest.raises(DataprepError, match=words) as raised:
        converted(source, tmp_path / "out", how=how, num_shards=1)
    assert "\n" not in str(raised.value)
    assert open_storage(str(tmp_path / "out")).stat("dataset.json") is None


@pytest.mark.parametrize("fields", [ALL, {"fields": ("txt",)}])
def test_a_default_fills_what_is_missing(tmp_path, fields):
    source = shards(tmp_path / "data", [ROWS[0], {"json": {}}])
    converted(source, tmp_path / "out", how=fields | {"defaults": (("txt", "none"),)}, num_shards=1)
    assert values(tmp_path / "out", "txt")["00001"] == {"txt": "none"}
