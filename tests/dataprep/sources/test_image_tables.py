"""Tables of images: which files they are, their columns, rows and images, and the errors of damaged or hostile ones."""

import random
import shlex
import subprocess
import sys
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.errors import SourceError, StorageError, UsageError
from dataprep.sources import image_tables
from dataprep.sources.image_tables import (
    ImageTable,
    LocatedImages,
    any_bytes,
    choose_image_column,
    columns_of,
    image_bytes,
    other_data,
    packed_images,
    packed_source,
    stems,
    table_rows,
    tables_by_split,
)
from dataprep.sources.tables import MAX_LINE_BYTES
from dataprep.sources.unpacked import unpacked_list, unpacked_name, unpacking
from dataprep.storage import open_originals, open_storage
from dataprep.storage.checksums import crc32c_of
from tests.support.builds import command, dataprep
from tests.support.own_data import picture, write_files
from tests.support.tables import BREEDS, IMAGE, hub, hub_rows, write_hub


def table(path):
    return ImageTable(open_originals(str(path.parent)), path.name, path.stat().st_size)


def written(path, columns, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path, **options)
    return table(path)


def chosen(found, name=None, drop=()):
    return choose_image_column(found, columns_of(found), name, frozenset(drop))


def test_a_table_of_the_hub(tmp_path):
    found = table(write_hub(tmp_path / "x.parquet", hub_rows(5), row_group_size=2))
    columns = columns_of(found)
    assert columns.kinds == {"image": "struct", "label": "other", "caption": "path"}
    assert columns.classes == {"label": BREEDS}
    assert chosen(found) == "image"
    rows = list(table_rows(found, "image"))
    assert [(row.number, row.values) for row in rows] == [
        (n + 1, {"label": n % 3, "caption": f"dog {n}"}) for n in range(5)
    ]
    assert [image_bytes(row) for row in rows] == [row["image"]["bytes"] for row in hub_rows(5)]
    fewer = list(table_rows(found, "image", frozenset({"label"}), only_paths=True))
    assert [(row.image, row.values) for row in fewer] == [
        ({"path": f"{n}.jpg"}, {"caption": f"dog {n}"}) for n in range(5)
    ]
    assert any_bytes(found, "image")


def test_a_table_in_a_bucket(bucket_url, tmp_path):
    path = write_hub(tmp_path / "x.parquet", hub_rows(5), row_group_size=2)
    storage = open_storage(bucket_url)
    storage.create("x.parquet", path.read_bytes())
    found = ImageTable(storage, "x.parquet", path.stat().st_size)
    assert list(table_rows(found, "image")) == list(table_rows(table(path), "image"))


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"picture": pa.array([b"x"]), "caption": ["a"]}, "picture"),
        ({"x": pa.array([b"x"], pa.large_binary())}, "x"),
        ({"x": pa.array([b"x"]).dictionary_encode()}, "x"),
        ({"Image_Path": ["a.jpg"], "caption": ["a"]}, "Image_Path"),
        ({"image": ["a.jpg"], "bytes": pa.array([b"x"])}, "bytes"),
    ],
)
def test_the_only_column_that_may_have_images_is_taken(tmp_path, columns, expected):
    assert chosen(written(tmp_path / "x.parquet", {**columns, "dropped": [b"x"]}), drop=["dropped"]) == expected


@pytest.mark.parametrize(
    ("columns", "name", "text"),
    [
        (
            {"caption": ["a"], "n": [1]},
            None,
            r"no column of images: it has caption \(string\), n \(int64\); .* build laion",
        ),
        ({"a": [b"x"], "b": [b"x"]}, None, "the columns a, b may all hold the images.*`image_column` a,.*`drop` b"),
        ({"image": ["a"], "path": ["b"]}, None, "the columns image, path may all hold"),
        ({"caption": ["a"], "n": [1]}, "n", "`image_column` n: expected a column of image bytes, or of paths"),
        ({"caption": ["a"]}, "captoin", "did you mean caption"),
        ({"images": pa.array([[{"bytes": b"x", "path": ""}]])}, None, "no column of images: it has images .list"),
    ],
)
def test_no_column_or_several(tmp_path, columns, name, text):
    with pytest.raises(SourceError, match=text):
        chosen(written(tmp_path / "x.parquet", columns), name)


@pytest.mark.parametrize(
    ("name", "header", "parted"),
    [("x.csv", "image;label", "commas"), ("x.csv", "image\tlabel", "commas"), ("x.tsv", "image,label", "tabs")],
)
def test_columns_that_are_parted_otherwise(tmp_path, name, header, parted):
    (tmp_path / name).write_text(f"{header}\n1.jpg;a\n")
    with pytest.raises(SourceError, match=f"its columns are not separated by {parted}: it has .*; save it as CSV"):
        chosen(table(tmp_path / name))


@pytest.mark.parametrize(("name", "text"), [("x.csv", "image,label\n"), ("x.csv", ""), ("x.jsonl", "")])
def test_a_text_file_without_a_row_is_called_that(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(SourceError, match=f"{name}: no rows; expected one for each image"):
        columns_of(table(tmp_path / name))


@pytest.mark.parametrize("image", [None, {"bytes": None, "path": "a.jpg"}])
def test_a_null_image_is_none(tmp_path, image):
    found = written(tmp_path / "x.parquet", pa.Table.from_pylist([{"image": image}], pa.schema([("image", IMAGE)])))
    assert image_bytes(next(table_rows(found, "image"))) is None


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ("{", "the entry 'huggingface' of its schema cannot be read"),
        ("[1]", "the entry 'huggingface'"),
        ("[" * 100_000, "the entry 'huggingface'"),
        ('{"info": {"features": {"label": {"_type": "ClassLabel", "names": [1, 2]}}}}', "has 2 classes, expected"),
    ],
)
def test_a_hostile_description_of_columns(tmp_path, metadata, text):
    schema = pa.schema([("image", IMAGE), ("label", pa.int64())], metadata={"huggingface": metadata})
    with pytest.raises(SourceError, match=text):
        columns_of(written(tmp_path / "x.parquet", schema.empty_table()))


@pytest.mark.parametrize("features", ['{"label": 5}', '{"label": {"_type": "ClassLabel", "num_classes": 3}}', "7"])
def test_descriptions_without_names_are_ignored(tmp_path, features):
    schema = pa.schema([("label", pa.int64())], metadata={"huggingface": f'{{"info": {{"features": {features}}}}}'})
    assert columns_of(written(tmp_path / "x.parquet", schema.empty_table())).classes == {}


def test_a_field_of_100_mb_is_not_read(tmp_path):
    path = tmp_path / "x.csv"
    with path.open("wb") as file:
        file.write(b"image,caption\n1.jpg,")
        file.truncate(100 << 20)
    with pytest.raises(
        SourceError, match=rf"x.csv line 2: over {MAX_LINE_BYTES:,} bytes; expected the row of an image"
    ):
        list(table_rows(table(path), "image"))


def test_a_value_that_is_repeated_by_a_dictionary_is_read_a_few_at_a_time(tmp_path):
    """Ten thousand rows of one value of 1 MB: 10 GB, in a file of some kB."""
    image = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int32()), pa.array([b"\0" * (1 << 20)]))
    columns = {"image": image, "n": [random.Random(n).random() for n in range(10_000)]}
    found = written(tmp_path / "x.parquet", columns, compression="zstd", dictionary_pagesize_limit=1 << 24)
    tracemalloc.start()
    try:
        next(table_rows(found, "image"))
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_table(tmp_path):
    """Thirty row groups of 1 MB each."""
    rng = random.Random(0)
    columns = {"image": [rng.randbytes(1 << 18) for _ in range(120)]}
    found = written(tmp_path / "x.parquet", columns, row_group_size=4)
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    assert max(pool.bytes_allocated() - before for _ in table_rows(found, "image")) < 12 << 20


def test_damaged_parquet_files_are_one_clear_error_each(tmp_path):
    path = write_hub(tmp_path / "x.parquet", hub_rows(4), row_group_size=2)
    whole, rng = path.read_bytes(), random.Random(0)
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])
        try:
            columns = columns_of(table(path))
            for row in table_rows(table(path), choose_image_column(table(path), columns, None)):
                image_bytes(row)
        except SourceError as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017  the text of every error is looked at


def read(path, unpack_to=None):
    table = ImageTable(open_originals(str(path.parent)), path.name, path.stat().st_size)
    how = {"image_column": "image", "drop": frozenset(), "unpack_to": unpack_to, "progress": None}
    return list(packed_images(table, packed_source(table, is_unpacked=True), **how))


def test_images_are_measured_unpacked_and_found_unpacked(tmp_path):
    path, output = write_hub(tmp_path / "x.parquet", hub_rows(5), row_group_size=2), open_storage(str(tmp_path / "out"))
    measured, unpacked, again = read(path), read(path, output), read(path, output)
    places = [(row.offset, row.num_bytes) for row in measured]
    sums = [crc32c_of(row["image"]["bytes"]) for row in hub_rows(5)]
    assert [num_bytes for _, num_bytes in places] == [len(row["image"]["bytes"]) for row in hub_rows(5)]
    for rows in (measured, unpacked, again):
        assert [(row.offset, row.num_bytes) for row in rows] == places
        assert [row.crc32c for row in rows] == sums
        assert [row.row.values for row in rows] == [row.row.values for row in measured]
    assert image_bytes(unpacked[0].row) == hub_rows(1)[0]["image"]["bytes"]
    assert again[0].row.image == {"path": "0.jpg"}  # the bytes are not read again


@pytest.mark.parametrize("count", [1, 3])
def test_a_file_with_other_images_is_refused(tmp_path, count):
    path, output = write_hub(tmp_path / "x.parquet", hub_rows(2)), open_storage(str(tmp_path / "out"))
    table = ImageTable(open_originals(str(tmp_path)), "x.parquet", path.stat().st_size)
    with unpacking(output, unpacked_name(packed_source(table, is_unpacked=True))) as add:
        for _ in range(count):
            add(b"image")
    with pytest.raises(
        StorageError, match=rf"has {count} images, .*x.parquet has 2 rows: it was unpacked from another"
    ):
        read(path, output)


def test_an_image_that_is_too_large_leaves_nothing_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(image_tables, "MAX_IMAGE_BYTES", len(picture(0, size=(20, 16))) - 1)
    path, output = write_hub(tmp_path / "x.parquet", hub_rows(2)), open_storage(str(tmp_path / "out"))
    with pytest.raises(SourceError, match=r"x.parquet row 1: an image of [\d,]+ bytes; at most [\d,]+ for one image"):
        read(path, output)
    table = ImageTable(open_originals(str(tmp_path)), "x.parquet", path.stat().st_size)
    assert unpacked_list(output, unpacked_name(packed_source(table, is_unpacked=True))) is None


FILES = {"images/1.jpg": b"1", "images/2.jpg": b"22", "lists/train.csv": "", "lists/near.jpg": b"333"}


def located(root, table="lists/train.csv"):
    return LocatedImages(open_originals(str(root)), table, str(root))


@pytest.mark.parametrize(
    ("first", "path", "name"),
    [
        ("near.jpg", "near.jpg", "lists/near.jpg"),
        ("near.jpg", "./x//y.jpg", "lists/x/y.jpg"),
        ("near.jpg", "../images/1.jpg", "images/1.jpg"),
        ("images/1.jpg", "images/2.jpg", "images/2.jpg"),
        ("images/1.jpg", "near.jpg", "near.jpg"),
    ],
)
def test_relative_paths_begin_where_the_first_one_is(tmp_path, first, path, name):
    found = located(write_files(tmp_path, FILES))
    found.name_of(first)
    assert found.name_of(path) == name


def test_absolute_paths_are_below_the_source(tmp_path):
    found = located(write_files(tmp_path / "data", FILES))
    assert found.name_of(f"{tmp_path}/data/images/1.jpg") == "images/1.jpg"
    for outside in (f"{tmp_path}/other/1.jpg", f"{tmp_path}/database/1.jpg", "/etc/passwd"):
        with pytest.raises(SourceError, match=r"is not below .*/data: give as `source` a folder"):
            found.name_of(outside)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("../../secret.jpg", "climbs out of"),
        ("x/../../../secret.jpg", "climbs out of"),
        ("gs://other-bucket/1.jpg", "is not below"),
        ("file:///etc/passwd", "is not below"),
        ("https://example.org/1.jpg", "is on the web; .* dataprep build laion `source` \\S+ `name` NAME$"),
        ("a\\b.jpg", "backslash"),
        ("a\nb.jpg", "line end"),
        ("a\0b.jpg", "NUL"),
        ("x" * 5000, "at most 4,096"),
    ],
)
def test_paths_that_lead_elsewhere_are_refused(tmp_path, path, text):
    with pytest.raises(SourceError, match=text):
        located(tmp_path).name_of(path)


def test_an_absolute_path_climbs_no_further_than_the_source(tmp_path):
    with pytest.raises(SourceError, match="climbs out of"):
        located(tmp_path).name_of(f"{tmp_path}/../secret.jpg")


def test_links_lead_to_files_inside_the_source(tmp_path):
    root = write_files(tmp_path / "data", FILES)
    write_files(tmp_path / "other", {"secret.jpg": b"4444", "folder/5.jpg": b"55555"})
    (root / "inside.jpg").symlink_to("images/2.jpg")
    (root / "outside.jpg").symlink_to("../other/secret.jpg")
    (root / "images/outside.jpg").symlink_to("../../other/secret.jpg")
    (root / "images/folder").symlink_to("../../other/folder")
    (root / "volume").symlink_to("../other")
    (tmp_path / "other/twin.jpg").symlink_to("secret.jpg")
    found = located(root)
    assert [found.size_on_disk(name) for name in ("inside.jpg", "volume/twin.jpg", "volume/absent.jpg")] == [2, 4, None]
    for name in ("outside.jpg", "images/outside.jpg", "images/folder/5.jpg"):
        with pytest.raises(SourceError, match=r"outside|leads out|link out of"):
            found.size_on_disk(name)


@pytest.mark.parametrize("count", [2, 70])
def test_sizes_in_a_bucket(bucket_url, count):
    root = open_storage(f"{bucket_url}/originals")
    names = [f"images/{number:03d}.jpg" for number in range(count)]
    for number, name in enumerate(names):
        root.create(name, b"x" * number)
    root.create("other.jpg", b"")
    found = LocatedImages(root, "train.csv", root.url)
    assert found.sizes([*names, "images/absent.jpg"]) == {name: number for number, name in enumerate(names)}
    assert found.name_of(f"{bucket_url}/originals/images/1.jpg") == "images/1.jpg"
    with pytest.raises(SourceError, match="is not below"):
        found.name_of(f"{bucket_url}/elsewhere/1.jpg")


def by_split(root, *names, only=""):
    notes = []
    tables = tables_by_split(open_originals(str(write_files(root, dict.fromkeys(names, b"x")))), only, notes)
    return {split: [table.name for table in tables[split]] for split in tables}, notes


@pytest.mark.parametrize(
    "splits",
    [
        {"a.csv": "train"},
        {"a/x.parquet": "train", "b.parquet": "train"},
        {"train-0-of-2.parquet": "train", "train-1-of-2-ab12.parquet": "train", "validation-0.parquet": "val"},
        {"default/partial-train/0.parquet": "train", "default/test/0.parquet": "test", ".cache/train.parquet": ""},
        {"my_training_set.tsv": "train", "Dev.tsv": "val"},
        {"constrained.csv": "train", "latest.csv": "train"},
    ],
)
def test_splits_are_in_the_names(tmp_path, splits):
    found = by_split(tmp_path, *reversed(splits))[0]
    names = [(name, split) for split in found for name in found[split]]
    assert names == [(name, split) for name, split in splits.items() if split]


def test_other_files_are_passed_over_and_counted(tmp_path):
    splits, notes = by_split(
        tmp_path, "train.csv", "images/1.jpg", "README.md", "LICENSE", "x/more.md", "Icon\r", "a\\b"
    )
    assert splits == {"train": ["train.csv"]}
    assert notes == ["skipped, because they are not tables: 2 .md, 1 hidden or of the system, 2 without suffix"]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a.csv", "b.parquet"], "tables of different kinds, .csv and .parquet; .* such as `table` a.csv"),
        (["train.csv", "extra.csv"], "extra.csv: its name says none of the splits train, val and test"),
        (["train/val.csv", "test.csv"], "train/val.csv: its name says train and val"),
        ([], "no table .found no file.; expected one of .parquet, .csv, .tsv, .jsonl: check `source`$"),
        (["1.jpg", "2.jpg"], "no table .found 2 .jpg.; .* dataprep build folder `source`"),
    ],
)
def test_tables_that_do_not_belong_together(tmp_path, names, text):
    with pytest.raises(SourceError, match=text):
        by_split(tmp_path, *names)


def test_the_user_names_a_table_or_a_folder(tmp_path):
    names = ["a/train.csv", "a/val.csv", "b/x.jsonl", "c.txt"]
    assert by_split(tmp_path, *names, only="a/val.csv") == ({"val": ["a/val.csv"]}, [])
    assert by_split(tmp_path, only="a") == ({"train": ["a/train.csv"], "val": ["a/val.csv"]}, [])
    with pytest.raises(UsageError, match=r"c.txt is not a table by its name"):
        by_split(tmp_path, only="c.txt")
    with pytest.raises(SourceError, match=r"absent: no table"):
        by_split(tmp_path, only="absent")


def test_a_stem_is_short_and_of_one_table(tmp_path):
    write_files(tmp_path, dict.fromkeys(["d/a/0.csv", "d/b/0.csv", "d/b/1.x.csv"], b"x"))
    tables = tables_by_split(open_originals(str(tmp_path)), "", [])["train"]
    assert list(stems(tables).values()) == ["a/0", "b/0", "b/1.x"]
    assert list(stems(tables[1:]).values()) == ["0", "1.x"]


def refused(source, folder):
    """What each command says that finds none of its own files in a source."""
    out = ["--output", folder / "out", "--format", "webdataset"]
    return [
        run.stderr.strip()
        for run in (
            dataprep("adopt", source, "--index", folder / "index"),
            dataprep("build", "folder", "--source", source, *out),
            dataprep("build", "table", "--source", source, *out),
        )
        if run.returncode == 2
    ]


def built(advice, folder):
    """Build the tables that an error names; return what is printed."""
    (source,) = shlex.split(advice.removeprefix("dataprep build table reads "))
    words = ["build", "table", "--source", source, "--output", folder.parent / "whole", "--format", "webdataset"]
    run = subprocess.run(command(*words, "--name=dogs"), capture_output=True, text=True, check=False, cwd=folder)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_a_folder_of_parquet_is_built_by_the_command_of_the_error(tmp_path):
    source = hub(tmp_path / "my tables")
    adopt, folder = refused(source, tmp_path)  # build table builds it
    assert adopt.endswith("nothing to adopt: dataprep build table reads tables")
    assert folder.endswith("no image: dataprep build table reads tables")
    assert "val: 3 samples" in built(shlex.quote(str(source)), tmp_path)


@pytest.mark.parametrize("splits", [(), ("test", "train")])
def test_what_save_to_disk_wrote_is_built_by_the_commands_of_the_error(tmp_path, splits):
    import datasets

    data = datasets.Dataset.from_parquet(str(write_hub(tmp_path / "x.parquet", hub_rows(3))), cache_dir=str(tmp_path))
    saved = tmp_path / "my 'saved'"
    (datasets.DatasetDict(dict.fromkeys(splits, data)) if splits else data).save_to_disk(str(saved))
    errors = refused(saved, tmp_path)
    assert len(errors) == 3
    (advice,) = {error.partition("save_to_disk of datasets")[2] for error in errors}
    work = tmp_path / "work"
    work.mkdir()
    code, build = advice.partition(": ")[2].split("; then: ")
    assert ("in an empty folder" in advice) == bool(splits)
    subprocess.run([sys.executable, *shlex.split(code)[1:]], check=True, cwd=work)
    stdout = built(build, work)
    assert all(f"{split}: 3 samples" in stdout for split in splits or ("train",))


def test_shards_of_mosaicml_are_named(tmp_path):
    write_files(tmp_path, {"train/index.json": "{}", "train/shard.00000.mds": b"x"})
    assert other_data(open_originals(str(tmp_path))).startswith("shards of MosaicML's streaming (.mds) are not read")
