"""Masks of packs: a fixed share of each image, the same for any number of ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UsageError
from loaders import Packs
from train.batches.masks import PackMaskConfig, draw_pack_masks

PACKS = Packs(tokens=40, images=3, max_tokens=20)


def rows_of(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Segments of images of 1 to 13 tokens, some of which were skipped."""
    segments = np.zeros((rows, PACKS.tokens), np.int32)
    for row in segments:
        stop = 0
        for image in range(1, PACKS.images + 1):
            count = int(rng.integers(1, 14))
            row[stop : stop + count] = image if rng.random() < 0.9 else 0
            stop += count
    return segments


@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([0.5, 0.75, 0.9]), st.integers(0, 5))
def test_each_image_shows_its_share_and_every_place_is_right(seed, rows, ratio, batch):
    segments = rows_of(np.random.default_rng(seed), rows)
    config = PackMaskConfig(packs=PACKS, ratio=ratio)
    count = rows * PACKS.images
    masks = draw_pack_masks(config, seed=1, positions=range(batch * count, (batch + 1) * count), segments_RT=segments)
    assert masks.visible_RK.shape == masks.is_visible_RK.shape == (rows, config.num_visible)
    for row in range(rows):
        shown = masks.visible_RK[row][masks.is_visible_RK[row]].tolist()
        assert len(set(shown)) == len(shown)
        assert all(segments[row, token] > 0 for token in shown)
        for image in range(1, PACKS.images + 1):
            tokens = int((segments[row] == image).sum())
            visible = sum(segments[row, token] == image for token in shown)
            assert visible == (max(1, int(tokens * (1 - ratio))) if tokens else 0)
        for token in range(PACKS.tokens):
            place = masks.place_RT[row, token]
            assert place == (shown.index(token) if token in shown else config.num_visible)


def test_masks_are_the_same_for_any_number_of_ranks_and_differ_by_position_and_seed():
    segments = rows_of(np.random.default_rng(3), 6)
    config = PackMaskConfig(packs=PACKS)
    whole = draw_pack_masks(config, seed=1, positions=range(18, 36), segments_RT=segments)
    for world_size in (2, 3, 6):
        for rank in range(world_size):
            part = draw_pack_masks(
                config, seed=1, positions=range(18 + rank, 36, world_size), segments_RT=segments[rank::world_size]
            )
            assert np.array_equal(part.place_RT, whole.place_RT[rank::world_size])
            assert np.array_equal(part.visible_RK, whole.visible_RK[rank::world_size])
    for seed, first in ((2, 18), (1, 36)):
        other = draw_pack_masks(config, seed=seed, positions=range(first, first + 18), segments_RT=segments)
        assert not np.array_equal(other.place_RT, whole.place_RT)


@pytest.mark.parametrize("ratio", [0.0, 1.0, float("nan")])
def test_a_share_that_hides_nothing_or_everything_is_refused(ratio):
    with pytest.raises(UsageError, match="mask_ratio must be above 0 and below 1 with packs"):
        PackMaskConfig(packs=PACKS, ratio=ratio)
