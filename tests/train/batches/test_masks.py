"""Masks: the same for every world, whole blocks, each patch as likely as the others."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UsageError
from tests.support.samples import examples
from train.batches.masks import MaskConfig, draw_masks

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
