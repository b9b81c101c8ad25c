"""Requests and bytes that a build of a table asks of buckets, against sums made by hand."""

from dataclasses import replace

from dataprep.fetched.traffic import fetched_traffic, tables_traffic, web_bytes
from dataprep.sources.tables import TABLE_WINDOW_BYTES
from tests.support.plans import small_plan


def plan_of(num_shards: int, table_bytes: int = 1000):
    plan = small_plan((100,) * num_shards)
    split = replace(plan.splits[0], sources=({"name": "t.parquet", "bytes": table_bytes},), source_bytes=0)
    return replace(plan, splits=(split,))


def test_output_of_a_shard_is_three_files_and_a_receipt():
    one, three = (fetched_traffic(plan_of(count), metadata_files=2) for count in (1, 3))
    assert (three.inserts - one.inserts, three.gets - one.gets) == (2 * 8, 2 * 2)
    assert one.num_bytes == 0  # not known before the images came


def test_listings_have_a_page_for_each_thousand_objects():
    few, many = (fetched_traffic(plan_of(count), metadata_files=2) for count in (1, 1001))
    assert many.inserts - few.inserts == 8 * 1000 + 3 * 4 + 1  # four objects a shard thrice, and receipts once more


def test_tables_are_measured_and_read_once():
    small, large = tables_traffic(plan_of(2)), tables_traffic(plan_of(2, 10 * TABLE_WINDOW_BYTES))
    assert (small.num_bytes, large.num_bytes) == (1000, 10 * TABLE_WINDOW_BYTES)
    assert large.gets - small.gets == 10 - 2


def test_downloads_are_estimated_from_rows_the_share_of_living_links_and_their_size():
    assert web_bytes(plan_of(10)) == 1000 * 0.68 * 190_000
