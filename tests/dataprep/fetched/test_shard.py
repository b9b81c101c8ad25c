"""A shard's files: what img2dataset's readers, webdataset, Hugging Face datasets and TFDS find in them."""

import hashlib
import io
import json
import tarfile
from datetime import date

import google_crc32c
import pyarrow.parquet as pq
import pytest

from dataprep.errors import UsageError
from dataprep.fetched.collect import (
    DuplicatePolicy,
    EncodeOptions,
    RowFilter,
    RowOptions,
    collect,
    count_reasons,
    count_statuses,
    read_image,
)
from dataprep.fetched.shard import (
    ShardOptions,
    Streams,
    built_names,
    index_table,
    make_shard,
    refuse_unfit,
    rows_parquet,
    schema_with,
    stats_json,
    write_samples,
)
from dataprep.formats.fields import read_fields
from dataprep.sources.laion import read_shard_rows
from dataprep.storage import open_storage
from dataprep.web.requests import Evidence, Outcome, Status
from tests.dataprep.fetched.laion_tables import BODIES, ROWS, answers, collect_rows, make_tables, table_rows
from tests.dataprep.fetched.pictures import encoded, photo


def test_members_and_fields_are_those_of_img2dataset(tmp_path):
    data, _ = collect_rows(tmp_path).write("webdataset")
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar}
    assert list(members) == [f"00000000{row}.{suffix}" for row in (0, 2, 3) for suffix in ("jpg", "json", "txt")]
    assert members["000000000.jpg"] == BODIES[0]
    assert members["000000000.txt"].decode() == ROWS[0]["TEXT"]
    assert members["000000002.txt"] == b""
    assert list(json.loads(members["000000000.json"]).items()) == [
        ("SAMPLE_ID", 10**17),
        ("LICENSE", "?"),
        ("NSFW", "UNLIKELY"),
        ("similarity", 0.3125),
        ("table_key", "theirs-0"),
        ("caption", ROWS[0]["TEXT"]),
        ("url", "http://h/0.jpg"),
        ("key", "000000000"),
        ("status", "success"),
        ("error_message", ""),
        ("width", 80),
        ("height", 60),
        ("original_width", 80),
        ("original_height", 60),
        ("exif", "{}"),
        ("sha256", hashlib.sha256(BODIES[0]).hexdigest()),
    ]
    for row in (0, 2, 3):  # to the byte as img2dataset writes it
        stored = members[f"00000000{row}.json"]
        assert stored == json.dumps(json.loads(stored), indent=4).encode()
    absent = json.loads(members["000000002.json"])
    assert (absent["NSFW"], absent["similarity"], absent["original_height"], absent["height"]) == ("", -1.0, 400, 341)


def test_the_parquet_has_every_row_and_true_nulls(tmp_path):
    found = collect_rows(tmp_path, duplicates=DuplicatePolicy(exact="report"))
    table = pq.read_table(io.BytesIO(rows_parquet(found.rows, found.results, found.schema)))
    assert table.column("status").to_pylist() == ["success", "failed_to_download", "success", "success"]
    assert table.column("error_message").to_pylist() == [None, "http 404", None, None]
    assert table.column("similarity").to_pylist() == [0.3125, 0.3125, None, 0.3125]
    assert table.column("width").to_pylist() == [80, None, 256, 9]
    assert table.column("caption").to_pylist()[2] is None
    assert table.column_names[-3:] == ["dhash", "duplicate_of", "consent"]
    assert [len(dhash or "") for dhash in table.column("dhash").to_pylist()] == [16, 0, 16, 16]


def test_counts_in_the_stats_add_up(tmp_path):
    results = collect_rows(tmp_path).results
    stats = json.loads(stats_json(count_statuses(results), count_reasons(results)))
    assert stats["count"] == 4 and stats["successes"] == 3 and stats["failed_to_download"] == 1
    parts = ("successes", "failed_to_download", "failed_to_resize", "filtered", "duplicates")
    assert sum(stats[name] for name in parts) == stats["count"] == sum(stats["status_dict"].values())


@pytest.mark.parametrize("format_name", ["webdataset", "tfrecord"])
def test_offsets_of_the_index_lead_to_images_and_fields(tmp_path, format_name):
    found = collect_rows(tmp_path)
    data, places = found.write(format_name)
    index = index_table(0, found.rows, found.results, places, found.spool).to_pylist()
    assert [entry["key"] for entry in index] == ["000000000", "000000002", "000000003"]
    for entry, position in zip(index, (0, 2, 3), strict=True):
        image = data[entry["image_offset"] : entry["image_offset"] + entry["image_bytes"]]
        assert image == read_image(found.spool, found.results[position])
        assert entry["image_crc32c"] == google_crc32c.value(image)
        record = data[entry["record_offset"] : entry["record_offset"] + entry["record_bytes"]]
        fields = read_fields(format_name, record, ["caption", "url", "SAMPLE_ID"])
        assert fields["caption"] == (ROWS[position]["TEXT"] or "")
        assert (fields["url"], fields["SAMPLE_ID"]) == (ROWS[position]["URL"], ROWS[position]["SAMPLE_ID"])


def test_a_shard_in_which_every_row_failed_has_an_empty_tar_and_all_rows(tmp_path):
    tables, rows = table_rows(tmp_path, ROWS)
    results = collect(rows, answers([None] * 4), RowOptions(), io.BytesIO())
    schema = schema_with(tables.carried, RowOptions())
    stream = io.BytesIO()
    assert write_samples(stream, "webdataset", rows, results, schema, io.BytesIO()) == []
    assert stream.getvalue() == bytes(1024)
    assert index_table(0, rows, results, [], io.BytesIO()).num_rows == 0
    assert pq.read_table(io.BytesIO(rows_parquet(rows, results, schema))).num_rows == 4


def test_files_of_a_shard_are_named_by_its_number():
    names = built_names("laion", "webdataset", "train", 5)
    assert names.samples_file(12) == "train/00012.tar"
    assert (names.parquet_file(12), names.stats_file(12)) == ("train/00012.parquet", "train/00012_stats.json")
    assert built_names("laion", "tfrecord", "train", 6).samples_file(12) == "laion-train.tfrecord-000012"
    assert built_names("datacomp-1b", "tfrecord", "train", 5).samples_file(0) == "datacomp_1b-train.tfrecord-00000"
    assert built_names("datacomp-1b", "webdataset", "train", 5).samples_file(0) == "train/00000.tar"


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
        ({"row_filter": RowFilter(min_similarity=0.3)}, "tfrecord", "`min_similarity` needs a column similarity"),
        ({"verify_hash": "md5"}, "tfrecord", "`verify_hash` md5: the table has no such column"),
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


def test_a_refused_row_keeps_what_was_said_and_nothing_of_its_image(tmp_path):
    evidence = Evidence("TDMRep", "tdm-reservation: 1", "https://site.test/a.jpg", date(2026, 11, 30), ("RSL",))
    tables, rows = table_rows(tmp_path, ROWS)
    refused = [Outcome(row, Status.OPT_OUT, evidence.reason, evidence=evidence) for row in range(len(rows))]
    results = collect(rows, lambda requests: iter(refused), RowOptions(), io.BytesIO())
    table = pq.read_table(io.BytesIO(rows_parquet(rows, results, schema_with(tables.carried, RowOptions()))))
    assert count_reasons(results) == {"opt out: TDMRep": len(rows)}
    assert set(table.column("sha256").to_pylist()) == {None}
    assert json.loads(table.column("consent")[0].as_py()) == {
        "signal": "TDMRep",
        "text": "tdm-reservation: 1",
        "url": "https://site.test/a.jpg",
        "day": "2026-11-30",
        "despite": ["RSL"],
    }
