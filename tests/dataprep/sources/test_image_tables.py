"""One table: its columns, its rows, and the errors of those that are damaged or hostile."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.errors import SourceError
from dataprep.sources.image_tables import (
    ImageTable,
    any_bytes,
    choose_image_column,
    columns_of,
    image_bytes,
    table_rows,
)
from dataprep.sources.tables import MAX_LINE_BYTES
from dataprep.storage import open_originals, open_storage
from tests.support.tables import BREEDS, IMAGE, hub_rows, write_hub


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
    assert chosen(written(tmp_path / "x.parquet", columns)) == expected


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


def test_a_column_that_is_left_out_has_no_images(tmp_path):
    assert chosen(written(tmp_path / "x.parquet", {"a": [b"x"], "b": [b"x"]}), drop=["b"]) == "a"


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
    pool = pa.default_memory_pool()
    before, rows = pool.bytes_allocated(), table_rows(found, "image")
    next(rows)
    assert pool.bytes_allocated() - before < 300 << 20


def test_memory_does_not_grow_with_the_table(tmp_path):
    """Thirty row groups of 1 MB each."""
    rng = random.Random(0)
    columns = {"image": [rng.randbytes(1 << 18) for _ in range(120)]}
    found = written(tmp_path / "x.parquet", columns, row_group_size=4)
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    assert max(pool.bytes_allocated() - before for _ in table_rows(found, "image")) < 12 << 20


def test_more_rows_than_bytes_are_refused(tmp_path):
    found = written(tmp_path / "x.parquet", {"image": pa.array([None] * 200_000, pa.string())}, compression="zstd")
    with pytest.raises(SourceError, match=r"200,000 rows in a file of [\d,]+ bytes; expected a byte for each row"):
        list(table_rows(found, "image"))


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
