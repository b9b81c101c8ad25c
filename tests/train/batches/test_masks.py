"""Masks: the same for every world, whole blocks, each patch as likely as the others."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UsageError
from loaders import Packs
from tests.support.samples import examples
from train.batches.masks import MaskConfig, PackMaskConfig, draw_masks, draw_pack_masks

configs = st.builds(
    lambda grid, ratio, unit: MaskConfig(grid=grid, ratio=ratio, unit=unit),
    st.integers(4, 16),
    st.sampled_from([0.25, 0.5, 0.75, 0.9]),
    st.integers(1, 4),
)


@examples
@given(configs, st.integers(0, 5), st.integers(0, 10_000), st.sampled_from([1, 2, 3, 4]))
def test_masks_are_permutations_and_the_same_for_every_world(config, seed, first, world_size):
    together = draw_masks(config, seed=seed, positions=range(first, first + 12))
    assert (np.sort(together.place_NL, axis=1) == np.arange(config.num_patches)).all()
    for visible, place in zip(together.visible_NK, together.place_NL, strict=True):
        assert (place[visible] == np.arange(config.num_visible)).all()
    for rank in range(world_size):
        alone = draw_masks(config, seed=seed, positions=range(first + rank, first + 12, world_size))
        assert (alone.visible_NK == together.visible_NK[rank::world_size]).all()
        assert (alone.place_NL == together.place_NL[rank::world_size]).all()


@examples
@given(configs, st.integers(0, 1_000))
def test_at_most_one_block_is_partly_visible(config, position):
    masks = draw_masks(config, seed=0, positions=range(position, position + 1))
    hidden = (masks.place_NL[0] >= config.num_visible).reshape(config.grid, config.grid)
    split = 0
    for row in range(0, config.grid, config.unit):
        for column in range(0, config.grid, config.unit):
            block = hidden[row : row + config.unit, column : column + config.unit]
            split += block.any() and not block.all()
    assert split <= 1


def test_as_many_patches_are_visible_as_in_long_seq_mae():
    long = MaskConfig(grid=28, unit=2)
    assert (long.num_patches, long.num_visible) == (784, 196)
    assert MaskConfig(grid=14, unit=2).num_visible == 49


def test_every_patch_is_visible_equally_often():
    shown = np.bincount(draw_masks(MaskConfig(grid=4), seed=9, positions=range(8000)).visible_NK.ravel(), minlength=16)
    assert np.abs(shown - 2000).max() < 6 * np.sqrt(8000 * 0.25 * 0.75)


def test_other_seeds_and_positions_give_other_masks():
    config = MaskConfig(grid=14)
    found = {
        draw_masks(config, seed=seed, positions=range(at, at + 1)).visible_NK.tobytes()
        for seed in range(4)
        for at in range(50)
    }
    assert len(found) == 200


def test_masks_equal_those_of_earlier_versions():
    masks = draw_masks(MaskConfig(grid=14, unit=2), seed=1, positions=range(5, 50, 3))
    assert hashlib.sha256(masks.place_NL.astype("<i4").tobytes()).hexdigest()[:16] == "125697566a6c29e9"


@pytest.mark.parametrize(("ratio", "unit"), [(0.0, 1), (0.999, 1), (0.75, 0)])
def test_masks_that_hide_all_or_nothing_are_refused(ratio, unit):
    with pytest.raises(UsageError, match=r"mask_(ratio|downsampling)"):
        MaskConfig(grid=4, ratio=ratio, unit=unit)


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
