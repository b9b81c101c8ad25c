"""How often a build from a bucket to a bucket waits for an answer before it can ask for the next thing."""

from pathlib import Path

import pytest

from dataprep.storage import open_storage
from tests.support.builds import build_warm
from tests.support.own_data import class_folders
from tests.support.recorded import longest_chain

LATENCY_MS = 150
"""Long enough that requests which do not wait for each other overlap, on a busy machine too."""

MOST = 22
"""Answers of a build of one shard."""
MOST_A_SHARD = 3
"""Answers that each further shard may add."""


@pytest.fixture
def uploaded(bucket_url):
    """Function that uploads a folder, and returns its URL."""

    def upload(folder):
        storage = open_storage(f"{bucket_url}/originals")
        for path in Path(folder).rglob("*"):
            if path.is_file():
                storage.create(path.relative_to(folder).as_posix(), path.read_bytes())
        return storage.url

    return upload


@pytest.fixture
def waits(gcs, bucket_url):
    """Function that builds in a bucket, and returns the longest chain of requests that wait for each other."""

    def build(dataset, source, *options):
        gcs.record()
        gcs.recorded()
        gcs.set_latency(LATENCY_MS)
        build_warm(dataset, source, f"{bucket_url}/out", "webdataset", *options)
        return longest_chain(gcs.recorded())

    return build


@pytest.mark.parametrize("shards", [1, 3, 6])
def test_a_build_in_a_bucket_waits_for_few_answers(originals, uploaded, waits, shards):
    """A shard takes its upload, a check of the claim, the copy, its receipt, and another check; two are published at a
    time."""
    options = ("--split", "train", "--workers", 1, "--num-shards", shards)
    chain = waits("imagenet", uploaded(originals["imagenet"]), *options)
    assert len(chain) <= MOST + MOST_A_SHARD * (shards - 1), f"{len(chain)}\n" + "\n".join(chain)


def test_a_build_of_class_folders_in_a_bucket_waits_for_few_answers(tmp_path, uploaded, waits):
    """The build finds its two splits, of one shard each, without a further answer."""
    chain = waits("folder", uploaded(class_folders(tmp_path / "pets")), "--workers", 1, "--num-shards", 1)
    assert len(chain) <= MOST + MOST_A_SHARD, f"{len(chain)}\n" + "\n".join(chain)
