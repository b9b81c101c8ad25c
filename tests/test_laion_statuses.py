"""A table over the web at its worst, through the command line (the soak laion-statuses has 20,000 rows): every
row has the right status, and what comes in another order gives the same shards."""

from __future__ import annotations

from tests.support.laion_builds import build_twice


def test_every_row_gets_its_expected_status_and_the_order_of_answers_changes_no_shard(tmp_path):
    build_twice("webdataset", tmp_path, rows=320, hosts=100, rows_per_shard=160)
