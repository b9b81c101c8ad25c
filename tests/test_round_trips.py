"""How often a build from a bucket to a bucket waits for an answer before it can ask for the next thing."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote

import pytest

from tests.support.adoption import upload
from tests.support.builds import build_warm
from tests.support.own_data import class_folders


def longest_chain(served: Iterable[tuple[float, float, str]]) -> list[str]:
    """Return the longest sequence of requests in which each begins after the one before has ended.

    Args:
        served: Begin and end of each request, and its method and path.
    """
    chain, ended_s = [], float("-inf")
    for begun_s, end_s, what in sorted(served, key=lambda request: request[1]):
        if begun_s >= ended_s:
            chain.append(unquote(what))
            ended_s = end_s
    return chain


LATENCIES_MS = (150, 600, 2400)
"""One after another until the chain is as short as it must be: requests that do not wait for each other overlap if a
busy machine begins the next one before an answer comes."""

MOST = 22
"""Answers of a build of one shard."""
MOST_A_SHARD = 3
"""Answers that each further shard may add."""


@pytest.fixture
def waits(gcs, bucket_url):
    """Function that builds in a bucket, and checks the longest chain of requests that wait for each other."""

    def build(dataset, source, *options, most):
        gcs.record()
        for latency_ms in LATENCIES_MS:
            gcs.recorded()
            gcs.set_latency(latency_ms)
            build_warm(dataset, source, f"{bucket_url}/out-{latency_ms}", "webdataset", *options)
            gcs.set_latency(0)
            chain = longest_chain(gcs.recorded())
            if len(chain) <= most:
                break
        assert len(chain) <= most, f"{len(chain)}\n" + "\n".join(chain)

    return build


@pytest.mark.parametrize("shards", [1, 6])
def test_a_build_in_a_bucket_waits_for_few_answers(originals, bucket_url, waits, shards):
    """A shard takes its upload, a check of the claim, the copy, its receipt, and another check; two are published at a
    time."""
    options = ("--split", "train", "--workers", 1, "--num-shards", shards)
    source = upload(originals["imagenet"], f"{bucket_url}/originals")
    waits("imagenet", source, *options, most=MOST + MOST_A_SHARD * (shards - 1))


def test_a_build_of_class_folders_in_a_bucket_waits_for_few_answers(tmp_path, bucket_url, waits):
    """The build finds its two splits, of one shard each, without a further answer."""
    options = ("--workers", 1, "--num-shards", 1)
    source = upload(class_folders(tmp_path / "pets"), f"{bucket_url}/originals")
    waits("folder", source, *options, most=MOST + MOST_A_SHARD)
