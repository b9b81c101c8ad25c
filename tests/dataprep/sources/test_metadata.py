"""Files of metadata: rows as they are, and one clear error for each that is damaged or hostile."""

import io
import json
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.dataset.features import MAX_FEATURES
from dataprep.errors import SourceError
from dataprep.sources.tables import MAX_LINE_BYTES, MetadataFile, Row, rows_of, text_rows


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
    with pytest.raises(SourceError, match="3,000,000 rows"):
        rows("metadata.parquet", bomb)


def test_parquet_of_one_value_repeated():
    text = "x" * 2**20
    bomb = parquet({"file_name": ["1.jpg"] * 200, "a": pa.array([text] * 200).dictionary_encode()})
    reader = rows_of(MetadataFile((), "/data/metadata.parquet", len(bomb), partial(io.BytesIO, bomb)))
    assert len(next(reader).values["a"]) == len(text)


def test_blanks_around_the_names_of_columns_are_no_part_of_names_and_values(tmp_path):
    (tmp_path / "metadata.csv").write_text("file_name, label\na.jpg, cat\nb.jpg,dog \n")
    path = tmp_path / "metadata.csv"
    file = MetadataFile((), str(path), path.stat().st_size, lambda: path.open("rb"))
    assert [values for _, values in text_rows(file)] == [
        {"file_name": "a.jpg", "label": "cat"},
        {"file_name": "b.jpg", "label": "dog"},
    ]
