"""The plan of a retry: read as it was written, refused where it is damaged, removed by whoever wrote it alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace

import pytest

from dataprep.dataset.paths import RETRY_JSON
from dataprep.errors import FormatError
from dataprep.fetched.names import built_names
from dataprep.fetched.retry_plan import RetryPlan, clean_up, id_of_plan, open_rows, read_plan, rows_file
from dataprep.storage import open_storage
from tests.support.builds import digests
from tests.support.fetched import PASSING

PLAN = RetryPlan(
    id="a" * 32,
    revision=1,
    manifest_sha256="0" * 64,
    choice={"reasons": ["timeout"], "everything": False},
    shard_rows=(3, 1),
    first_shard=4,
    codecs={"pillow": "12"},
)

NAMES = built_names("laion", "webdataset", "train", 5)


@pytest.fixture
def storage(storage_url):
    """A place with the plan and its rows."""
    storage = open_storage(storage_url)
    storage.create(RETRY_JSON, json.dumps(asdict(PLAN)).encode())
    storage.create(rows_file(PLAN.root), b"rows")
    return storage


def names(storage):
    return [info.name for info in storage.list()]


def test_a_plan_is_read_as_it_was_written(storage):
    assert read_plan(storage) == PLAN
    assert id_of_plan(storage) == PLAN.id


def test_where_no_retry_was_begun_there_is_no_plan(tmp_path):
    assert read_plan(open_storage(str(tmp_path))) is None


def test_only_its_own_plan_is_removed(storage):
    before = names(storage)
    clean_up(storage, replace(PLAN, id="b" * 32), NAMES)
    assert names(storage) == before
    clean_up(storage, PLAN, NAMES)
    assert names(storage) == []
    clean_up(storage, PLAN, NAMES)


def test_rows_are_a_row_group_for_each_new_shard(begun):
    storage = open_storage(str(begun))
    plan = read_plan(storage)
    rows = open_rows(storage, plan.root)
    assert plan.shard_rows == (len(PASSING),)
    pairs = [tuple(row.values()) for row in rows.read_row_group(0).to_pylist()]
    assert pairs == [divmod(number, 10) for number in PASSING]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "../../home"), ("id", None), ("id", "a" * 31), ("revision", "1"), ("revision", -1), ("revision", True),
        ("manifest_sha256", 3), ("choice", []), ("choice", {"reasons": "all"}), ("choice", {"reasons": [3]}),
        ("codecs", []), ("shard_rows", []), ("shard_rows", [0]), ("shard_rows", ["1"]), ("shard_rows", [1.5]),
        ("shard_rows", [True]), ("first_shard", -1), ("first_shard", None),
    ],
)  # fmt: skip
def test_a_plan_whose_field_is_of_another_kind_is_refused_by_name(begun, tmp_path, field, value):
    shutil.copytree(begun, tmp_path / "out")
    plan = tmp_path / "out" / RETRY_JSON
    plan.write_text(json.dumps(json.loads(plan.read_text()) | {field: value}))
    before = digests(tmp_path / "out")
    with pytest.raises(
        FormatError, match=rf"{RETRY_JSON}: no plan of a retry: \$\.{field}.*, (got|in) .*; remove _retry/"
    ):
        read_plan(open_storage(str(tmp_path / "out")))
    assert digests(tmp_path / "out") == before


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "null", "[" * 100_000, "{}", '{"id": 1}', '{"shard_rows": 7}', '{"shard_rows": null}']
)
def test_a_file_that_is_no_plan_of_a_retry_is_refused(begun, tmp_path, text):
    shutil.copytree(begun, tmp_path / "out")
    (tmp_path / "out" / RETRY_JSON).write_text(text)
    with pytest.raises(FormatError, match=r"no plan of a retry: .*; remove _retry/"):
        read_plan(open_storage(str(tmp_path / "out")))
