"""Tables in four formats: the parts of a file are its rows; rows of metadata are read or refused one by one."""

import csv
import io
import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.dataset.features import MAX_FEATURES
from dataprep.errors import SourceError, UsageError
from dataprep.sources import tables
from dataprep.sources.tables import (
    MAX_LINE_BYTES,
    Column,
    MetadataFile,
    Row,
    measure_table,
    read_part,
    rows_of,
    text_rows,
)
from dataprep.storage import open_storage

ROWS = [(f"http://h/{i}.jpg", f'line "{i}"\nand, more' if i % 3 else None, i * 10) for i in range(107)]
NAMES = ["URL", "TEXT", "WIDTH"]


def _write(folder: Path, suffix: str, rows=ROWS) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / f"table{suffix}"
    if suffix == ".parquet":
        columns = dict(zip(NAMES, map(list, zip(*rows, strict=True)), strict=True))
        pq.write_table(pa.table(columns), path, row_group_size=13)
    elif suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(NAMES, row, strict=True))) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as stream:
            writer = csv.writer(stream, delimiter="\t" if suffix == ".tsv" else ",")
            writer.writerows([NAMES, *rows])
    return path.name


def _all_rows(storage, table):
    return [row for part in range(table.parts) for row in read_part(storage, table, part)]


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".tsv", ".jsonl"])
@pytest.mark.parametrize("part_rows", [1, 10, 26, 107, 1000])
def test_parts_are_the_rows_in_order(tmp_path, suffix, part_rows):
    storage = open_storage(str(tmp_path))
    table = measure_table(storage, _write(tmp_path, suffix), part_rows)
    assert table.rows == 107
    assert table.parts == -(-107 // part_rows)
    kinds = ("string", "string", "int" if suffix == ".parquet" else "string")
    assert table.columns == tuple(map(Column, NAMES, kinds))
    expected = ROWS if suffix == ".parquet" else [(url, text, str(width)) for url, text, width in ROWS]
    assert _all_rows(storage, table) == expected


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_a_bucket_gives_the_same_rows(tmp_path, bucket_url, suffix):
    local, bucket = open_storage(str(tmp_path)), open_storage(bucket_url)
    name = _write(tmp_path, suffix)
    bucket.create(name, (tmp_path / name).read_bytes())
    here, there = measure_table(local, name, 10), measure_table(bucket, name, 10)
    assert here == there
    assert _all_rows(local, here) == _all_rows(bucket, there)


field = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


@given(rows=st.lists(st.tuples(field, field), max_size=20), part_rows=st.integers(1, 9), chunk=st.integers(1, 40))
@settings(derandomize=True)
def test_any_csv_is_cut_between_its_rows(tmp_path_factory, rows, part_rows, chunk):
    """Fields may contain quotes, commas and line ends, and chunks may end anywhere."""
    folder = tmp_path_factory.mktemp("csv")
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([("URL", "TEXT"), *rows])
    (folder / "t.csv").write_bytes(text.getvalue().encode())
    storage = open_storage(str(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "_SCAN_BYTES", max(chunk, 16))
        table = measure_table(storage, "t.csv", part_rows)
    assert table.rows == len(rows)
    assert _all_rows(storage, table) == [tuple(value or None for value in row) for row in rows]


def test_blank_lines_are_skipped(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbfURL,TEXT\r\n\r\na,b\r\n\n\nc,d")
    (tmp_path / "t.jsonl").write_bytes(b'\n{"URL": "a"}\r\n\r\n{"URL": null}\n')
    storage = open_storage(str(tmp_path))
    table = measure_table(storage, "t.csv", 1)
    assert _all_rows(storage, table) == [("a", "b"), ("c", "d")]
    assert _all_rows(storage, measure_table(storage, "t.jsonl", 1)) == [("a",), (None,)]


def test_parquet_values_are_text_integers_and_finite_numbers(tmp_path):
    columns = {
        "s": pa.array(["a", None]),
        "big": pa.array([2**64 - 1, None], pa.uint64()),
        "f": pa.array([float("nan"), 0.5], pa.float32()),
        "b": pa.array([True, None]),
        "list": pa.array([[1, 2], None]),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    storage = open_storage(str(tmp_path))
    table = measure_table(storage, "t.parquet", 10)
    assert [column.kind for column in table.columns] == ["string", "string", "float", "int", "string"]
    assert read_part(storage, table, 0) == [("a", str(2**64 - 1), None, 1, "[1, 2]"), (None, None, 0.5, None, None)]


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("t.parquet", b"PAR1 no parquet at all PAR1", "not a readable parquet file"),
        ("t.csv", b'URL,TEXT\n"a,b\n', "ends inside a quoted field"),
        ("t.csv", b"", "no columns"),
        ("t.csv", b"URL,URL\na,b\n", "the column 'URL' twice"),
        ("t.jsonl", b"[1]\n", "row 0 is not a JSON object"),
        ("missing.csv", None, "does not exist"),
        ("missing.parquet", None, "does not exist"),
        ("t.csv.gz", None, r"not a table by its name; expected one of \.parquet"),
    ],
)
def test_files_that_are_no_table_are_refused(tmp_path, name, data, text):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises((SourceError, UsageError), match=text):
        measure_table(open_storage(str(tmp_path)), name, 10)


@pytest.mark.parametrize(
    ("name", "data", "line"),
    [
        ("t.csv", "URL,TEXT\na,Bär\n".encode("latin-1"), 2),
        ("t.tsv", "URL\tTEXT\n\na\tb\nc\tGrün".encode("latin-1"), 4),
        ("t.jsonl", '{"URL": "a"}\n{"URL": "ä"}\n'.encode("latin-1"), 2),
        ("t.csv", "URL,TEXT\na,b\n".encode("utf-16"), 1),
        ("t.csv", "URL,TEXT\na,b\nc,ä".encode()[:-1], 3),
    ],
)
def test_text_that_is_not_utf_8_is_refused_by_its_line(tmp_path, monkeypatch, name, data, line):
    monkeypatch.setattr(tables, "_SCAN_BYTES", 9)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=rf"{name} line {line}: not UTF-8; save the file as UTF-8$"):
        measure_table(open_storage(str(tmp_path)), name, 10)


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("t.csv", b"URL,TEXT\na,b\nc\n", "row 1 has 1 fields, the header 2"),
        ("t.csv", b'URL,TEXT\na"b",c\nd,e"\n"f,g\n', "unpaired quotes|correct the row"),
        ("t.jsonl", b'{"URL": 1}\n{"URL": 2, "more": 3}\n', "a field 'more' that the first row lacks"),
        ("t.jsonl", b'{"URL": 1}\nnothing\n', "correct the row"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path, name, data, text):
    (tmp_path / name).write_bytes(data)
    storage = open_storage(str(tmp_path))
    table = measure_table(storage, name, 10)
    with pytest.raises(SourceError, match=text):
        read_part(storage, table, 0)


def test_another_file_than_the_planned_one_is_refused(tmp_path):
    storage = open_storage(str(tmp_path))
    name = _write(tmp_path, ".csv")
    table = measure_table(storage, name, 10)
    with (tmp_path / name).open("a") as stream:
        stream.write("x,y,1\n")
    with pytest.raises(SourceError, match="bytes when the build was planned"):
        read_part(storage, table, 0)
    (tmp_path / name).unlink()
    with pytest.raises(SourceError, match="is gone"):
        read_part(storage, table, 0)


def rows(name, data, folder=()):
    data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return list(rows_of(MetadataFile(folder, f"/data/{name}", len(data), partial(io.BytesIO, data))))


def parquet(columns, **options):
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream, **options)
    return stream.getvalue()


def test_csv():
    data = '\ufefffile_name,caption,n\r\na/1.jpg,"a, ""b""\nc",1\r\n\r\n./2.jpg,ü,2\r\n'
    assert rows("metadata.csv", data, ("train",)) == [
        Row(("train", "a", "1.jpg"), "/data/metadata.csv line 3", {"caption": 'a, "b"\nc', "n": "1"}, True),
        Row(("train", "2.jpg"), "/data/metadata.csv line 5", {"caption": "ü", "n": "2"}, True),
    ]


def test_jsonl():
    data = json.dumps({"file_name": "1.jpg", "boxes": [[1, 2]]}) + "\n\n" + json.dumps({"file_name": "2.jpg"})
    assert rows("metadata.jsonl", data) == [
        Row(("1.jpg",), "/data/metadata.jsonl line 1", {"boxes": [[1, 2]]}, False),
        Row(("2.jpg",), "/data/metadata.jsonl line 3", {}, False),
    ]


def test_parquet():
    data = parquet({"file_name": ["1.jpg", "2.jpg"], "tags": [["a"], []], "n": [1, None]}, row_group_size=1)
    assert [(row.parts, row.values) for row in rows("metadata.parquet", data)] == [
        (("1.jpg",), {"tags": ["a"], "n": 1}),
        (("2.jpg",), {"tags": [], "n": None}),
    ]


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("metadata.csv", "image,caption\na.jpg,x\n", "no file_name, the path of the image"),
        ("metadata.csv", "", None),
        ("metadata.csv", "file_name,a\n1.jpg\n", "line 2: 1 fields, the header names 2"),
        ("metadata.csv", "file_name,a,a\n1.jpg,1,2\n", "the column 'a' occurs twice"),
        ("metadata.csv", 'file_name,a\n1.jpg,x\n2.jpg,"y\n3.jpg,z\n', "line 3: unexpected end of data; expected a CSV"),
        ("metadata.csv", 'file_name,a\n1.jpg,"x\n2.jpg,y" z\n3.jpg,a\n', "line 2: ',' expected after '\"'"),
        ("metadata.csv", "file_name,a\n1.jpg," + "x" * 200_000, "field larger than field limit"),
        ("metadata.csv", "file_name,a\n1.jpg," + "x" * (MAX_LINE_BYTES + 1), "expected the row of an image"),
        ("metadata.csv", b"file_name,a\n1.jpg,\xff\n", "line 2: not UTF-8"),
        ("metadata.csv", "file_name," + ",".join(f"c{i}" for i in range(10_000)), "columns, expected at most 500"),
        ("metadata.jsonl", "{\n", "line 1: not JSON"),
        ("metadata.jsonl", "[1]\n", "line 1: list, expected an object"),
        ("metadata.jsonl", "[" * 100_000, "line 1: not JSON"),
        ("metadata.jsonl", '{"file_name": 7}\n', "no file_name"),
        ("metadata.jsonl", '{"file_name": "1.jpg", "a": {"b": 1, "b": 2}}\n', "line 1: the field 'b' occurs twice"),
        ("metadata.jsonl", json.dumps({f"c{i}": 1 for i in range(MAX_FEATURES + 1)}), "expected at most 500"),
        ("metadata.parquet", b"PAR1 no parquet", "not a readable parquet file"),
        ("metadata.parquet", parquet({"path": ["1.jpg"]}), "no file_name"),
    ],
)
def test_damaged_files(name, data, text):
    if text is None:
        assert rows(name, data) == []
        return
    with pytest.raises(SourceError) as error:
        rows(name, data)
    assert text in str(error.value)
    assert str(error.value).startswith("/data/metadata.")


def test_a_column_of_another_name_is_one_problem_for_all_rows():
    problems = []
    data = "file,caption\n" + "a.jpg,x\n" * 61
    file = MetadataFile((), "/data/metadata.csv", len(data), lambda: io.BytesIO(data.encode()))
    assert list(rows_of(file, problems.append)) == []
    assert [str(problem) for problem in problems] == [
        "/data/metadata.csv: 61 rows like this: line 2 has no file_name, the path of the image relative to the folder "
        "of this file; it has caption, file: rename the column with the path"
    ]


HOSTILE_NAMES = ["../1.jpg", "a/../../1.jpg", "/etc/passwd", "C:/1.jpg", "a\\b.jpg", "a\0b.jpg", "\ud800"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_names_that_lead_out_of_the_folder(name):
    with pytest.raises(SourceError, match="line 1: file_name"):
        rows("metadata.jsonl", json.dumps({"file_name": name}) + "\n")


def test_parquet_of_few_bytes_and_many_rows():
    bomb = parquet({"file_name": pa.array([""] * 3_000_000).dictionary_encode()}, compression="zstd")
    with pytest.raises(SourceError, match=r"3,000,000 rows in a file of [\d,]+ bytes; expected a byte for each row"):
        rows("metadata.parquet", bomb)


def test_blanks_around_the_names_of_columns_are_no_part_of_names_and_values(tmp_path):
    (tmp_path / "metadata.csv").write_text("file_name, label\na.jpg, cat\nb.jpg,dog \n")
    path = tmp_path / "metadata.csv"
    file = MetadataFile((), str(path), path.stat().st_size, lambda: path.open("rb"))
    assert [values for _, values in text_rows(file)] == [
        {"file_name": "a.jpg", "label": "cat"},
        {"file_name": "b.jpg", "label": "dog"},
    ]
