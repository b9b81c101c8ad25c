"""Every row ends with one status and one reason, the same whatever the order of the answers."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import asdict
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.errors import BuildError, UsageError
from dataprep.fetched.collect import (
    DuplicatePolicy,
    RowOptions,
    collect,
    count_reasons,
    count_statuses,
    duplicates_of,
    find_duplicates,
    read_image,
)
from dataprep.fetched.encode import EncodeOptions, RowFilter
from dataprep.fetched.shard import rows_parquet, schema_with, stats_json, write_samples
from dataprep.sources.laion import read_shard_rows
from dataprep.storage import open_storage
from dataprep.web.requests import Outcome, Status
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
    with pytest.raises(UsageError, match="`verify_hash` crc32: expected one of md5, sha256"):
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


def test_exact_duplicates_follow_the_first():
    duplicates = list(duplicates_of(["a", "b", "a", "a"], [1, 2, 3, 4], DuplicatePolicy(exact="drop")))
    assert [(duplicate.position, duplicate.first, duplicate.action, duplicate.reason) for duplicate in duplicates] == [
        (2, 0, "drop", "exact duplicate"),
        (3, 0, "drop", "exact duplicate"),
    ]


def test_perceptual_duplicates_are_measured_from_the_first_that_stays():
    """0b0 and 0b1 differ in one bit, 0b11 from 0b0 in two: it is no duplicate of the dropped 0b1."""
    policy = DuplicatePolicy(perceptual="drop", max_distance=1)
    duplicates = list(duplicates_of(["a", "b", "c", "d"], [0b0, 0b1, 0b11, 2**63], policy))
    assert [(duplicate.position, duplicate.first) for duplicate in duplicates] == [(1, 0), (3, 0)]
    assert not list(duplicates_of(["a", "b"], [0, 1], DuplicatePolicy(perceptual="drop")))


def test_each_kind_of_duplicate_has_its_own_action():
    policy = DuplicatePolicy(exact="drop", perceptual="report")
    duplicates = list(duplicates_of(["a", "a", "b"], [7, 7, 7], policy))
    assert [(duplicate.position, duplicate.action) for duplicate in duplicates] == [(1, "drop"), (2, "report")]
    assert not DuplicatePolicy().looks


def test_equal_files_are_dropped_also_where_they_look_like_an_image_that_is_only_reported():
    """`b` looks like `a` and stays; the second `b` has the bytes of an image that stays."""
    policy = DuplicatePolicy(exact="drop", perceptual="report")
    duplicates = list(duplicates_of(["a", "b", "b", "b"], [7, 7, 7, 7], policy))
    assert [(duplicate.position, duplicate.first, duplicate.reason) for duplicate in duplicates] == [
        (1, 0, "perceptual duplicate"),
        (2, 1, "exact duplicate"),
        (3, 1, "exact duplicate"),
    ]


@pytest.mark.parametrize("options", [{"exact": "delete"}, {"perceptual": ""}, {"max_distance": 64}])
def test_impossible_policies_are_refused(options):
    with pytest.raises(UsageError, match=r"expected one of|must be"):
        DuplicatePolicy(**options)


@given(
    hashes=st.lists(st.integers(0, 12).map(lambda small: small * 2**60 + small), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    rows_in_memory=st.integers(1, 70),
)
@settings(deadline=None, derandomize=True)
def test_the_report_over_all_shards_does_not_depend_on_the_cut(hashes, cuts, rows_in_memory):
    words = np.array([value % 2**64 for value in hashes], np.uint64)
    numbers = np.arange(len(words), dtype=np.int64)
    bounds = sorted({0, len(words), *(cut for cut in cuts if cut < len(words))})

    def shards():
        return ((numbers[start:stop], words[start:stop]) for start, stop in pairwise(bounds))

    first: dict[int, int] = {}
    ends = [(number, first.setdefault(word, number)) for number, word in enumerate(words.tolist())]
    expected = [(number, before) for number, before in ends if number != before]
    assert sorted(find_duplicates(shards, len(words), rows_in_memory)) == expected
