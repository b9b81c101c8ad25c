"""`dataprep convert` as users call it."""

import json
import re
import shutil

import pytest

import dataprep as dataprep_functions
from dataprep.dataset.column_files import ColumnType
from dataprep.dataset.index import open_index
from dataprep.dataset.manifest import read_manifest
from dataprep.errors import UsageError
from dataprep.sources.existing import stored_fields
from dataprep.storage import open_storage
from tests.support.adoption import adopt_here
from tests.support.builds import dataprep, digests, refuses, succeeds
from tests.support.columns import of_key, write_column
from tests.support.converting import content
from tests.support.finished import verify_here
from tests.support.own_data import annotated, build_own, picture
from tests.support.raw_tar import tar_of
from tests.support.shared import made_once, shared_folder


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    """A dataset with features."""

    def make(path):
        build_own(annotated(path.with_name("convert-source")), path, licence="CC0-1.0", origin="my garden")

    return made_once(shared_folder(tmp_path_factory) / "convert-pets", make)


def test_a_dataset_is_converted_with_its_licence_and_origin(pets, tmp_path):
    arguments = ["convert", pets, "--output", tmp_path / "out", "--format", "imagefolder", "--workers", 1, "--json"]
    run = succeeds(*arguments)
    document = json.loads(run.stdout)
    assert (document["name"], document["licence"], document["origin"]) == ("pets", "CC0-1.0", "my garden")
    assert document["converted_from"] == pets.name
    assert content(tmp_path / "out") == content(pets)
    before = digests(tmp_path / "out")
    again = dataprep(*arguments)
    assert (json.loads(again.stdout)["shards_built"], digests(tmp_path / "out")) == (0, before)
    assert verify_here(tmp_path / "out", deep=True).verdict == "complete"


def test_that_a_dataset_is_partial_stays(originals, tmp_path):
    build = ("--source", originals["coco"], "--split", "train", "--allow-partial", "--max-reject-ratio", 1)
    succeeds("build", "coco-dup5", *build, "--output", tmp_path / "coco", "--format", "webdataset")
    run = dataprep("convert", tmp_path / "coco", "--output", tmp_path / "out", "--format", "tfrecord", "--json")
    assert (run.returncode, json.loads(run.stdout)["partial"]) == (0, True)


def test_images_with_boxes_are_not_turned_without_them(pets, tmp_path):
    words = ["convert", pets, "--output", tmp_path / "out", "--format", "tfrecord", "--apply-exif", "--dry-run"]
    run = refuses(*words)
    assert "--apply-exif turns images, but not their boxes and points (objects/bbox); leave it out" in run.stderr


def test_images_without_boxes_are_turned_upright(pairs, tmp_path):
    succeeds("convert", pairs, "--output", tmp_path / "out", "--format", "tfrecord", "--apply-exif", "--dry-run")


@pytest.fixture
def pairs(tmp_path):
    """Adopted tars of 20 images with labels of text and captions."""
    folder = tmp_path / "pairs"
    folder.mkdir()
    for shard in range(2):
        members = []
        for number in range(shard, 20, 2):
            parts = {"jpg": picture(number), "cls": b"cat" if number % 3 else b"dog", "txt": b"picture %d" % number}
            members += [(f"{number:03d}.{suffix}", data) for suffix, data in parts.items()]
        (folder / f"{shard}.tar").write_bytes(tar_of(members))
    adopt_here(folder)
    return folder


def test_classes_of_text_and_all_fields_are_kept_unless_told_otherwise(pairs, tmp_path):
    kept = "fields kept as features: txt (--field NAME keeps some, --no-fields none)"
    also = "its samples also have txt; --field NAME keeps a field as a feature"
    for more, features, note in (([], ["txt"], kept), (["--field", "txt"], ["txt"], None), (["--no-fields"], [], also)):
        out = tmp_path / "-".join(["out", *more])
        run = succeeds("convert", pairs, "--output", out, "--format", "tfrecord", "--workers", 1, "--json", *more)
        document = json.loads(run.stdout)
        assert (list(document.get("features", ())), document["classes"]) == (features, ["cat", "dog"])
        assert document["notes"] == ([note] if note else [])
        assert verify_here(out, deep=True).verdict == "complete"


def test_a_share_of_train_becomes_val_whatever_the_shards(pairs, tmp_path):
    parts = []
    for name, more in (("one", []), ("two", ["--num-shards", 2, "--no-shuffle"])):
        words = ["convert", pairs, "--output", tmp_path / name, "--format", "webdataset", "--val-fraction", 0.3]
        succeeds(*words, *more, "--workers", 1, "--json")
        splits = content(tmp_path / name)["splits"]
        parts.append({split: sorted(key for key, *_ in samples) for split, (_, samples) in splits.items()})
        assert verify_here(tmp_path / name, deep=True).verdict == "complete"
    assert parts[0] == parts[1]
    assert sorted(parts[0]["train"] + parts[0]["val"]) == [f"{number:03d}" for number in range(20)]
    again = dataprep(*words, *more, "--workers", 1, "--json")
    assert json.loads(again.stdout)["shards_built"] == 0
    assert json.loads(again.stdout)["options"]["own"]["val_fraction"] == 0.3
    words = ["--output", tmp_path / "o", "--format", "tfrecord", "--val-fraction"]
    other = refuses("convert", tmp_path / "one", *words, 0.1)
    assert "the splits to convert are train, val; it needs train, and no val: choose them with --split" in other.stderr
    tiny = refuses("convert", pairs, *words, 0.0001)
    assert "leaves 20 images for train and 0 for val, because the name of an image alone decides" in tiny.stderr
    fraction = re.search(r"; --val-fraction (\S+) leaves some for both", tiny.stderr)[1]
    mended = succeeds("convert", pairs, *words, fraction, "--dry-run")
    smaller = dataprep("convert", pairs, *words, fraction, "--dry-run", "--resize", 32)
    assert " before --resize\n" in smaller.stdout and "before --resize" not in mended.stdout


@pytest.mark.parametrize(
    ("source", "output", "more", "words"),
    [
        ("{nothing}", "{out}", [], "no dataset there (no dataset.json); index what"),
        ("{pets}", "{pets}", [], "URL and --output are the same"),
        ("{pets}", "{pets}/out", [], "are inside one another"),
        ("{pets}", "{out}", ["--split", "test"], "--split test"),
        ("{pets}", "{out}", ["--field", "caption"], "a dataset that has features (caption, "),
        ("{pets}", "{out}", ["--no-fields"], "a dataset that has features (caption, "),
        ("{pets}", "{out}", ["--val-fraction", "1"], "must be from 0 to below 1"),
        ("{pets}", "{out}", ["--default", "a"], "expected NAME=VALUE"),
        ("{pets}", "{out}", ["--name", "imagenet"], "choose another with --name"),
        ("{pets}", "{out}", ["--repeat", "physical"], "uses each image once per epoch"),
    ],
)
def test_what_cannot_be_converted_is_refused_in_one_line(pets, tmp_path, source, output, more, words):
    places = {"nothing": tmp_path / "nothing", "out": tmp_path / "out", "pets": pets}
    urls = (source.format(**places), "--output", output.format(**places))
    run = refuses("convert", *urls, "--format", "tfrecord", *more)
    assert words in run.stderr
    assert len(run.stderr.strip().splitlines()[-1]) < 1000
    assert not (tmp_path / "out").exists()


COLUMNS = {
    "rating": ColumnType("array", "float16"),
    "hash": ColumnType("array", "uint64"),
    "boxes": ColumnType("array", "int32", (None, 4)),
    "words": ColumnType("text"),
}


@pytest.mark.parametrize("source", ["pets", "pairs"])
def test_columns_that_are_named_become_features(request, tmp_path, source):
    root = shutil.copytree(request.getfixturevalue(source), tmp_path / "columns")
    for name, kind in COLUMNS.items():
        write_column(root, name, kind)
    view = dataprep_functions.select(root, name="most", sample=0.8).url
    words = [word for name in COLUMNS for word in ("--column", name)]
    succeeds("convert", view, "--output", tmp_path / "out", "--format", "webdataset", "--workers", 1, *words)
    out = open_storage(str(tmp_path / "out"))
    manifest, features = read_manifest(out), read_manifest(out).features
    before = {*read_manifest(open_storage(str(root))).features} or {"txt"}
    assert features.keys() == before | COLUMNS.keys()
    assert features["boxes"].shape == (None, 4)
    assert {name: features[name].kind for name in ("rating", "hash")} == {"rating": "float32", "hash": "int64"}
    seen = 0
    for split in manifest.splits:
        index = open_index(out, split)
        read = stored_fields(manifest, out, split, tuple(COLUMNS))
        for number in range(len(split.shards)):
            rows = index.read_group(number)
            for key, values in zip(rows.column("key").to_pylist(), read(number, rows), strict=True):
                seen += 1
                for name, kind in COLUMNS.items():
                    expected = of_key(kind, key)
                    assert values[name] == (expected if isinstance(expected, str) else expected.tolist())
    assert seen > 5


def test_a_column_that_no_format_stores_or_that_is_missing_is_refused(pets, tmp_path):
    root = shutil.copytree(pets, tmp_path / "columns")
    write_column(root, "ragged", ColumnType("array", "int32", (2, None)))
    write_column(root, "old", ColumnType("text"), shards=0)
    convert = ["convert", root, "--output", tmp_path / "out", "--format", "webdataset", "--column"]
    assert "--column ragged: of type int32 (2, any), which no format stores" in refuses(*convert, "ragged").stderr
    assert "column old has no values for" in refuses(*convert, "old").stderr
    assert "no column 'odl'; did you mean old" in refuses(*convert, "odl").stderr


def test_only_builds_that_can_grow_have_append(tmp_path):
    words = ["--output", tmp_path / "out", "--format", "tfrecord", "--append"]
    for command in (["convert", "a"], ["build", "laion", "--source", "a", "--contact", "mailto:me@example.org"]):
        assert "No such option '--append'" in refuses(*command, *words).stderr
    with pytest.raises(UsageError, match="convert has no argument 'append'"):
        dataprep_functions.convert("a", output="out", format="tfrecord", append=True)
    with pytest.raises(UsageError, match="`append` keeps the dataset, `overwrite` deletes it; give one of the two"):
        dataprep_functions.build_folder(source=tmp_path, output="out", format="tfrecord", append=True, overwrite=True)
