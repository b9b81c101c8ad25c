"""A user's own tree: splits, labels, metadata, text files and the share of val, and what a newcomer is told."""

import csv
import io
import json
import random
import shlex
import subprocess
import zipfile
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.dataset.features import Feature, annotation_values
from dataprep.errors import DataprepError, SourceError, UsageError
from dataprep.sources import configured
from dataprep.sources.base import OwnData
from dataprep.sources.folder import MAX_TEXT_BYTES, text_files
from dataprep.storage import open_originals, open_storage
from tests.support.builds import succeeds
from tests.support.own_data import annotated, annotated_rows, class_folders, picture, stored_values, write_files
from tests.support.raw_tar import tar_of
from tests.support.raw_zip import zip_of

JPEG = picture(1)


def opened(root, **own):
    return configured("folder", own=OwnData(name="pets", **own)).opened(open_originals(str(root)))


def tree(root, *names, rows=None):
    files = dict.fromkeys(names, JPEG)
    if rows is not None:
        files["metadata.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)
    return write_files(root, files)


def refused(root, **own):
    """The line about a source that cannot be listed."""
    with pytest.raises((SourceError, UsageError)) as error:
        configured("folder", own=OwnData(name="pets", **own)).enumerate(
            open_originals(str(root)), "train", allow_partial=False
        )
    assert "\n" not in str(error.value)
    return str(error.value)


def labels(dataset, split="train"):
    found = dataset.found[split]
    return {ref.key: found.classes[ref.label] if ref.label >= 0 else "" for ref in found.refs}


def test_class_folders_with_splits(tmp_path):
    dataset = opened(class_folders(tmp_path))
    assert dataset.splits == ("train", "val")
    assert labels(dataset, "val") == {
        f"{name}s/{name}=20{number}": f"{name}s" for name in ("cat", "dog") for number in range(3)
    }
    assert dataset.notes[0] == "skipped: 1 .docx, 1 .txt, 1 hidden or of the system"
    assert dataset.notes[1].startswith("2 classes, one per folder: cats, dogs")
    assert dataset.classes(open_originals(str(tmp_path)), allow_partial=False) == ("cats", "dogs")


@pytest.mark.parametrize("names", [("Train", "VALID", "Test"), ("train", "validation", "test")])
def test_names_of_splits(tmp_path, names):
    dataset = opened(tree(tmp_path, *(f"{name}/1.jpg" for name in names)))
    assert dataset.splits == ("train", "val", "test")
    assert [ref.key for ref in dataset.found["val"].refs] == ["1"]


@pytest.mark.parametrize(
    ("names", "expected", "note"),
    [
        (["1.jpg", "2.jpg"], {"1": "", "2": ""}, None),
        (["a/1.jpg", "b/1.jpg"], {"a/1": "a", "b/1": "b"}, "2 classes, one per folder: a, b"),
        (["a/1.jpg", "a/2.jpg"], {"a/1": "", "a/2": ""}, "warning: no labels: all images are in one folder, a"),
        (["a/1.jpg", "2.jpg"], {"a/1": "", "2": ""}, "1 of 2 images are not in a class folder directly below"),
        (["x/a/1.jpg", "x/b/1.jpg"], {"x/a/1": "", "x/b/1": ""}, "give the folder above them as `source`"),
    ],
)
def test_where_labels_come_from(tmp_path, names, expected, note):
    dataset = opened(tree(tmp_path, *names))
    assert labels(dataset) == expected
    assert any(note in line for line in dataset.notes) if note else dataset.notes == ()


@pytest.mark.parametrize(
    ("classes", "listed"),
    [
        ("abcd", "4 classes, one per folder: a, b, c, d (`label_from` none"),
        ("abcde", "5 classes, one per folder: a, b, c, d, e (`label_from` none"),
        ("abcdef", "6 classes, one per folder: a, b, c, ... (`label_from` none"),
    ],
)
def test_a_few_classes_are_all_named(tmp_path, classes, listed):
    [note] = opened(tree(tmp_path, *(f"{name}/1.jpg" for name in classes))).notes
    assert note.startswith(listed)


def test_classes_that_differ_in_unicode_form_or_case_are_named(tmp_path):
    """As a zip made on macOS spells them beside Linux's."""
    names = [
        f"{split}/{name}/1.jpg" for split, name in (("train", "cafe\u0301"), ("val", "caf\u00e9"), ("train", "tea"))
    ]
    root = tree(tmp_path, *names, "val/Tea/2.jpg")
    apart = opened(root)
    [line] = [note for note in apart.notes if "Unicode" in note]
    assert line == (
        "warning: 4 classes have names that differ only in case or Unicode form: 'Tea' and 'tea', "
        "'cafe\\u0301' and 'caf\\xe9'; `join_classes` makes one of each"
    )
    assert len(apart.found["train"].classes) == 4
    joined = opened(root, join_classes=True)
    assert joined.found["train"].classes == ("Tea", "caf\u00e9")
    assert set(labels(joined, "train").values()) == set(labels(joined, "val").values()) == {"Tea", "caf\u00e9"}
    assert not [note for note in joined.notes if "Unicode" in note]


def test_images_without_a_byte_are_named_when_they_are_listed(tmp_path):
    write_files(tmp_path, dict.fromkeys(("1.jpg", "4.jpg"), JPEG) | {"2.jpg": b"", "3.png": b""})
    assert opened(tmp_path).notes == (
        "warning: 2 images of 0 bytes, which a build rejects: '2.jpg', '3.png'; remove or replace them, or allow "
        "rejections with `max_reject_ratio`",
    )
    write_files(tmp_path, {f"{number}.jpg": b"" for number in range(5, 8)})
    [note] = opened(tmp_path).notes
    assert "5 images of 0 bytes, which a build rejects: '2.jpg', '3.png', '5.jpg', ...; remove" in note


def test_classes_that_a_share_for_val_leaves_out_of_a_split_are_named(tmp_path):
    names = [f"{name}/{number}.jpg" for name in "ab" for number in range(19)] + ["c/1.jpg"]
    dataset = opened(tree(tmp_path, *names), val_fraction=0.3)
    counts = {split: Counter(labels(dataset, split).values()) for split in ("train", "val")}
    lacking = {split: "abc".translate(str.maketrans("", "", "".join(found))) for split, found in counts.items()}
    name, other = ("val", "train") if lacking["val"] else ("train", "val")
    advice = "larger" if name == "val" else "smaller"
    assert lacking == {name: "c", other: ""}
    assert dataset.notes[-1] == (
        f"note: with `val_fraction` 0.3, 1 of 3 classes has no image in {name}: c (1 image, all in {other}); a "
        f"{advice} `val_fraction` or another `seed` may change that"
    )


@pytest.mark.parametrize(
    ("name", "unpack"), [("b.zip", "unzip more/b.zip -d more"), ("b.TAR", "tar -xf more/b.TAR -C more")]
)
def test_an_archive_in_a_folder_is_named_with_the_command_that_unpacks_it(tmp_path, name, unpack):
    root = write_files(tree(tmp_path, "1.jpg", "2.jpg"), {f"more/{name}": b"x"})
    assert opened(root).notes[-1] == (
        f"warning: nothing in 'more/{name}' is read, because only archives directly in `source` are; unpack it there: "
        f"{unpack}"
    )


def test_labels_that_the_user_asks_for(tmp_path):
    root = tree(tmp_path, "a/1.jpg", "a/2.jpg")
    assert set(labels(opened(root, label_from="folder")).values()) == {"a"}
    tree(root, "b/1.jpg")
    assert set(labels(opened(root, label_from="none")).values()) == {""}
    tree(root, "b/deep/1.jpg", "top.jpg")
    with pytest.raises(
        SourceError, match=r"2 of 5 images are not directly in a class folder: 'b/deep/1.jpg', 'top.jpg'"
    ):
        opened(root, label_from="folder")


@pytest.mark.parametrize(
    ("values", "classes"),
    [(["dog", "cat"], ("cat", "dog")), ([10, 2], ("02", "10")), ([True, False], ("false", "true"))],
)
@pytest.mark.parametrize("column", ["label", "breed"])
def test_labels_of_a_column(tmp_path, values, classes, column):
    rows = [{"file_name": f"{number}.jpg", column: value, "x": 1} for number, value in enumerate(values)]
    own = {} if column == "label" else {"label_from": column}
    dataset = opened(tree(tmp_path, "0.jpg", "1.jpg", rows=rows), **own)
    assert dataset.found["train"].classes == classes
    assert list(dataset.found["train"].features) == ["x"]
    assert [ref.label for ref in dataset.found["train"].refs] == [1, 0]


def test_metadata_becomes_annotations(tmp_path):
    dataset = opened(annotated(tmp_path))
    found = dataset.found["train"]
    expected = {row["file_name"].removesuffix(".jpg"): stored_values(row) for row in annotated_rows()}
    assert {ref.key: annotation_values(found.features, ref.annotations) for ref in found.refs} == expected
    assert ("metadata.jsonl", (tmp_path / "metadata.jsonl").stat().st_size) in {
        (source.name, source.num_bytes) for source in found.sources
    }


def test_metadata_of_every_split(tmp_path):
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "1.jpg").write_bytes(JPEG)
        (tmp_path / split / "metadata.csv").write_text(f"file_name,n\n1.jpg,{len(split)}\n")
    dataset = opened(tmp_path)
    assert [next(iter(dataset.found[split].refs)).annotations for split in ("train", "val")] == [b'{"n":5}', b'{"n":3}']


ROWS = [{"file_name": "1.jpg", "n": 1}, {"file_name": "2.jpg", "n": 2}]


@pytest.mark.parametrize(
    ("names", "rows", "own", "text"),
    [
        (["1.jpg"], ROWS, {}, "metadata.jsonl line 2: '2.jpg' does not exist; expected an image for every row"),
        (["in/1.jpg", "in/2.jpg"], ROWS, {}, "'1.jpg' does not exist, nor does the picture of any other row"),
        (["in/1.jpg", "in/2.jpg"], ROWS, {}, "the pictures here: 'in/1.jpg', 'in/2.jpg'"),
        (["1.jpg", "2.jpg", "3.jpg"], ROWS, {}, "no row for 1 of 3 images: '3.jpg'"),
        (["1.jpg", "2.jpg"], [*ROWS, ROWS[0]], {}, "metadata.jsonl line 3: a second row for '1.jpg'"),
        (["1.jpg"], [{"file_name": "1.jpg", "width": 3}], {}, "the name 'width' is taken"),
        (["1.jpg"], [{"file_name": "1.jpg", "a/b": 3}], {}, "is not allowed: expected 1 to 100 characters, no"),
        (["1.jpg"], [{"file_name": "1.jpg", "label": "x"}], {"label_from": "none"}, "`label_from` label"),
        (["1.jpg"], [{"file_name": "1.jpg", "label": 0.5}], {}, "`label_from` label: it has float64 values or lists"),
        (["1.jpg"], [{"file_name": "1.jpg", "label": -1}], {}, "expected integers of 0 or more"),
        (["1.jpg"], [{"file_name": "1.jpg", "label": "a/b"}], {}, "expected one that can name a folder"),
        (["1.jpg", "2.jpg"], [{"file_name": f"{n}.jpg", "label": "x" * (n - 1)} for n in (1, 2)], {}, "empty label"),
        (["1.jpg", "2.jpg"], ROWS, {"label_from": "breed"}, "`label_from` breed: no such column (columns: n)"),
        (["1.jpg", "2.jpg"], ROWS, {"group_by": "who", "val_fraction": 0.5}, "`group_by` who: no such column"),
        (["1.jpg"], None, {"drop": ("n",)}, "`drop`: "),
        (["1.jpg"], None, {"label_from": "breed"}, "`label_from`: "),
        (["cat.jpg", "cat.png"], None, {}, "two images have the key cat, ignoring case"),
        (["Cat.jpg", "cat.jpg"], None, {}, "two images have the key Cat, ignoring case"),
        (["train/1.jpg", "other/1.jpg"], None, {}, "1 images outside of train, which are splits by their names"),
        (["val/1.jpg", "valid/2.jpg"], None, {}, "val and valid are both folders of the split val"),
        (["train/1.jpg", "val/1.jpg"], None, {"val_fraction": 0.5}, "it needs train, and no val"),
        (["1.jpg"], None, {"val_fraction": 0.5}, "and there is only one image: leave `val_fraction` out"),
        (
            ["1.jpg", "2.jpg"],
            [{"file_name": f"{n}.jpg", "who": "a"} for n in (1, 2)],
            {"val_fraction": 0.5, "group_by": "who"},
            "the value of who of an image alone decides where it goes, and all images have the same value of who",
        ),
    ],
)
def test_what_a_newcomer_is_told(tmp_path, names, rows, own, text):
    assert text in refused(tree(tmp_path, *names, rows=rows), **own)


@pytest.mark.parametrize("asked", [0.0001, 0.9999])
def test_a_share_that_leaves_a_split_empty_is_answered_with_one_that_works(tmp_path, asked):
    tree(tmp_path, *(f"{number}.jpg" for number in range(3)))
    with pytest.raises(UsageError, match=f"`val_fraction` {asked} leaves") as error:
        opened(tmp_path, val_fraction=asked)
    fraction = float(str(error.value).split("`val_fraction` ")[2].split()[0])
    assert sorted(opened(tmp_path, val_fraction=fraction).found) == ["train", "val"]


@pytest.mark.parametrize("name", ["captions.csv", "my captions.tsv", "a.parquet", "lists/a.jsonl"])
def test_a_table_that_is_passed_over_is_answered_with_the_command_that_reads_it(tmp_path, name):
    write_files(tree(tmp_path, "1.jpg"), {name: "file,caption\n1.jpg,a cat\n"})
    passed_over, note = opened(tmp_path).notes
    assert passed_over == f"skipped: 1 .{name.rpartition('.')[2]}"
    source = f"{tmp_path} `table` {name}" if "/" in name else shlex.quote(f"{tmp_path}/{name}")
    command = f"dataprep build table `source` {source}"
    assert note.startswith(f"{name!r} is skipped: {command} builds the pictures that it names")
    assert "metadata.csv" in note
    with pytest.raises(UsageError) as error:
        opened(tmp_path, label_from="caption")
    assert str(error.value).startswith(f"`label_from`: {tmp_path} has no metadata.csv, metadata.jsonl or ")
    assert str(error.value).endswith(f"with columns; a table of another name is read by {command}")


def test_a_table_in_an_archive_is_answered_with_the_names_that_are_read(tmp_path):
    write_files(tmp_path, {"pets.zip": zip_of({"pets/labels.csv": "file,label\n1.jpg,cat\n", "pets/1.jpg": JPEG})})
    note = opened(tmp_path).notes[1]
    assert note.startswith("'pets/labels.csv' is skipped: unpacked, dataprep build table builds the")
    with pytest.raises(UsageError, match=r"with columns; a table of another name is read by dataprep build table$"):
        opened(tmp_path, label_from="label")


def test_metadata_of_two_kinds(tmp_path):
    tree(tmp_path, "1.jpg", rows=[{"file_name": "1.jpg"}])
    (tmp_path / "metadata.csv").write_text("file_name\n1.jpg\n")
    with pytest.raises(SourceError, match="both as CSV and in other formats"):
        opened(tmp_path)


# The share of val


def test_no_group_is_in_two_splits(tmp_path):
    dataset = opened(annotated(tmp_path, 40), val_fraction=0.4, group_by="patient")
    groups = {
        split: {annotation_values(found.features, ref.annotations)["patient"] for ref in found.refs}
        for split, found in dataset.found.items()
    }
    assert groups["train"]
    assert groups["val"]
    assert not groups["train"] & groups["val"]
    assert sum(len(found.refs) for found in dataset.found.values()) == 40


# Hostile trees

GOOD_ROWS = [
    {"file_name": f"{number}.jpg", "caption": "x", "n": number, "box": [[1.5, 2, 3, 4]]} for number in range(4)
]
_PARQUET = io.BytesIO()
pq.write_table(pa.Table.from_pylist(GOOD_ROWS), _PARQUET, row_group_size=3)
GOOD_METADATA = {
    "metadata.parquet": _PARQUET.getvalue(),
    "metadata.jsonl": "".join(json.dumps(row) + "\n" for row in GOOD_ROWS).encode(),
    "metadata.csv": b"file_name,caption,n\r\n" + b"".join(b'%d.jpg,"a, b",%d\r\n' % (n, n) for n in range(4)),
}


@pytest.mark.parametrize("name", GOOD_METADATA)
def test_mutants_of_metadata_are_read_or_refused(tmp_path, name):
    """Whatever bytes a file of metadata has: references with annotations, or one line of error."""
    write_files(tmp_path, {f"{number}.jpg": JPEG for number in range(4)})
    draw = random.Random(name)
    refused: list[str] = []
    for _ in range(200):
        (tmp_path / name).write_bytes(_mutant(GOOD_METADATA[name], draw))
        try:
            found = opened(tmp_path).found["train"]
        except DataprepError as error:
            refused.append(str(error))
        else:
            for ref in found.refs:
                annotation_values(found.features, ref.annotations)
    assert 20 < len(refused) < 200
    assert all(line.startswith("  ") for text in refused for line in text.split("\n")[1:])


def _mutant(data: bytes, draw: random.Random) -> bytes:
    """The bytes with some changed, left out, doubled, or cut."""
    found = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 4])):
        at, how = draw.randrange(len(found)), draw.random()
        if how < 0.6:
            found[at] = draw.choice([0, 10, 34, 44, 45, 57, 92, 123, 255, draw.randrange(256)])
        elif how < 0.8:
            del found[at : at + draw.choice([1, 2, 30])]
        elif how < 0.95:
            found[at:at] = found[draw.randrange(len(found)) :][: draw.choice([1, 8, 60])]
        else:
            del found[at + 1 :]
    return bytes(found)


def test_folders_beside_the_classes_without_an_image_are_named(tmp_path):
    source = tree(tmp_path, "train/cats/1.jpg", "train/dogs/1.jpg", "val/cats/2.jpg", "train/owls/notes.pdf")
    for name in ("train/birds", "val/dogs", "val/.thumbs", "notes"):
        (source / name).mkdir()
    note = "warning: 2 folders next to the classes without an image, so no class: 'birds', 'owls'"
    assert note in opened(source).notes


def test_boxes_are_records_in_json_lines_and_texts_in_csv(tmp_path):
    objects = [{"bbox": [1, 2, 3.5, 4], "category": 3}]
    write_files(tmp_path, {"0.jpg": JPEG, "metadata.jsonl": json.dumps({"file_name": "0.jpg", "objects": objects})})
    features = opened(tmp_path, label_from="none").found["train"].features
    assert (features["objects"].kind, features["objects"].columns["bbox"].shape) == ("records", (None, 4))
    (tmp_path / "metadata.jsonl").unlink()
    with (tmp_path / "metadata.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("file_name", "objects"), ("0.jpg", json.dumps(objects))])
    assert opened(tmp_path, label_from="none").found["train"].features["objects"].kind == "text"


def test_names_of_splits_in_a_deeper_folder_are_warned_of(tmp_path):
    files = {"images/train/1.jpg": picture(1), "images/val/2.jpg": picture(2), "labels/val/2.txt": "0 1 1 1 1"}
    write_files(tmp_path / "yolo", files)
    dataset = opened(tmp_path / "yolo")
    command = f"dataprep build folder `source` {tmp_path}/yolo/images"
    assert dataset.splits == ("train",)
    assert any(note.startswith("warning: all images are in train") and command in note for note in dataset.notes)
    assert opened(tmp_path / "yolo/images").splits == ("train", "val")


@pytest.mark.parametrize("classes", [("airplane", "bus", "train"), ("control", "test")])
def test_classes_called_as_splits_are_built_as_the_error_says(tmp_path, classes):
    root = tree(tmp_path, *(f"{name}/1.jpg" for name in classes))
    with pytest.raises(SourceError, match=r"which are splits by their names: .* are classes, add `label_from` folder$"):
        opened(root)
    dataset = opened(root, label_from="folder")
    assert dataset.splits == ("train",)
    found = dataset.enumerate(open_originals(str(root)), "train", allow_partial=False)
    assert found.classes == classes
    assert [(ref.key, classes[ref.label]) for ref in found.refs] == [(f"{name}/1", name) for name in classes]


def test_folders_of_splits_are_no_classes_where_pictures_lie_deeper(tmp_path):
    root = tree(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "other/1.jpg")
    with pytest.raises(SourceError, match=r"1 images outside of train.* as `source`$"):
        opened(root, label_from="folder")


def test_a_table_above_its_pictures_is_told_their_folder(tmp_path):
    write_files(tree(tmp_path, "pics/1.jpg", "pics/2.jpg"), {"captions.csv": "file,caption\n1.jpg,one\n2.jpg,two\n"})
    with pytest.raises(SourceError, match=r"where the paths begin, such as 'pics', which has '1\.jpg'$"):
        configured("table", own=OwnData(name="pets")).opened(open_originals(str(tmp_path)))


@pytest.mark.parametrize("suffix", ["zip", "tar"])
def test_a_table_beside_an_archive_is_built_as_the_line_says(tmp_path, suffix):
    files = {"1.jpg": JPEG, "a/2.jpg": JPEG}
    packed = zip_of(files) if suffix == "zip" else tar_of([*files.items()])
    captions = "file,caption\n1.jpg,one\na/2.jpg,two\n"
    write_files(tmp_path / "s", {f"my pics.{suffix}": packed, "captions.csv": captions})
    (line,) = (line for line in opened(tmp_path / "s").notes if "captions.csv' is skipped" in line)
    commands = line.partition(": after ")[2].partition(" builds the pictures")[0]
    unpack, build = commands.split(", ")
    with pytest.raises(SourceError) as error:
        configured("table", own=OwnData(name="pets")).opened(open_originals(str(tmp_path / "s")))
    assert str(error.value).endswith(f"; if they are in 'my pics.{suffix}', unpack first: {unpack}")
    subprocess.run(shlex.split(unpack), check=True, capture_output=True)
    words = [word.replace("`source`", "--source") for word in shlex.split(build)[1:]]
    run = succeeds(*words, "--output", tmp_path / "out", "--format", "webdataset")
    assert "train: 2 samples" in run.stdout


JPEG = picture(1)
CAPTION = (("caption", "txt"),)
TEXTS = {
    "a": "a cat\n",
    "a-b": "\ufeffof Windows\r\n",
    "a.b": " 007 ",
    "deep/a": "two\nlines\n\n",
    "deep/Grünfink": "\u2028 🐦 NUL \0",
    "z": "",
}
STORED = {
    "a": "a cat",
    "a-b": "of Windows",
    "a=2Eb": " 007 ",
    "deep/a": "two\nlines",
    "deep/Gr=C3=BCnfink": "\u2028 🐦 NUL \0",
    "z": "",
}
"""The same texts by key: without the mark of UTF-8 in front, and without line ends behind."""


def files(texts=TEXTS, suffix="txt"):
    found: dict[str, bytes | str] = {"README.txt": "about the pictures"}
    for number, (name, text) in enumerate(texts.items()):
        found[f"{name}.{'webp' if number % 2 else 'jpg'}"] = JPEG
        found[f"{name}.{suffix}"] = text
    return found


def in_bytes(content):
    return {name: data.encode() if isinstance(data, str) else data for name, data in content.items()}


def opened_texts(root, **own):
    own = {"text_files": CAPTION, "label_from": "none"} | own
    return configured("folder", own=OwnData(name="pets", **own)).opened(open_originals(str(root)))


def values(dataset, split="train"):
    found = dataset.found[split]
    return {ref.key: annotation_values(found.features, ref.annotations) for ref in found.refs}


def captions(dataset):
    return {key: row["caption"] for key, row in values(dataset).items()}


def test_texts_in_a_folder_and_in_a_bucket(tmp_path, bucket_url):
    write_files(tmp_path, files())
    for name, data in in_bytes(files()).items():
        open_storage(bucket_url).create(name, data)
    for root in (tmp_path, bucket_url):
        dataset = opened_texts(root)
        assert captions(dataset) == STORED
        assert dataset.found["train"].features == {"caption": Feature("text")}
        assert dataset.notes == ("skipped: 1 .txt",)


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize(
    ("top", "alone", "in_folder"), [("", "", "pairs/"), ("pairs/", "pairs/", "pairs/"), ("x/y/", "y/", "pairs/x/y/")]
)
def test_texts_in_an_archive(tmp_path, kind, top, alone, in_folder):
    """The archive is the source itself, or a file in it; a folder that holds everything is removed from the former."""
    content = [(top + name, data) for name, data in reversed(in_bytes(files()).items())]
    (tmp_path / f"pairs.{kind}").write_bytes(zip_of(dict(content)) if kind == "zip" else tar_of(content))
    assert captions(opened_texts(tmp_path, archive=f"pairs.{kind}")) == {
        alone + key: text for key, text in STORED.items()
    }
    assert captions(opened_texts(tmp_path)) == {in_folder + key: text for key, text in STORED.items()}


def test_texts_join_the_columns_of_metadata(tmp_path):
    rows = "".join(f"{name}.{'webp' if n % 2 else 'jpg'},{n}\n" for n, name in enumerate(TEXTS))
    write_files(tmp_path, {**files(), "metadata.csv": f"file_name,n\n{rows}"})
    dataset = opened_texts(tmp_path)
    assert values(dataset) == {key: {"caption": text, "n": n} for n, (key, text) in enumerate(STORED.items())}
    assert list(dataset.found["train"].features) == ["caption", "n"]


def test_texts_decide_labels_and_splits_like_a_column(tmp_path):
    content = {f"{n}.jpg": JPEG for n in range(40)} | {f"{n}.cls": f"{('dog', 'cat')[n % 2]}\n" for n in range(40)}
    content |= {f"{n}.txt": f"scene {n // 2}" for n in range(40)}
    dataset = opened_texts(
        write_files(tmp_path, content),
        text_files=(("label", "cls"), ("scene", "txt")),
        label_from=None,
        val_fraction=0.4,
        group_by="scene",
    )
    assert dataset.found["train"].classes == ("cat", "dog")
    assert "classes from the text files .cls" in dataset.notes
    scenes = [{row["scene"] for row in values(dataset, split).values()} for split in ("train", "val")]
    assert scenes[0].isdisjoint(scenes[1])
    assert len(scenes[0] | scenes[1]) == 20


def test_pictures_without_a_text_take_the_default(tmp_path):
    write_files(tmp_path, {"1.jpg": JPEG, "1.caption": "one", "2.jpg": JPEG})
    found = opened_texts(tmp_path, text_files=(("caption", "caption"),), defaults=(("caption", "no words"),))
    assert captions(found) == {"1": "one", "2": "no words"}


def test_texts_that_are_not_asked_for_are_passed_over_with_the_option(tmp_path):
    write_files(tmp_path, {"1.jpg": JPEG, "1.txt": "one", "2.webp": JPEG, "2.txt": "two", "notes.txt": ""})
    assert opened_texts(tmp_path, text_files=()).notes == (
        "skipped: 3 .txt",
        "some of these have the name of an image, as '1.txt' does: `text_files` caption makes their texts a feature",
    )
    write_files(tmp_path / "other", {"2.webp": JPEG, "2.caption": "x"})
    assert "`text_files` caption=caption" in opened_texts(tmp_path / "other", text_files=()).notes[1]


@pytest.mark.parametrize(
    ("content", "own", "text"),
    [
        ({"2.jpg": JPEG}, {}, "no .txt file for 1 of 2 images: '2.jpg'; expected one of the same name"),
        ({"a/1.txt": "x"}, {}, "no image for 1 of 2 text files: 'a/1.txt'; expected one of the same name"),
        ({"1.TXT": "x"}, {}, "are text files of one picture; remove one"),
        ({"1.txt": bytes(MAX_TEXT_BYTES + 1)}, {}, "1,048,577 bytes, expected the text of one image"),
        ({"1.txt": "\x01" * (MAX_TEXT_BYTES // 2)}, {}, "bytes of annotations, expected at most 1,048,576"),
        ({"1.txt": "ä".encode("utf-16")}, {}, "'1.txt': not UTF-8; save the file as UTF-8"),
        ({"1.txt": b"\xed\xa0\x80"}, {}, "'1.txt': not UTF-8"),
        ({"metadata.jsonl": json.dumps({"file_name": "1.jpg", "caption": "x"})}, {}, "a column caption, too; choose"),
        ({"1.png": JPEG}, {}, "two images have the key 1, ignoring case"),
        ({}, {"defaults": (("age", "1"),)}, "`default`: "),
        ({}, {"label_from": "breed"}, "`label_from`: "),
        ({}, {"group_by": "who", "val_fraction": 0.5}, "`group_by`: "),
    ],
)
def test_what_a_newcomer_is_told_of_texts(tmp_path, content, own, text):
    write_files(tmp_path, {"1.jpg": JPEG, "1.txt": "one", **content})
    assert text in refused(tmp_path, **{"text_files": CAPTION} | own)


def test_a_column_of_the_same_name_can_be_left_out(tmp_path):
    row = json.dumps({"file_name": "1.jpg", "caption": "of the row"})
    write_files(tmp_path, {"1.jpg": JPEG, "1.txt": "of the file", "metadata.jsonl": row})
    assert captions(opened_texts(tmp_path, drop=("caption",))) == {"1": "of the file"}


def test_compressed_texts_of_a_zip_are_refused_and_others_passed_over(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("1.jpg", JPEG)
        archive.writestr("1.txt", "x" * 1000, zipfile.ZIP_DEFLATED)
    assert len(opened_texts(tmp_path, archive="x.zip", text_files=()).found["train"].refs) == 1
    with pytest.raises(SourceError, match=r"1\.txt.*compressed"):
        opened_texts(tmp_path, archive="x.zip")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], ()),
        (["caption"], (("caption", "txt"),)),
        (["tags=.JSON", "caption"], (("caption", "txt"), ("tags", "json"))),
        (["label=cls"], (("label", "cls"),)),
    ],
)
def test_features_and_suffixes(given, expected):
    assert text_files(given) == expected


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["width"], "`text_files` width: the name 'width' is taken"),
        (["a/b"], "expected 1 to 100 characters, no '/'"),
        ([""], "is not allowed"),
        (["caption=jpg"], "no text file has the suffix 'jpg'; expected one such as txt or caption"),
        (["caption=tar.gz"], "no text file has the suffix"),
        (["caption", "caption=caption"], "the same name twice among caption, caption=caption"),
        (["a", "b=txt"], "the same suffix twice among a, b=txt"),
    ],
)
def test_features_and_suffixes_that_are_refused(given, text):
    with pytest.raises(UsageError) as error:
        text_files(given)
    assert text in str(error.value)
