"""Every row ends with one status and one reason, the same whatever the order of the answers."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import asdict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.errors import BuildError, UsageError
from dataprep.fetched.collect import RowOptions, collect, count_reasons, count_statuses, read_image
from dataprep.fetched.duplicates import DuplicatePolicy
from dataprep.fetched.encode import EncodeOptions
from dataprep.fetched.filters import RowFilter
from dataprep.fetched.shard import rows_parquet, schema_with, stats_json, write_samples
from dataprep.sources.laion import read_shard_rows
from dataprep.storage import open_storage
from dataprep.web.outcomes import Outcome, Status
from tests.dataprep.fetched.laion_tables import answers, make_tables
from tests.dataprep.fetched.pictures import encoded, photo

IMAGES = [encoded(photo(80, 60, seed), "JPEG") for seed in range(4)]
BODIES = [
    IMAGES[0],
    None,
    IMAGES[1],
    IMAGES[0],
    b"<html>",
    IMAGES[2][:700],
    IMAGES[3],
    encoded(photo(80, 60, 1), "PNG"),
]
ROWS = [
    {"URL": f"http://h/{i}.jpg", "TEXT": f"text {i}", "punsafe": i / 10, "md5": hashlib.md5(body or b"").hexdigest()}
    for i, body in enumerate(BODIES)
]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    tables = make_tables(folder, ROWS)
    return tables, read_shard_rows(open_storage(str(folder)), tables, 0)


def _ends(rows, options, order=None, bodies=BODIES):
    spool = io.BytesIO()
    results = collect(rows, answers(bodies, order), options, spool)
    return results, spool


def test_every_row_has_one_status_and_one_reason(table):
    options = RowOptions(
        row_filter=RowFilter(max_punsafe=0.6),
        encode=EncodeOptions(image_size=32),
        duplicates=DuplicatePolicy(exact="drop"),
    )
    results, spool = _ends(table[1], options)
    assert [(result.status, result.reason) for result in results] == [
        ("success", ""),
        ("failed_to_download", "http 404"),
        ("success", ""),
        ("duplicate", "exact duplicate"),
        ("failed_to_resize", "no image"),
        ("failed_to_resize", "truncated"),
        ("success", ""),
        ("filtered", "punsafe"),
    ]
    assert results[3].duplicate_of == table[1][0].key
    assert results[2].digest == hashlib.sha256(IMAGES[1]).hexdigest()
    assert read_image(spool, results[2]).startswith(b"\xff\xd8\xff")
    assert (results[2].image.width, results[2].image.height) == (43, 32)
    assert count_statuses(results) == {
        "success": 3,
        "failed_to_download": 1,
        "failed_to_resize": 2,
        "filtered": 1,
        "duplicate": 1,
    }
    assert sum(count_reasons(results).values()) == len(ROWS)


def test_perceptual_duplicates_are_reported_and_kept(table):
    results, _ = _ends(table[1], RowOptions(duplicates=DuplicatePolicy(perceptual="report", max_distance=2)))
    assert results[7].status == results[3].status == "success"
    assert results[7].duplicate_of == table[1][2].key
    assert results[3].duplicate_of == table[1][0].key


@given(order=st.permutations(range(len(BODIES))))
@settings(deadline=None, derandomize=True, max_examples=25)
@pytest.mark.parametrize("format_name", ["webdataset", "tfrecord"])
def test_files_do_not_depend_on_the_order_of_the_answers(table, format_name, order):
    tables, rows = table
    options = RowOptions(duplicates=DuplicatePolicy(exact="drop", perceptual="report"))
    schema = schema_with(tables.carried, options)

    def files(order):
        results, spool = _ends(rows, options, order)
        stream = io.BytesIO()
        places = write_samples(stream, format_name, rows, results, schema, spool)
        return (
            stream.getvalue(),
            places,
            rows_parquet(rows, results, schema),
            stats_json(count_statuses(results), count_reasons(results)),
        )

    assert files(order) == files(None)


def test_an_image_with_another_hash_is_a_failed_download(table):
    bodies = [IMAGES[3], *BODIES[1:]]
    results, _ = _ends(table[1], RowOptions(verify_hash="md5"), bodies=bodies)
    assert (results[0].status, results[0].reason) == ("failed_to_download", "hash mismatch")
    assert results[2].status == "success"
    with pytest.raises(UsageError, match="--verify-hash crc32: expected one of md5, sha256"):
        RowOptions(verify_hash="crc32")


def test_a_row_without_the_hash_to_verify_is_not_requested(tmp_path):
    tables = make_tables(tmp_path, [{"URL": "http://h/a", "md5": None}, {"URL": "http://h/b", "md5": "0" * 32}])
    rows = read_shard_rows(open_storage(str(tmp_path)), tables, 0)
    results, _ = _ends(rows, RowOptions(verify_hash="md5"), bodies=[IMAGES[0], IMAGES[1]])
    assert [result.reason for result in results] == ["no hash", "hash mismatch"]


def test_row_options_are_read_back_from_json():
    options = RowOptions(
        row_filter=RowFilter(nsfw=("UNLIKELY",), max_image_area=10**6, max_aspect_ratio=3.0),
        encode=EncodeOptions(resize_mode="border"),
        duplicates=DuplicatePolicy(perceptual="drop", max_distance=3),
        verify_hash="sha256",
    )
    for written in (options, RowOptions()):
        assert msgspec.convert(json.loads(json.dumps(asdict(written))), RowOptions) == written


def test_unrequested_or_duplicate_outcomes_are_refused(table):
    for keys in ((0, 0), (99,), (-1,)):
        with pytest.raises(BuildError, match=f"row {keys[-1]} was not requested or came twice"):
            collect(table[1], lambda _, keys=keys: (Outcome(k, Status.DNS) for k in keys), RowOptions(), io.BytesIO())


def test_a_filtered_row_is_not_requested(table):
    asked = []

    def fetch(requests):
        asked.extend(request.key for request in requests)
        return iter(())

    results = collect(table[1], fetch, RowOptions(row_filter=RowFilter(max_punsafe=0.1)), io.BytesIO())
    assert asked == [0, 1]
    assert [result.reason for result in results] == ["no answer"] * 2 + ["punsafe"] * 6


def test_a_row_that_no_reader_would_take_is_filtered(tmp_path):
    tables = make_tables(tmp_path, [{"URL": "http://h/a", "TEXT": "x" * 40_000}, {"URL": "http://h/b", "TEXT": "x"}])
    rows = read_shard_rows(open_storage(str(tmp_path)), tables, 0)
    results, _ = _ends(rows, RowOptions(), bodies=[IMAGES[0], IMAGES[1]])
    assert [(result.status, result.reason) for result in results] == [("filtered", "row too large"), ("success", "")]


def test_every_status_of_the_fetcher_has_a_phrase(table):
    for status in Status:
        if status is Status.SUCCESS:
            continue
        outcome = Outcome(0, status, "details that differ", http_code=503)
        results = collect(table[1][:1], lambda _, outcome=outcome: iter([outcome]), RowOptions(), io.BytesIO())
        assert results[0].status == "failed_to_download"
        assert results[0].reason == ("http 503" if status is Status.HTTP else status.value.replace("_", " "))
