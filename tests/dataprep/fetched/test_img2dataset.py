"""The layout of img2dataset's output: its columns, keys and names go on in new shards, and what lacks them says why."""

from __future__ import annotations

import hashlib
import json
import tarfile

import pyarrow as pa
import pytest

from dataprep.errors import UsageError
from dataprep.fetched.encode import encode_image
from dataprep.fetched.existing import open_fetched
from dataprep.fetched.filters import RowFilter
from tests.support.fetched import ALL, MADE_SO, ROWS, adopt_here, adopted, check_adopted, img2dataset_tables, retry
from tests.support.img2dataset import MADE, write_img2dataset
from tests.support.picture_web import picture


@pytest.mark.parametrize("fmt", ["webdataset", "tfrecord"])
def test_numbers_names_and_columns_are_taken_from_what_is_there(web, tmp_path, fmt):
    url = adopted(web, tmp_path / "cc3m", fmt, numbers=(0, 3, 4, 9), digest="md5")
    layout = open_fetched(url).layout
    assert list(layout.numbers) == [0, 3, 4, 9]
    assert list(layout.parquet_files) == [f"{number:05d}.parquet" for number in (0, 3, 4, 9)]
    assert (layout.key_digits, layout.shard_rows) == (1, 10)
    suffix = "tar" if fmt == "webdataset" else "tfrecord"
    assert (layout.names.samples_file(4), layout.names.stats_file(5)) == (f"00010.{suffix}", "00011_stats.json")
    assert layout.schema.image_name == "jpg"
    assert [column.name for column in layout.schema.carried] == ["similarity", "LICENSE"]
    assert {"caption", "url", "key", "md5"} <= {column.name for column in layout.schema.results}
    fields = img2dataset_tables(url)[1].to_pylist()[0] | {"similarity": float("nan")}
    row = layout.row_of(fields)
    assert (row.key, row.roles, row.carried) == (
        fields["key"], {"url": fields["url"], "caption": fields["caption"]}, (None, None),
    )  # fmt: skip
    assert layout.reason_of("HTTP Error 404: Not Found") == "http 404"


def test_members_and_fields_are_those_of_the_old_shards(web, tmp_path):
    columns = {"flag": [n % 3 == 0 for n in range(ROWS)], "weight": [None if n == 2 else 0.5 for n in range(ROWS)]}
    url = adopted(web, tmp_path / "cc3m", columns=columns, digest="md5")
    web.faults.clear()
    retry(url, ALL, making=MADE_SO)
    documents = []
    for name in ("00000.tar", "00004.tar"):
        with tarfile.open(tmp_path / "cc3m" / name) as tar:
            members = {member.name: tar.extractfile(member).read() for member in tar}
        documents.append([json.loads(data) for name, data in members.items() if name.endswith(".json")])
        assert {name.partition(".")[2] for name in members} == {"jpg", "json", "txt"}
    old, new = documents[0][0], {document["key"]: document for document in documents[1]}["000002"]
    assert list(new) == list(old)
    body = picture(2)
    assert new | {"key": old["key"]} == old | {
        "similarity": 2 / ROWS, "flag": False, "weight": None, "caption": "Bild 2 ü",
        "url": old["url"].rpartition("/")[0] + "/2.jpg", "md5": hashlib.md5(body).hexdigest(),
    }  # fmt: skip
    with tarfile.open(tmp_path / "cc3m" / "00004.tar") as tar:
        assert tar.extractfile("000002.jpg").read() == encode_image(body, MADE, RowFilter()).data
    assert img2dataset_tables(url)[4].schema.field("flag").type == pa.bool_()
    check_adopted(url)


def test_data_that_cannot_be_retried_are_refused_with_the_reason(web, tmp_path):
    folder = write_img2dataset(web, tmp_path / "cc3m", "webdataset", ROWS)
    adopt_here(folder, index_url=str(tmp_path / "index"))
    with pytest.raises(UsageError, match="its shards lie elsewhere"):
        open_fetched(str(tmp_path / "index"))
    adopt_here(folder, splits=(("a", "00000.tar"), ("b", "0000[123].tar")))
    with pytest.raises(UsageError, match="2 splits, expected one"):
        open_fetched(str(folder))
    (folder / "00001_stats.json").unlink()
    adopt_here(folder, overwrite=True)
    with pytest.raises(UsageError, match="the statuses of its rows are not known"):
        open_fetched(str(folder))
    lists = adopted(web, tmp_path / "lists", columns={"boxes": [[1, 2]] * ROWS})
    with pytest.raises(UsageError, match="column boxes of list"):
        open_fetched(lists)
    tars = tmp_path / "tars"
    tars.mkdir()
    (tars / "00000.tar").write_bytes((folder / "00000.tar").read_bytes())
    adopt_here(tars)
    with pytest.raises(UsageError, match="adopted webdataset data have no table of rows"):
        open_fetched(str(tars))
