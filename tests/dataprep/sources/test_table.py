"""A user's own tables: keys, labels, features, splits, images that cannot be used, and what a newcomer is told."""

import datetime
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.dataset.features import annotation_values
from dataprep.dataset.records import MISSING
from dataprep.errors import DataprepError, SourceError
from dataprep.sources import configured, table
from dataprep.sources.base import OwnData, Reading
from dataprep.sources.image_tables import ImageTable
from dataprep.sources.keys import Problems
from dataprep.sources.pictures import Examples
from dataprep.sources.table import NamedRow, UnusableImages, unnamed_pictures
from dataprep.sources.unpacked import unpacked_name
from dataprep.storage import open_originals, open_storage
from tests.support.own_data import picture, write_files
from tests.support.tables import BREEDS, IMAGE, hub, hub_rows, listed, write_hub

JPEG = picture(1)


def opened(root, unpack_to=None, splits=(), ratio=0.0, **own):
    dataset = configured("table", own=OwnData(name="dogs", **own))
    output = None if unpack_to is None else open_storage(str(unpack_to))
    return dataset.opened(open_originals(str(root)), Reading(unpack_to=output, splits=splits, max_reject_ratio=ratio))


def contents(dataset):
    return {
        split: (list(found.refs), found.sources, found.classes, found.features)
        for split, found in dataset.found.items()
    }


def labels(dataset, split="train"):
    found = dataset.found[split]
    return {ref.key: found.classes[ref.label] if ref.label >= 0 else "" for ref in found.refs}


def test_tables_of_the_hub(tmp_path):
    root, output = hub(tmp_path / "hub"), open_storage(str(tmp_path / "out"))
    dataset = opened(root, tmp_path / "out")
    assert dataset.splits == ("train", "val")
    train = dataset.found["train"]
    assert train.classes == ("beagle", "husky", "pug")
    assert labels(dataset) == {str(n): BREEDS[n % 3] for n in (*range(5), *range(10, 15))}
    assert {name: feature.kind for name, feature in train.features.items()} == {"caption": "text"}
    rows = {str(row["image"]["path"]).removesuffix(".jpg"): row for row in (*hub_rows(5), *hub_rows(5, 10))}
    files = {file.name: file for file in train.sources}
    for ref in train.refs:
        unpacked = output.read_range(unpacked_name(files[ref.source]), ref.offset, ref.num_bytes)
        assert unpacked == rows[ref.key]["image"]["bytes"]
        assert annotation_values(train.features, ref.annotations) == {"caption": rows[ref.key]["caption"]}
    assert any("images are in parquet files" in note for note in dataset.notes)
    assert "classes are sorted by name, so labels differ from the numbers in label: 'pug' is" not in dataset.notes
    assert contents(opened(root)) == contents(dataset)  # measured, and not unpacked


def test_unpacked_images_are_used_again(tmp_path):
    root = hub(tmp_path / "hub")
    first = opened(root, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/_build").glob("unpacked-*")}
    assert len(before) == 3
    assert contents(opened(root, tmp_path / "out")) == contents(first)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out/_build").glob("unpacked-*")} == before


def test_only_the_wanted_splits_are_unpacked(tmp_path):
    root = hub(tmp_path / "hub")
    dataset = opened(root, tmp_path / "out", splits=("val",))
    assert (dataset.splits, list(dataset.found)) == (("train", "val"), ["val"])
    assert contents(dataset)["val"] == contents(opened(root))["val"]
    assert len(list((tmp_path / "out/_build").glob("unpacked-*"))) == 1


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_tables_with_paths(tmp_path, kind):
    dataset = opened(listed(tmp_path, kind), label_from="breed")
    train = dataset.found["train"]
    assert [(ref.key, ref.source, ref.offset) for ref in train.refs] == [
        (f"images/{n}", f"images/{n}.jpg", 0) for n in range(4)
    ]
    assert [ref.num_bytes for ref in train.refs] == [len(picture(n)) for n in range(4)]
    assert labels(dataset) == {f"images/{n}": BREEDS[n % 2] for n in range(4)}
    assert [annotation_values(train.features, ref.annotations) for ref in train.refs] == [{"age": n} for n in range(4)]
    assert [file.name for file in train.sources] == [f"dogs.{kind}", "*"]


def test_images_of_which_the_hub_has_paths_only(tmp_path):
    rows = [{**row, "image": {"bytes": None, "path": f"pictures/{row['image']['path']}"}} for row in hub_rows(3)]
    write_hub(tmp_path / "train.parquet", rows)
    write_files(tmp_path, {f"pictures/{n}.jpg": picture(n) for n in range(3)})
    assert [ref.source for ref in opened(tmp_path).found["train"].refs] == [f"pictures/{n}.jpg" for n in range(3)]


def write_parquet(root, rows, schema=None, name="x.parquet"):
    pq.write_table(pa.Table.from_pylist(rows, schema), root / name)
    return root


@pytest.mark.parametrize(
    ("rows", "own", "keys"),
    [
        (hub_rows(2), {}, ["0", "1"]),
        (hub_rows(2), {"key_from": "row"}, ["x-0", "x-1"]),
        (hub_rows(2, paths=False), {}, ["x-0", "x-1"]),
        (hub_rows(2), {"key_from": "caption"}, ["dog=200", "dog=201"]),
        ([{"image": JPEG, "file_name": "a/b.c.jpg"}, {"image": JPEG, "file_name": "__d"}], {}, ["a/b=2Ec", "=5F_d"]),
        ([{"image": JPEG, "id": 7}, {"image": JPEG, "id": 8}], {"key_from": "id"}, ["7", "8"]),
        ([{"image": JPEG, "version": "1.5"}], {"key_from": "version"}, ["1=2E5"]),
        ([{"image": JPEG, "file_name": "a.jpg"}], {"key_from": "row"}, ["x-0"]),
    ],
)
def test_keys(tmp_path, rows, own, keys):
    schema = pa.schema([("image", IMAGE), ("label", pa.int64()), ("caption", pa.string())])
    is_hub = isinstance(rows[0]["image"], dict)
    own = {**own, "label_from": "none", "drop": ("label",)}
    if own.get("key_from") == "row" and not is_hub:
        own["drop"] = ("label", "file_name")
    found = opened(write_parquet(tmp_path, rows, schema if is_hub else None), **own).found["train"]
    assert [ref.key for ref in found.refs] == keys


def test_rows_that_name_one_image_are_numbered(tmp_path):
    root = write_files(tmp_path, {"images/0.jpg": JPEG, "x.csv": "image,n\nimages/0.jpg,1\nimages/0.jpg,2\n"})
    found = opened(root, key_from="row").found["train"]
    assert [(ref.key, ref.source) for ref in found.refs] == [("x-0", "images/0.jpg"), ("x-1", "images/0.jpg")]


def test_a_number_of_rows_goes_on_in_no_other_file(tmp_path):
    write_hub(tmp_path / "a/0.parquet", hub_rows(2, paths=False))
    write_hub(tmp_path / "b/0.parquet", hub_rows(1, paths=False))
    assert [ref.key for ref in opened(tmp_path).found["train"].refs] == ["a/0-0", "a/0-1", "b/0-0"]


def without_path(rows, number):
    rows[number]["image"]["path"] = None
    return rows


@pytest.mark.parametrize(
    ("rows", "own", "text"),
    [
        (without_path(hub_rows(3), 2), {}, "row 3: no path to make a key of, unlike other rows; .*`key_from` row"),
        (hub_rows(2, paths=False), {"key_from": "path"}, "row 1: no path to make a key of"),
        ([*hub_rows(2), *hub_rows(1)], {}, "row 1 and 'x.parquet' row 3 have the same key 0, ignoring case.*unless"),
        ([{**hub_rows(1)[0], "image": {"bytes": JPEG, "path": "../x.jpg"}}], {}, "climbs out.*`key_from` row"),
        (hub_rows(1), {"key_from": "id"}, "`key_from` id: expected path, row, or a column of image, label, caption"),
        ([*hub_rows(1), {**hub_rows(1)[0], "image": None}], {}, "1 image without a byte: .* row 2; replace it, or"),
        ([{**hub_rows(1)[0], "caption": None}], {}, "'caption' has no value.*`default` caption=VALUE.*`drop` caption"),
        ([{**hub_rows(1)[0], "label": -1}], {}, "row 1: label is -1, expected 0 to 2, .*`split` train and val"),
        (hub_rows(1), {"label_from": "folder"}, "`label_from` folder: a table has its labels in a column"),
        (hub_rows(1), {"label_from": "breed"}, "`label_from` breed: no such column"),
        (hub_rows(1), {"label_from": "none"}, "the name 'label' is taken.*`drop` label"),
        (hub_rows(1), {"group_by": "dog", "val_fraction": 0.5}, "`group_by` dog: no such column in the table"),
        ([], {}, "x.parquet: no rows"),
    ],
)
def test_errors_of_a_newcomer(tmp_path, rows, own, text):
    write_hub(tmp_path / "x.parquet", rows)
    with pytest.raises(DataprepError, match=re.compile(text)) as raised:
        opened(tmp_path, tmp_path / "out", **own)
    assert all(line.startswith("  ") for line in str(raised.value).split("\n")[1:])
    left = list((tmp_path / "out").rglob("unpacked-*"))
    assert len(left) <= 1


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            ["image,n", "images/0.jpg,1", "absent.jpg,2"],
            "1 of 2 images are not below .*: 'absent.jpg' .line 3.; .*or put the table into the folder",
        ),
        (["image,n", ",1"], "1 of 1 images are not below .*: no path .line 2."),
        (["image,n", "images/outside.jpg,1"], "outside.jpg is a link out of .*secret.jpg"),
    ],
)
def test_paths_that_are_refused(tmp_path, rows, text):
    root = write_files(tmp_path / "data", {"images/0.jpg": JPEG, "x.csv": "\n".join(rows)})
    write_files(tmp_path, {"secret.jpg": JPEG})
    (root / "images/outside.jpg").symlink_to("../../secret.jpg")
    with pytest.raises(DataprepError, match=text):
        opened(root, archive="x.csv")


@pytest.mark.parametrize("rows", [["url,n", "https://example.org/1.jpg,1"], ["image,n", "https://example.org/1.jpg,1"]])
@pytest.mark.parametrize(("table", "named"), [("", ""), ("x.csv", "/x.csv")])
def test_a_table_of_urls_is_named_to_build_laion_as_it_was_given(tmp_path, rows, table, named):
    (tmp_path / "x.csv").write_text("\n".join(rows))
    with pytest.raises(DataprepError, match="a table of URLs is built by") as raised:
        opened(tmp_path, archive=table)
    assert str(raised.value).endswith(f"dataprep build laion `source` {tmp_path}{named} `name` NAME")


def test_tables_of_different_columns(tmp_path):
    write_hub(tmp_path / "train.parquet", hub_rows(1))
    write_parquet(tmp_path, [{"image": {"bytes": JPEG, "path": ""}}], name="test.parquet")
    with pytest.raises(
        SourceError, match=r"have different columns: caption \(string\), label \(int64\) are only in one; .*`table`"
    ):
        opened(tmp_path)
    write_hub(tmp_path / "test.parquet", hub_rows(1), classes=["a", "b", "c"])
    with pytest.raises(SourceError, match="the names of their classes differ"):
        opened(tmp_path)


def test_a_split_without_labels_is_left_out_by_naming_the_others(tmp_path):
    write_hub(tmp_path / "train.parquet", hub_rows(3))
    write_hub(tmp_path / "test.parquet", [{**row, "label": -1} for row in hub_rows(2)])
    with pytest.raises(SourceError, match="row 1: label is -1"):
        opened(tmp_path)
    assert labels(opened(tmp_path, splits=("train",))) == {str(n): BREEDS[n] for n in range(3)}


def test_names_of_classes_are_those_of_the_schema(tmp_path):
    write_hub(tmp_path / "x.parquet", hub_rows(2), classes=["T - shirt / top", "Trouser", "Bag"])
    dataset = opened(tmp_path)
    assert dataset.found["train"].classes == ("Bag", "T - shirt - top", "Trouser")
    assert labels(dataset) == {"0": "T - shirt - top", "1": "Trouser"}
    assert any(
        "labels differ from the numbers in label: 'T - shirt - top' is 1 in place of 0" in n for n in dataset.notes
    )
    write_hub(tmp_path / "x.parquet", hub_rows(2), classes=["a/b", "a-b"])
    with pytest.raises(SourceError, match="are not unique, ignoring slashes"):
        opened(tmp_path)


def test_one_column_with_classes_is_that_of_the_labels(tmp_path):
    schema = {"coarse": ["x", "y"], "fine": ["p", "q"]}
    described = {name: {"_type": "ClassLabel", "names": names} for name, names in schema.items()}
    metadata = {"huggingface": json.dumps({"info": {"features": described}})}
    types = pa.schema([("image", IMAGE), ("coarse", pa.int64()), ("fine", pa.int64())], metadata=metadata)
    rows = [{"image": {"bytes": JPEG, "path": "1.jpg"}, "coarse": 1, "fine": 0}]
    both = opened(write_parquet(tmp_path, rows, types))
    assert (both.found["train"].classes, list(both.found["train"].features)) == ((), ["coarse", "fine"])
    assert "warning: no labels: coarse, fine have classes; choose one with `label_from`" in both.notes
    assert labels(opened(tmp_path, drop=("coarse",))) == {"1": "p"}
    assert labels(opened(tmp_path, label_from="coarse")) == {"1": "y"}


def test_a_share_of_train_becomes_val(tmp_path):
    write_hub(tmp_path / "x.parquet", hub_rows(30))
    dataset = opened(tmp_path, val_fraction=0.3)
    found = {split: {ref.key for ref in dataset.found[split].refs} for split in dataset.splits}
    assert found["train"] | found["val"] == {str(n) for n in range(30)}
    assert not found["train"] & found["val"]
    assert dataset.found["val"].sources == dataset.found["train"].sources
    only_val = opened(tmp_path, splits=("val",), val_fraction=0.3)
    assert contents(only_val) == {"val": contents(dataset)["val"]}


def test_all_columns_whose_names_are_taken_are_named_at_once(tmp_path):
    write_parquet(tmp_path, [{"image": JPEG, "width": 24, "height": 16}])
    with pytest.raises(SourceError, match=r"'height' is taken.*'width' is taken.*with `drop` height `drop` width$"):
        opened(tmp_path)


def test_a_column_that_no_feature_can_have_may_be_left_out(tmp_path):
    write_parquet(tmp_path, [{"image": JPEG, "taken": datetime.datetime(2020, 1, 1)}])
    with pytest.raises(SourceError, match=r"a value of type datetime.*write it as one text.* or leave .*`drop` taken"):
        opened(tmp_path)
    assert opened(tmp_path, drop=("taken",)).found["train"].features == {}


def test_images_that_a_bucket_lacks_are_rejected_up_to_the_ratio(bucket_url):
    root = open_storage(f"{bucket_url}/originals")
    for number in range(3):
        root.create(f"{number}.jpg", picture(number))
    root.create("x.csv", b"image\n0.jpg\n1.jpg\nabsent.jpg\n2.jpg\n")
    with pytest.raises(SourceError, match=r"1 of 4 images are not below .*: 'absent.jpg' \(line 4\)") as raised:
        opened(root.url)
    assert list(raised.value.missing) == [("absent.jpg", "'x.csv' line 4")]
    offsets = {ref.key: ref.offset for ref in opened(root.url, ratio=0.3).found["train"].refs}
    assert offsets == {"0": 0, "1": 0, "2": 0, "absent": MISSING}


@pytest.mark.parametrize("null", [None, {"bytes": None, "path": "x.jpg"}, {"bytes": None, "path": None}])
@pytest.mark.parametrize("at", [0, 3])
def test_a_null_image_is_missing(tmp_path, null, at):
    rows = hub_rows(5)
    rows[at]["image"] = null
    root = write_hub(tmp_path / "data/dogs.parquet", rows).parent
    output = open_storage(str(tmp_path / "out"))
    for _ in range(2):  # unpacked, and read from what was unpacked
        found = opened(root, tmp_path / "out", ratio=0.2).found["train"]
        (source,) = found.sources
        for number, ref in enumerate(found.refs):
            if number == at:
                assert ref.offset == MISSING
            else:
                stored = output.read_range(unpacked_name(source), ref.offset, ref.num_bytes)
                assert (ref.key, stored) == (f"{number}", rows[number]["image"]["bytes"])


def test_only_the_splits_that_are_built_count_images_that_cannot_be_used(tmp_path):
    root = listed(tmp_path, count=40)
    with (root / "dogs.csv").open("a") as table:
        table.write("absent.jpg,pug,3\n")
    told = {}
    for split in ("train", "val"):
        try:
            opened(root, splits=(split,), val_fraction=0.2)
        except SourceError as error:
            told[split] = str(error)
    assert len(told) == 1
    assert "1 of 41 images are not below" in "".join(told.values())


def test_a_column_that_may_hold_the_classes_is_named(tmp_path):
    write_files(tmp_path, {"1.jpg": JPEG, "t.csv": "path,Label\n1.jpg,pug\n"})
    dataset = opened(tmp_path)
    assert any("if it holds the classes: `label_from` Label" in note for note in dataset.notes)
    assert opened(tmp_path, label_from="Label").found["train"].classes == ("pug",)


def line(root, *names):
    return unnamed_pictures(open_storage(str(root)), set(names))


def test_pictures_in_the_same_folders_that_no_row_names_are_counted_and_named(tmp_path):
    files = ("a/0.jpg", "a/1.JPG", "a/2.heic", "a/x.txt", "a/._3.jpg", "a/deep/4.jpg", "b/5.png", "0.jpg", "c/6.jpg")
    write_files(tmp_path, dict.fromkeys(files, b"x"))
    (tmp_path / "a" / "folder.jpg").mkdir()
    assert line(tmp_path, "a/0.jpg", "b/5.png", "gone/7.jpg") == (
        "note: 2 pictures next to the table's are in no row, so they are left out: 'a/1.JPG', 'a/2.heic'"
    )
    assert line(tmp_path, "a/0.jpg", "a/1.jpg", "0.jpg") == (
        "note: 1 picture next to the table's is in no row, so it is left out: 'a/2.heic'"
    )
    assert line(tmp_path, "0.jpg", "c/6.jpg") == ""


def test_of_many_pictures_the_first_by_name_are_named(tmp_path):
    write_files(tmp_path, {f"{number}.jpg": b"x" for number in range(9)})
    assert line(tmp_path, "8.jpg").endswith(": '0.jpg', '1.jpg', '2.jpg', ...")


@pytest.mark.parametrize("bound", ["MAX_NAMED", "MAX_LISTED"])
def test_nothing_is_said_of_more_pictures_than_are_compared(tmp_path, monkeypatch, bound):
    write_files(tmp_path, {f"{number}.jpg": b"x" for number in range(9)})
    names = [f"{number}.jpg" for number in range(6)]
    assert "3 pictures" in line(tmp_path, *names)
    monkeypatch.setattr(table, bound, 5)
    assert line(tmp_path, *names) == ""


def test_the_documented_bounds_are_those_of_the_code():
    document = " ".join((Path(__file__).parents[3] / "DATA.md").read_text().split())
    assert f"up to {table.MAX_NAMED:,} pictures in the table and {table.MAX_LISTED:,} files" in document


NUM_ROWS = 200


def one_table(tmp_path, name="data.csv"):
    return ImageTable(open_storage(str(tmp_path)), name, 1)


def counted(tmp_path, ratio, missing, kind="jpg", **options):
    """Refuse images of a table, most of train: the first `missing` have no file, and the last, in val, is of a kind."""
    found, of = UnusableImages(open_storage(str(tmp_path)), ratio), one_table(tmp_path)
    found.image_column = "image"
    rows = [NamedRow(of, n + 2, f"{n}.{kind if n == NUM_ROWS - 1 else 'jpg'}") for n in range(NUM_ROWS)]
    for n, row in enumerate(rows):
        found.add(row, None if n < missing else 7)
    problems = Problems(str(tmp_path))
    val = Examples(rows[-1:] if kind == "tif" else [])
    splits = {"train": (Examples(rows[:missing]), 160), "val": (val, 40)}
    lines = found.refuse(splits, problems, **({"are_final": True} | options))
    assert found.are_some == bool(missing or val.count)
    return lines, problems, list(found.missing)


def raised(problems):
    with pytest.raises(DataprepError) as error:
        problems.refuse()
    return str(error.value)


def test_nothing_is_said_of_images_that_can_be_used(tmp_path):
    lines, problems, _ = counted(tmp_path, 0.0, 0)
    assert (lines, problems.count) == ([], 0)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (4, "4 of 200 images are not below"),
        (4, "'2.jpg' (line 4), ... (the JSON output lists all); put them there, or remove the rows, or have them"),
        (4, "rejected and listed with `max_reject_ratio` 0.025;"),
        (3, "'2.jpg' (line 4); put them there, or remove the rows"),
        (150, "name their column with `image_column` (now image), or put the table into the folder"),
    ],
)
def test_missing_images_are_a_problem_whose_advice_depends_on_their_share(tmp_path, missing, words):
    lines, problems, listed = counted(tmp_path, 0.0, missing)
    assert lines == []
    assert listed == [(f"{n}.jpg", f"'data.csv' line {n + 2}") for n in range(missing)]
    assert words in raised(problems)


def test_the_ratio_that_is_named_suffices_for_every_split_that_is_known(tmp_path):
    told = raised(counted(tmp_path, 0.0, 1, "tif")[1])
    assert "'199.tif': a picture of type tif, which is not read; convert such files to JPEG or PNG" in told
    assert told.count("have them rejected and listed with `max_reject_ratio` 0.025") == 2
    told = raised(counted(tmp_path, 0.0, 1, "tif", are_final=False)[1])
    assert told.count("have them rejected and listed with `max_reject_ratio`") == 2
    assert "`max_reject_ratio` 0" not in told


def test_as_many_as_the_ratio_allows_are_told(tmp_path):
    lines, problems, _ = counted(tmp_path, 0.025, 4, "tif")
    assert problems.count == 0
    assert lines == [
        "warning: train: 4 of 160 images cannot be used (missing, empty or of a type that is not read), and will be "
        "rejected and listed: '0.jpg' (line 2), '1.jpg' (line 3), '2.jpg' (line 4), ...",
        "warning: val: 1 of 40 images cannot be used (missing, empty or of a type that is not read), and will be "
        "rejected and listed: '199.tif' (line 201)",
    ]


def test_each_split_that_has_more_than_the_ratio_allows_is_a_problem(tmp_path):
    lines, problems, _ = counted(tmp_path, 0.02, 3, "tif")
    assert (lines, problems.count) == ([], 1)
    assert raised(problems) == (
        f"{tmp_path}: val: 1 of 40 images cannot be used (missing, empty or of a type that is not read), more than "
        "`max_reject_ratio` 0.02 allows, so a build would end without a dataset: '199.tif' (line 201); repair the "
        "files, or remove the rows; `max_reject_ratio` 0.025 suffices for these"
    )
    told = raised(counted(tmp_path, 0.02, 4, "tif")[1])
    assert "train: 4 of 160 images" in told and "val: 1 of 40 images" in told
    assert "name their column with `image_column`" in raised(counted(tmp_path, 0.02, 150)[1])


def test_no_more_than_ten_rows_of_files_that_are_not_read_are_kept(tmp_path):
    found, of = UnusableImages(open_storage(str(tmp_path)), 0.0), one_table(tmp_path)
    rows = [NamedRow(of, n, f"{n}.heic") for n in range(25)]
    for row in rows:
        found.add(row, 7)
    found.empty.add(rows[0])
    problems = Problems("/data")
    found.refuse({"train": (Examples(rows), 100)}, problems, are_final=True)
    assert problems.count == 26
    assert "and 16 more" in raised(problems)
