"""Builds in three parts over one bucket, one of which is killed for good: the bytes of a build on this machine."""

import os
import random

import pytest

from tests.conftest import BUCKET
from tests.support.builds import build_arguments, dataprep, digests
from tests.support.parts import parts_of_a_build
from tests.support.picture_web import laion_arguments, picture_web

KILLS = int(os.environ.get("KILLS", "1"))
"""Kills of each kind."""
PARTS = 3
SHARDS = 12
ROWS = 120
ROWS_A_SHARD = 10
LATENCY_MS = 100
"""Latency of the bucket, so that the other parts are still at work when one is killed."""


@pytest.fixture
def imagenet(originals):
    def line(output):
        shards = ("--split", "train", "--num-shards", SHARDS, "--workers", 1)
        return build_arguments("imagenet", originals["imagenet"], output, "webdataset", *shards)

    return line


@pytest.fixture
def laion(tmp_path):
    with picture_web() as web:
        web.faults = {3: 404}
        table = web.write_table(tmp_path / "laion.parquet", ROWS)
        yield lambda output: laion_arguments(table, output, "webdataset", "--workers", 1)


@pytest.mark.parametrize("dataset", ["imagenet", "laion"])
@pytest.mark.parametrize("kill", range(KILLS))
def test_two_parts_finish_when_the_third_is_killed_for_good(dataset, kill, gcs, bucket_url, request):
    line = request.getfixturevalue(dataset)
    local = f"gs://{BUCKET}/local/{dataset}-{kill}"
    run = dataprep(*line(local))
    assert run.returncode == 0, run.stderr[-2000:]
    gcs.set_latency(LATENCY_MS)
    try:
        built = parts_of_a_build(line(bucket_url), bucket_url, [PARTS], {2}, random.Random(kill))
    finally:
        gcs.set_latency(0)
    assert digests(bucket_url) == digests(local)
    print(f"{dataset}: the two parts that remained built {built} of {SHARDS} shards")
