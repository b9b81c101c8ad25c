"""LAION's tables: columns by their names, shards of row ranges, keys as img2dataset counts them."""

import json
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.dataset.documents import convert
from dataprep.errors import SourceError, UsageError
from dataprep.sources.laion import (
    LaionTables,
    find_tables,
    key_of,
    measure_tables,
    open_tables,
    read_shard_rows,
    roles_of,
)
from dataprep.storage import open_storage

LAION_400M = ["SAMPLE_ID", "URL", "TEXT", "HEIGHT", "WIDTH", "LICENSE", "NSFW", "similarity"]
RELAION = ["url", "caption", "key", "hash", "similarity", "pwatermark", "punsafe", "original_width", "original_height"]


def _write(path: Path, rows: int, start: int = 0, **columns) -> None:
    numbers = range(start, start + rows)
    table = {"SAMPLE_ID": list(numbers), "URL": [f"http://h/{i}" for i in numbers], "TEXT": [f"t{i}" for i in numbers]}
    pq.write_table(pa.table(table | columns), path, row_group_size=7)


def test_columns_of_laion_400m_get_their_roles():
    assert roles_of(LAION_400M, {}) == {
        "url": "URL",
        "caption": "TEXT",
        "width": "WIDTH",
        "height": "HEIGHT",
        "similarity": "similarity",
        "nsfw": "NSFW",
    }


@pytest.mark.parametrize(
    ("names", "is_laion"),
    [
        (LAION_400M, True),
        (RELAION, True),
        (["URL", "TEXT", "WIDTH", "HEIGHT", "similarity", "hash", "punsafe", "pwatermark"], True),
        (["url", "caption"], False),
        (["url", "text", "license", "similarity"], False),
        (["uid", "url", "text", "original_width", "clip_b32_similarity_score", "sha256"], False),
    ],
)
def test_laions_tables_are_known_by_their_columns(tmp_path, names, is_laion):
    pq.write_table(pa.table({name: ["x"] for name in names}), tmp_path / "a.parquet")
    assert measure_tables(open_storage(str(tmp_path)), ["a.parquet"]).is_laion == is_laion


def test_columns_of_relaion_get_their_roles_and_its_hash_is_not_verified():
    found = roles_of(RELAION, {})
    assert found["width"] == "original_width"
    assert found["caption"] == "caption"
    assert "md5" not in found and "sha256" not in found


@pytest.mark.parametrize(
    ("names", "overrides", "text"),
    [
        (["LINK"], {}, "no column of URLs among LINK; name it with `column` url=NAME$"),
        (["url;caption"], {}, "`column` url=NAME; separate columns with commas, in .tsv files with tabs"),
        (["https://a.example/1.jpg", "a cat"], {}, "the first line has a URL where the name of a column is expected"),
        (["http://a.example/1.jpg"], {"url": "http://a.example/1.jpg"}, "add a first line that names the columns"),
        (["URL", "url"], {}, "the columns URL and url both may be url; choose one with `column` url=URL"),
        (["URL"], {"urls": "URL"}, "`column` urls=URL: expected one of url, caption"),
        (["URL"], {"caption": "ALT"}, "`column` caption=ALT: the table has URL"),
    ],
)
def test_ambiguous_columns_are_refused(names, overrides, text):
    with pytest.raises(UsageError, match=text):
        roles_of(names, overrides)


def test_a_given_column_overrides_the_found_one(tmp_path):
    _write(tmp_path / "a.parquet", 3, LINK=["http://l/0", "http://l/1", "http://l/2"])
    storage = open_storage(str(tmp_path))
    tables = measure_tables(storage, ["a.parquet"], overrides={"url": "LINK"})
    assert [row.roles["url"] for row in read_shard_rows(storage, tables, 0)] == [
        "http://l/0",
        "http://l/1",
        "http://l/2",
    ]


def test_shards_are_row_ranges_of_one_file_each(tmp_path):
    for number, rows in enumerate((25, 10, 1)):
        _write(tmp_path / f"part-{number}.parquet", rows, start=100 * number)
    (tmp_path / "_SUCCESS.csv").write_text("Spark leaves such\n")
    (tmp_path / "notes.txt").write_text("no table\n")
    storage = open_storage(str(tmp_path))
    names = find_tables(storage)
    assert names == ["part-0.parquet", "part-1.parquet", "part-2.parquet"]
    tables = measure_tables(storage, names, rows_per_shard=10)
    assert tables.shard_rows == (10, 10, 5, 10, 1)
    rows = [row for index in range(tables.num_shards) for row in read_shard_rows(storage, tables, index)]
    expected = [*range(25), *range(100, 110), 200]
    assert [row.roles["url"] for row in rows] == [f"http://h/{i}" for i in expected]
    assert [row.carried for row in rows] == [(i,) for i in expected]
    assert all(here.key < there.key for here, there in pairwise(rows))
    with pytest.raises(UsageError, match="shard 5 past the end"):
        tables.locate(5)


def test_keys_equal_those_of_img2dataset(tmp_path):
    """A key is the number shard x 10^digits + row, with as many digits as shard (5) and row need."""
    _write(tmp_path / "a.parquet", 3)
    storage = open_storage(str(tmp_path))
    for rows_per_shard, expected in ((10_000, "000120007"), (1, "00012"), (1001, "000120007"), (1000, "00012007")):
        tables = measure_tables(storage, ["a.parquet"], rows_per_shard=rows_per_shard)
        assert key_of(12, 7 if rows_per_shard > 1 else 0, tables) == expected


def test_a_plan_is_read_back_from_json(tmp_path):
    _write(tmp_path / "a.parquet", 25)
    (tmp_path / "b.csv").write_text("SAMPLE_ID,URL,TEXT\n" + "1,u,t\n" * 25)
    storage = open_storage(str(tmp_path))
    for name in ("a.parquet", "b.csv"):
        tables = measure_tables(storage, [name], rows_per_shard=10)
        document = json.loads(json.dumps(tables.document()))
        assert convert(document, LaionTables, where="plan", advice="") == tables


def test_text_is_converted_to_the_types_of_its_roles(tmp_path):
    (tmp_path / "t.csv").write_text("URL,WIDTH,similarity,other\nu,640.0,0.31,7\nu,,nan,\nu,wide,inf,x\n")
    storage = open_storage(str(tmp_path))
    tables = measure_tables(storage, ["t.csv"])
    assert [column.kind for column in tables.carried] == ["int", "float", "string"]
    rows = read_shard_rows(storage, tables, 0)
    assert [row.carried for row in rows] == [(640, 0.31, "7"), (None, None, None), (None, None, "x")]


def test_files_of_other_columns_are_refused(tmp_path):
    _write(tmp_path / "a.parquet", 3)
    _write(tmp_path / "b.parquet", 3, punsafe=[0.1, 0.2, 0.3])
    with pytest.raises(SourceError, match=r"b\.parquet has punsafe float, a\.parquet has SAMPLE_ID int, URL string"):
        measure_tables(open_storage(str(tmp_path)), ["a.parquet", "b.parquet"])


def test_a_column_of_numbers_is_refused_as_urls(tmp_path):
    pq.write_table(pa.table({"url": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(UsageError, match="column url holds numbers, expected URLs"):
        measure_tables(open_storage(str(tmp_path)), ["a.parquet"])


def test_a_folder_without_tables_is_refused(tmp_path):
    with pytest.raises(SourceError, match="no table"):
        find_tables(open_storage(str(tmp_path)))


def test_sources_are_files_of_one_folder_or_the_folder(tmp_path, monkeypatch):
    for name in ("b.parquet", "a.parquet", "c.csv"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    for urls, expected in (
        ([str(tmp_path)], ["a.parquet", "b.parquet", "c.csv"]),
        ([f"{tmp_path}/"], ["a.parquet", "b.parquet", "c.csv"]),
        ([f"{tmp_path}/b.parquet", f"{tmp_path}/a.parquet"], ["b.parquet", "a.parquet"]),
        (["c.csv"], ["c.csv"]),
    ):
        storage, names = open_tables(urls)
        assert names == expected
        assert storage.stat(names[0]) is not None
    with pytest.raises(UsageError, match="names tables in x and y; expected one folder, or files of one"):
        open_tables(["x/a.csv", "y/b.csv"])
    with pytest.raises(UsageError, match="names no table"):
        open_tables([])
    assert open_tables(["gs://bucket/laion/a.parquet"])[0].url == "gs://bucket/laion"
