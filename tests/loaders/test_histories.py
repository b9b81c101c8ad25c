"""Runs that go on with other batches, ranks, images, revisions and mixtures deliver each sample once an epoch."""

import random

import pytest

from tests.support.histories import history, revisions


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    return revisions(tmp_path_factory.mktemp("histories"))


@pytest.mark.filterwarnings("ignore:.* a batch of .* is larger than the split")
@pytest.mark.parametrize("seed", range(6))
def test_a_run_with_changes_has_every_sample_once(urls, seed):
    """Some of the 500 histories of `make soak SHOW=histories`."""
    _, state_bytes = history(random.Random(seed), urls)
    assert state_bytes < 1_100
