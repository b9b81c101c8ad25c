"""The plan of a table of URLs: what it holds, and what changes it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dataprep.builder.plan import plan_from_document
from dataprep.dataset.documents import differences
from dataprep.errors import SourceError, UsageError
from dataprep.fetched.collect import RowOptions
from dataprep.fetched.duplicates import DuplicatePolicy
from dataprep.fetched.encode import EncodeOptions
from dataprep.fetched.filters import RowFilter
from dataprep.fetched.plan import TableRequest, build_options, laion_of, options_from, plan_tables
from dataprep.fetched.shard import schema_with
from dataprep.web.limits import Limits
from tests.dataprep.fetched.laion_tables import make_tables

LIMITS = Limits(contact="mailto:me@example.org")


@pytest.fixture
def request_of(tmp_path):
    make_tables(tmp_path, [{"URL": f"http://h/{i}", "TEXT": "t", "md5": "x", "Key": i} for i in range(25)])
    return TableRequest(sources=(str(tmp_path / "table.parquet"),), rows_per_shard=10, limits=LIMITS)


def plan_of(request, format_name="webdataset"):
    return plan_tables(request, build_options(format_name))


def test_a_plan_holds_row_ranges_and_no_row(request_of):
    plan = plan_of(request_of)
    assert plan.splits[0].shard_samples == (10, 10, 5)
    assert plan.splits[0].sources[0]["rows"] == 25
    assert "opencv-python-headless" in plan.codecs
    assert len(json.dumps(plan.document())) < 5_000


def test_plan_comes_back_from_its_document(request_of):
    plan = plan_of(request_of)
    again = plan_from_document(json.loads(json.dumps(plan.document())))
    assert again.plan_hash == plan.plan_hash
    tables, options = laion_of(again)
    assert (tables, options) == laion_of(plan)
    assert options_from(json.loads(json.dumps(options.document()))) == options
    assert options.schema == schema_with(tables.carried, options.rows)


def test_the_plan_does_not_depend_on_web_limits_or_the_tables_location(request_of, tmp_path):
    plan = plan_of(request_of)
    other = replace(LIMITS, in_flight=3, contact="https://example.org/else", host_per_s=1.0)
    assert plan_of(replace(request_of, limits=other)).plan_hash == plan.plan_hash
    (tmp_path / "moved").mkdir()
    (tmp_path / "table.parquet").rename(tmp_path / "moved" / "table.parquet")
    moved = (str(tmp_path / "moved" / "table.parquet"),)
    assert plan_of(replace(request_of, sources=moved)).plan_hash == plan.plan_hash


@pytest.mark.parametrize(
    "rows",
    [
        RowOptions(row_filter=RowFilter(min_image_size=9)),
        RowOptions(encode=EncodeOptions(image_size=9)),
        RowOptions(duplicates=DuplicatePolicy(exact="drop")),
        RowOptions(verify_hash="md5"),
    ],
)
def test_every_row_option_changes_the_plan_and_is_named(request_of, rows):
    ours, theirs = plan_of(replace(request_of, rows=rows)), plan_of(request_of)
    assert ours.plan_hash != theirs.plan_hash
    assert len(differences(ours.document(), theirs.document())) == 1


def test_plans_that_cannot_be_built_are_refused(request_of, tmp_path):
    with pytest.raises(UsageError, match="--column url=LINK"):
        plan_of(replace(request_of, columns={"url": "LINK"}))
    with pytest.raises(UsageError, match="--rows-per-shard must be 1 or more"):
        plan_of(replace(request_of, rows_per_shard=0))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "t.csv").write_text("url,caption\n")
    with pytest.raises(SourceError, match="no row in 1 table; check --source"):
        plan_of(replace(request_of, sources=(str(tmp_path / "empty"),)))
