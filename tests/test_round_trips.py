"""How often a build from a bucket to a bucket waits for an answer before it can ask for the next thing."""

from pathlib import Path

import pytest

from dataprep.storage import open_storage
from tests.support.builds import build_warm
from tests.support.recorded import longest_chain

LATENCY_MS = 150
"""Long enough that requests which do not wait for each other overlap, on a busy machine too."""

OPTIONS = ("--split", "train", "--workers", 1)


@pytest.fixture
def tars(originals, bucket_url):
    """ImageNet's tars in a bucket."""
    storage = open_storage(f"{bucket_url}/tars")
    for path in Path(originals["imagenet"]).iterdir():
        storage.create(path.name, path.read_bytes())
    return storage.url


@pytest.mark.parametrize("shards", [1, 3, 6])
def test_a_build_in_a_bucket_waits_for_few_answers(gcs, tars, bucket_url, shards):
    """A shard takes its upload, a check of the claim, the copy, its receipt, and another check; two are published at a
    time."""
    gcs.record()
    gcs.recorded()
    gcs.set_latency(LATENCY_MS)
    build_warm("imagenet", tars, f"{bucket_url}/out", "webdataset", *OPTIONS, "--num-shards", shards)
    chain = longest_chain(gcs.recorded())
    assert len(chain) <= 27 + 3 * (shards - 1), "\n".join(chain)
