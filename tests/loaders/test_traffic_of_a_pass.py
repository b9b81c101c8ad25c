"""Predicted requests and bytes of a pass against what the order asks for, and what the emulator counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.commands.check_region import num_pieces, pass_traffic, ranks_per_piece
from loaders import open_loader
from loaders.dataset import open_dataset
from loaders.order import NUM_STREAMS, Order


@given(st.lists(st.integers(1, 200), min_size=1, max_size=20), st.integers(1, 30))
def test_the_predicted_number_of_pieces_is_that_of_the_order(shard_samples, at_once):
    order = Order(shard_samples=tuple(shard_samples), seed=1, global_batch=1, samples_per_block=at_once, num_streams=12)
    picks = order.picks(0)
    found = {next(picks).piece for _ in range(order.num_samples)}
    assert num_pieces(shard_samples, at_once, 12) == pytest.approx(len(found), abs=12)


def test_ranks_that_do_not_divide_the_streams_read_some_pieces_several_times():
    assert ranks_per_piece(5, 18, NUM_STREAMS) == pytest.approx(5 * (1 - 0.8**18))
    assert ranks_per_piece(5, 1, NUM_STREAMS) == pytest.approx(1)


@pytest.mark.parametrize(
    "fmt", [*(pytest.param(each, marks=pytest.mark.long) for each in ("webdataset", "tfrecord")), "imagefolder"]
)
def test_the_emulator_counts_what_was_predicted(bucket_dataset, gcs, fmt, monkeypatch):
    monkeypatch.setattr("loaders.fetch.fetcher.FREE_HEDGES", -1e9)  # on a slow machine a read would be made once more
    url = bucket_dataset(fmt)
    predicted_gets, predicted_bytes = pass_traffic(open_dataset(url, "train"))
    with open_loader(url, batch_size=8, image_size=32, prefetch_batches=1, threads=1) as loader:
        next(iter(loader))
        before = gcs.stats()
        passes = 0
        for _ in range(6):
            passes += sum(1 for _ in loader) * 8 / loader.dataset.split.samples
        after = gcs.stats()
    gets = (after["operations"]["B"] - before["operations"]["B"]) / passes
    num_bytes = (after["bytes_served"] - before["bytes_served"]) / passes
    assert gets == pytest.approx(predicted_gets, rel=0.05)
    assert num_bytes == pytest.approx(predicted_bytes, rel=0.05)
