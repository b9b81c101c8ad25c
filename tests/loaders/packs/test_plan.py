"""Plans of rows against a slow reference, their bounds, and how little of them is padding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders import Packs
from loaders.packs import plan_alone, plan_rows
from tests.support.packs_reference import alone, row_of

SEEDS = st.integers(0, 2**32)
MAX_PADDING = 0.03


@st.composite
def packs(draw):
    images = draw(st.integers(1, 12))
    mean = draw(st.integers(1, 300))
    least, most = draw(st.integers(1, mean)), draw(st.integers(mean, mean * images))
    return Packs(
        tokens=mean * images + draw(st.integers(0, images - 1)), images=images, min_tokens=least, max_tokens=most
    )


def sides(rng, shape):
    """Usual sides, tiny ones and huge ones."""
    return rng.choice([rng.integers(200, 600, shape), rng.integers(1, 20, shape), rng.integers(1, 60_000, shape)])


@given(packs(), st.integers(1, 3), SEEDS)
def test_rows_are_those_of_the_slow_reference_and_within_their_bounds(packs, rows, seed):
    rng, shape = np.random.default_rng(seed), (rows, packs.images)
    heights, widths, draws = sides(rng, shape), sides(rng, shape), rng.random(shape)
    grids = plan_rows(packs, heights, widths, draws)
    for row in range(rows):
        sizes = list(zip(heights[row].tolist(), widths[row].tolist(), strict=True))
        assert [tuple(grid) for grid in grids[row].tolist()] == row_of(packs, sizes, draws[row].tolist())
    tokens = grids.astype(np.int64).prod(axis=-1)
    assert grids.min() >= 1
    assert tokens.max() <= packs.most
    assert tokens.sum(axis=1).max() <= packs.tokens
    assert (tokens >= packs.least - grids.sum(axis=-1) - 1)[:, :-1].all()  # less than one row and one column less


@given(packs(), SEEDS)
def test_in_an_evaluation_the_grid_of_an_image_depends_on_no_other(packs, seed):
    rng = np.random.default_rng(seed)
    heights, widths = sides(rng, 9), sides(rng, 9)
    grids = plan_alone(packs, heights, widths)
    sizes = zip(heights.tolist(), widths.tolist(), strict=True)
    assert [tuple(grid) for grid in grids.tolist()] == [alone(packs, size) for size in sizes]
    assert grids.prod(axis=1).max() * packs.images <= packs.tokens


def photographs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Sizes like ImageNet's: 4:3 and 3:2 upright and not, squares, and a few panoramas."""
    rng = np.random.default_rng(7)
    shape = np.exp(rng.normal(0.2, 0.3, count))
    area = np.exp(rng.normal(np.log(190_000), 0.5, count))
    return (np.maximum(1, np.rint(np.sqrt(area / shape))), np.maximum(1, np.rint(np.sqrt(area * shape))))


@pytest.mark.parametrize(("tokens", "images"), [(1024, 8), (1024, 4), (512, 4), (256, 2), (2048, 16), (256, 8)])
def test_padding_of_photographs_is_small_and_their_shape_is_kept(tokens, images):
    heights, widths = (sides[: 400 * images].reshape(-1, images).astype(np.int64) for sides in photographs(8000))
    draws = np.random.default_rng(1).random(heights.shape)
    packs = Packs(tokens=tokens, images=images)
    grids = plan_rows(packs, heights, widths, draws)
    padding = 1 - grids.astype(np.int64).prod(axis=-1).sum() / (len(heights) * tokens)
    assert 0 <= padding <= MAX_PADDING
    distortion = np.abs(np.log(grids[..., 1] / grids[..., 0] * heights / widths))
    assert distortion.mean() < 0.08
    areas = grids.astype(np.int64).prod(axis=-1)
    assert areas.std() > 0.15 * areas.mean()  # resolutions differ


def test_an_image_smaller_than_a_patch_and_a_long_thin_one_have_grids():
    packs = Packs(tokens=64, images=2, min_tokens=8)
    grids = plan_rows(packs, np.array([[1, 1]]), np.array([[1, 5000]]), np.zeros((1, 2)))
    assert grids[0, 0, 0] == grids[0, 0, 1]
    assert grids[0, 1, 0] == 1
