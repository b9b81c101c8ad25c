"""A shard from the table to its files; and what is refused before the first one."""

from __future__ import annotations

import io
import json
import tarfile

import pytest

from dataprep.errors import UsageError
from dataprep.fetched.collect import RowOptions
from dataprep.fetched.encode import EncodeOptions
from dataprep.fetched.filters import RowFilter
from dataprep.fetched.make import ShardOptions, Streams, make_shard, refuse_unfit
from dataprep.fetched.shard import schema_with
from dataprep.sources.laion import read_shard_rows
from dataprep.storage import open_storage
from tests.dataprep.fetched.laion_tables import answers, make_tables
from tests.dataprep.fetched.pictures import encoded, photo


@pytest.fixture
def tables(tmp_path):
    rows = [{"URL": f"http://h/{i}.jpg", "TEXT": f"text {i}", "punsafe": i / 10} for i in range(7)]
    return make_tables(tmp_path, rows, rows_per_shard=5)


def test_shards_of_a_table_hold_its_rows_with_their_status(tables, tmp_path):
    options = RowOptions(row_filter=RowFilter(max_punsafe=0.5))
    bodies = [encoded(photo(40, 30, seed), "JPEG") for seed in range(5)]
    storage, schema = open_storage(str(tmp_path)), schema_with(tables.carried, options)
    keys, statuses = [], []
    for index in range(tables.num_shards):
        stream = io.BytesIO()
        made = make_shard(
            read_shard_rows(storage, tables, index),
            answers([None, *bodies[1:]]),
            ShardOptions("webdataset", options, schema),
            index,
            Streams(stream, io.BytesIO()),
        )
        stream.seek(0)
        with tarfile.open(fileobj=stream) as tar:
            assert [name for name in tar.getnames() if name.endswith(".jpg")] == [
                f"{key}.jpg" for key in made.index.column("key").to_pylist()
            ]
        assert set(made.index.column("shard").to_pylist()) <= {index}
        assert sum(made.statuses.values()) == sum(made.reasons.values()) == json.loads(made.stats)["count"]
        keys += made.index.column("key").to_pylist()
        statuses.append({status: count for status, count in made.statuses.items() if count})
    assert keys == ["000001", "000002", "000003", "000004"]
    assert statuses == [{"success": 4, "failed_to_download": 1}, {"failed_to_download": 1, "filtered": 1}]


@pytest.mark.parametrize(
    ("options", "format_name", "text"),
    [
        ({"row_filter": RowFilter(min_similarity=0.3)}, "tfrecord", "--min-similarity needs a column similarity"),
        ({"verify_hash": "md5"}, "tfrecord", "--verify-hash md5: the table has no such column"),
        ({}, "imagefolder", "laion is built as webdataset or tfrecord"),
        ({"encode": EncodeOptions(encode_format="webp")}, "tfrecord", "TFDS decodes no WebP"),
    ],
)
def test_options_that_do_not_fit_the_table_are_refused(tables, options, format_name, text):
    with pytest.raises(UsageError, match=text):
        refuse_unfit(tables, RowOptions(**options), format_name)


def test_options_that_fit_the_table_are_accepted(tables):
    refuse_unfit(tables, RowOptions(encode=EncodeOptions(encode_format="webp")), "webdataset")
    refuse_unfit(tables, RowOptions(row_filter=RowFilter(max_punsafe=0.5)), "tfrecord")
