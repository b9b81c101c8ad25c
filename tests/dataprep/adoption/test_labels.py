"""Labels of other tools: integers that are kept, or texts that become classes, but never both, and never captions."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.adoption.labels import LabelReader, ShardLabels, key_from, read_class_names, shard_prefixes, text_classes
from dataprep.dataset.manifest import read_manifest
from dataprep.errors import SourceError, UsageError
from dataprep.formats.base import is_key
from dataprep.formats.example import bytes_feature, frame_around, map_entry, message
from dataprep.storage import open_storage
from loaders import open_loader
from tests.support.adoption import adopt_here, image_of, read_all, tar_of
from tests.support.converting import converted
from tests.support.samples import examples

NAMES = ["dog", "cat", "emu", "cat", "n01440764", "dog", "Grünfink, grün"]


def text_tars(folder, names=NAMES, field="cls"):
    """Two tars whose labels are text, in a member or in the .json."""
    folder.mkdir(exist_ok=True)
    for shard in range(2):
        members = []
        for number in range(shard, len(names), 2):
            label = json.dumps({field: names[number]}).encode() if field == "label" else f"{names[number]}\n".encode()
            members.append((f"{number:05d}.jpg", image_of(number)))
            members.append((f"{number:05d}.{'json' if field == 'label' else field}", label))
        tar_of(folder / f"{shard}.tar", members)
    return folder


@pytest.mark.parametrize(("field", "labels"), [("cls", None), ("label", None), ("txt", "txt")])
def test_texts_become_classes_sorted_by_name(tmp_path, field, labels):
    adoption = adopt_here(text_tars(tmp_path / "data", field=field), tmp_path / "index", workers=2, labels=labels)
    assert adoption.notes == ("labels are text: 5 classes, sorted by name",)
    classes = adoption.manifest.classes
    assert classes == tuple(sorted(set(NAMES)))
    samples, rows = read_all(tmp_path / "index")
    assert {int(key): classes[label] for key, label, *_ in samples} == dict(enumerate(NAMES))
    assert [row["label"] for row in rows] == [label for _, label, *_ in samples]


def test_a_loader_gives_the_number_of_a_text_and_a_conversion_keeps_it(tmp_path):
    adopt_here(text_tars(tmp_path / "data"))
    manifest = converted(tmp_path / "data", tmp_path / "out", "tfrecord", num_shards=1)
    for url in (tmp_path / "data", tmp_path / "out"):
        with open_loader(str(url), "train", batch_size=7, image_size=8) as loader:
            batch = next(iter(loader))
            classes = loader.dataset.manifest.classes
        found = {int(key): classes[label] for key, label in zip(batch.keys, batch.labels.tolist(), strict=True)}
        assert found == dict(enumerate(NAMES))
    assert manifest.classes == tuple(sorted(set(NAMES)))


def test_captions_are_no_classes(tmp_path):
    captions = [f"a caption of picture {number}" for number in range(8)]
    text_tars(tmp_path, captions, "txt")
    words = r"labels are text with 8 different values for 8 samples \('a caption of picture 0', .*`labels` none"
    with pytest.raises(SourceError, match=words):
        adopt_here(tmp_path, labels="txt")
    assert adopt_here(tmp_path, labels="none").manifest.classes == ()


def test_texts_in_tfrecords_are_classes_too(tmp_path):
    with (tmp_path / "a.tfrecord").open("wb") as file:
        for number, name in enumerate(NAMES):
            values = {b"jpg": image_of(number), b"label": name.encode()}
            entries = b"".join(map_entry(field, bytes_feature(value)) for field, value in values.items())
            file.write(b"".join(frame_around(message(b"\x0a", entries), b"", b"")))
    assert adopt_here(tmp_path).manifest.classes == tuple(sorted(set(NAMES)))


def test_integers_that_leave_numbers_out_stay_as_they_are_and_are_reported(tmp_path):
    tar_of(tmp_path / "a.tar", [pair for n in (2, 5) for pair in ((f"{n}.jpg", image_of(n)), (f"{n}.cls", b"%d" % n))])
    adoption = adopt_here(tmp_path)
    assert adoption.notes == (
        "labels are integers from 2 to 5 and stay as they are: 6 classes, 4 of them without an image; "
        "dataprep adopt with `class_names` FILE names them",
    )
    assert [label for _, label, *_ in read_all(tmp_path)[0]] == [2, 5]


def integer_tar(folder, *labels):
    folder.mkdir(exist_ok=True)
    members = [((f"{n}.jpg", image_of(n)), (f"{n}.cls", b"%d" % n)) for n in labels]
    tar_of(folder / "a.tar", [member for pair in members for member in pair])
    return folder


def test_integers_get_the_names_that_are_given(tmp_path):
    data = integer_tar(tmp_path, 0, 1)
    assert adopt_here(data).notes == (
        "labels are integers from 0 to 1 and stay as they are: 2 classes; dataprep adopt with `class_names` FILE "
        "names them",
    )
    names = ("cat", "dog", "emu")
    with pytest.raises(UsageError, match=r"made without `class_names`; add `overwrite`"):
        adopt_here(data, class_names=names)
    adoption = adopt_here(data, class_names=names, overwrite=True)
    assert (adoption.notes, adoption.manifest.classes) == ((), names)
    assert adoption.manifest.splits[0].class_counts == (1, 1, 0)
    assert adopt_here(data, class_names=names).already
    assert [label for _, label, *_ in read_all(data)[0]] == [0, 1]


def test_names_that_do_not_fit_the_labels_are_refused(tmp_path):
    with pytest.raises(
        SourceError, match=r"label '2' in '2.cls', expected an integer from 0 to 1, as there are 2 classes:"
    ):
        adopt_here(integer_tar(tmp_path / "more", 0, 2), class_names=("cat", "dog"))
    with pytest.raises(UsageError, match="`class_names` cannot be used with `labels` none; leave one out"):
        adopt_here(tmp_path / "more", class_names=("cat", "dog"), labels="none")
    with pytest.raises(SourceError, match=r"label 'cat.*' in '.*', expected an integer from 0 to 1, as"):
        adopt_here(text_tars(tmp_path / "texts", ["cat", "dog"]), class_names=("cat", "dog"))
    for name in ("cat", "dog"):
        (tmp_path / "folder" / name).mkdir(parents=True)
        (tmp_path / "folder" / name / "1.jpg").write_bytes(image_of(1))
    with pytest.raises(UsageError, match=r"`class_names`: the classes of an image folder are its folders"):
        adopt_here(tmp_path / "folder", tmp_path / "index", class_names=("cat", "dog"))


def test_a_file_of_names_has_one_for_each_class(tmp_path):
    path = tmp_path / "names.txt"
    path.write_bytes("\ufeffcat\r\nGrünfink, grün\r\n".encode())
    assert read_class_names(path) == ("cat", "Grünfink, grün")
    for text, fault in {
        b"": r"line 1 is '', expected the name of class 0",
        b"cat\n\ndog\n": r"line 2 is '', expected the name of class 1",
        b"cat\ndog\ncat\n": r"line 3 is 'cat', as line 1 is; expected another name for each class",
        b"\xff": "cannot be read as text",
    }.items():
        path.write_bytes(text)
        with pytest.raises(UsageError, match=fault):
            read_class_names(path)
    with pytest.raises(UsageError, match="cannot be read as text"):
        read_class_names(tmp_path / "none.txt")


def test_class_folders_whose_names_are_other_numbers_are_reported(tmp_path):
    for name in ("1", "2", "10"):
        (tmp_path / "data/train" / name).mkdir(parents=True)
        (tmp_path / "data/train" / name / "a.jpg").write_bytes(image_of(1))
    [line] = adopt_here(tmp_path / "data").notes
    assert line.startswith(
        "labels are renumbered, 0 to 2 in the order of the names of the classes: 1 is 0, 10 is 1; dataset.json"
    )


@pytest.mark.parametrize("shards", [1, 2])
def test_integers_beside_texts_are_refused(tmp_path, shards):
    tar_of(tmp_path / "0.tar", [("a.jpg", image_of(1)), ("a.cls", b"1")])
    members = [("b.jpg", image_of(2)), ("b.cls", b"cat")]
    tar_of(tmp_path / f"{shards - 1}.tar", members if shards == 2 else [("a.jpg", b"j"), ("a.cls", b"1"), *members])
    with pytest.raises(SourceError, match=r"some labels are integers \(1\) and others are text \('cat'\)"):
        adopt_here(tmp_path)
    assert read_manifest(open_storage(str(tmp_path))) is None


@pytest.mark.parametrize(
    "value", ["", "  ", "1.5", "1e3", "9" * 20, "a\nb", "a\x00b", "\udcff", "x" * 1001, True, 1.5, []]
)
def test_values_that_name_no_class_are_refused(value):
    with pytest.raises(SourceError, match="expected an integer from 0 to 999,999, or the text of a class: name the"):
        LabelReader(None, None).label(value, "cls")


def test_a_known_list_of_classes_takes_no_texts():
    with pytest.raises(
        SourceError, match=r"label 'cat' in 'label', expected an integer from 0 to 2, as there are 3 classes: "
    ):
        LabelReader(None, 3).label("cat", "label")


def test_a_shard_in_random_order_of_many_classes_is_no_shard_of_captions():
    texts = tuple(f"n{number:08d}" for number in range(640))
    assert text_classes([ShardLabels(texts)], 1000, where="data") == texts
    with pytest.raises(SourceError, match="data: labels are text with 640 different values for 700 samples"):
        text_classes([ShardLabels(texts)], 700, where="data")
    assert text_classes([ShardLabels(("b", "a")), ShardLabels(("a",))], 3, where="data") == ("a", "b")


def test_a_field_that_no_sample_has_is_refused_and_the_index_stays(tmp_path):
    data = text_tars(tmp_path / "data")
    before = adopt_here(data).manifest
    for overwrite in (False, True):
        index = data if overwrite else tmp_path / "other"
        with pytest.raises(UsageError, match=r"`labels` clas: no sample .*; did you mean cls\? The samples"):
            adopt_here(data, index, labels="clas", overwrite=overwrite)
    assert read_manifest(open_storage(str(data))) == before
    assert read_manifest(open_storage(str(tmp_path / "other"))) is None


def test_labels_from_1_are_asked_about_and_a_first_line_helps(tmp_path):
    data = integer_tar(tmp_path, 1, 2)
    with pytest.raises(SourceError, match=r"label '2' .* 0 to 1, .*if the labels begin at 1, put a first line"):
        adopt_here(data, class_names=("cat", "dog"))
    adoption = adopt_here(data, class_names=("background", "cat", "dog"))
    assert [adoption.manifest.classes[label] for _, label, *_ in read_all(data)[0]] == ["cat", "dog"]
    assert adoption.notes[0].startswith("warning: no image is of class 0, 'background', the labels are 1 to 2: if they")


RECORDS = {"train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"}


def records(folder, names):
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(sorted(names)):
        entries = map_entry(b"image/encoded", bytes_feature(image_of(number)))
        (folder / name).write_bytes(b"".join(frame_around(message(b"\x0a", entries), b"", b"")))
    return folder


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (RECORDS, {"train": 2, "validation": 1}),
        ({"train00-1338.tfrec", "train01-1338.tfrec"}, {"train": 2}),
        ({"coco_train.record-00000-of-00001", "coco_val.record-00000-of-00001"}, {"train": 1, "val": 1}),
    ],
)
@pytest.mark.parametrize("format_name", ["auto", "tfrecord"])
def test_tfrecords_of_any_usual_name_are_adopted(tmp_path, names, splits, format_name):
    manifest = adopt_here(records(tmp_path / "data", names), format=format_name).manifest
    assert {split.name: split.samples for split in manifest.splits} == splits


def test_the_content_decides_about_unusual_names(tmp_path):
    data = records(tmp_path / "data", {"a.bin", "b.bin"})
    with pytest.raises(UsageError, match="no image "):
        adopt_here(data)
    chosen = adopt_here(data, format="tfrecord", splits=(("train", "a*"), ("val", "b*"))).manifest
    assert [split.samples for split in chosen.splits] == [1, 1]
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise/train-00000-of-00001").write_bytes(b"not a record at all")
    with pytest.raises(UsageError, match="no image "):
        adopt_here(tmp_path / "noise")


def test_duplicate_keys_are_prefixed_with_their_shard(tmp_path):
    for number in range(2):
        tar_of(tmp_path / f"{number:05d}.tar", [("A.jpg", image_of(number)), (f"b{number}.jpg", image_of(2 + number))])
    tar_of(tmp_path / "00002.tar", [("a.jpg", image_of(5)), ("c.jpg", image_of(6)), ("a.jpg", image_of(7))])
    adopt_here(tmp_path)
    keys = [key for key, *_ in read_all(tmp_path)[0]]
    assert keys == ["00000/A", "b0", "00001/A", "b1", "00002/a", "c", "00002/a=001"]


def test_a_key_that_got_its_shard_is_no_other_samples_key(tmp_path):
    for shard, names in {"s": ("s/a", "a", "b", "a"), "t": ("c", "x", "c", "C=001"), "u": ("c=001",)}.items():
        tar_of(tmp_path / f"{shard}.tar", [(f"{name}.jpg", image_of(i)) for i, name in enumerate(names)])
    adoption = adopt_here(tmp_path)
    keys = [key for key, *_ in read_all(tmp_path)[0]]
    assert keys == ["s/a", "s/a=001", "b", "s/a=002", "t/c", "x", "t/c=001", "t/C=001=001", "u/c=001"]
    assert len({key.lower() for key in keys}) == len(keys)
    said = "train: 6 images have the same key as another image, ignoring case; their keys begin with their shard's"
    assert adoption.notes == (f"{said} name",)


def test_keys_of_shards_whose_names_begin_alike_are_told_apart(tmp_path):
    shards = {"a.tar": ("b/c", "x"), "a/b.tar": ("c", "x"), "d/e.tar": ("b/c",), "d/f.tar": ("C",)}
    for number, (shard, names) in enumerate(shards.items()):
        (tmp_path / shard).parent.mkdir(exist_ok=True)
        tar_of(tmp_path / shard, [(f"{name}.jpg", image_of(8 * number + i)) for i, name in enumerate(names)])
    adopt_here(tmp_path)
    keys = [key for key, *_ in read_all(tmp_path)[0]]
    assert keys == ["a=000/b/c", "a=000/x", "a/b=001/c", "a/b=001/x", "d/e/b/c", "d/f/C"]


def test_no_prefix_of_a_shard_lies_below_another():
    assert shard_prefixes(["0.tar", "1.tar", "10.tar"]) == ["0", "1", "10"]
    assert shard_prefixes(["a.tar", "A.tar", "a/b.tar", "a-b.tar", "c.tfrecord"]) == [
        "a=000", "A=001", "a/b=002", "a-b", "c",
    ]  # fmt: skip


@examples
@given(st.text(max_size=300))
def test_every_name_becomes_a_valid_key_or_none(name):
    key = key_from(name.encode("utf-8", "ignore").decode())
    assert not key or is_key(key)
    assert not key or key_from(key) == key
