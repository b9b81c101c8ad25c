import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders.packs import lay_out, starts_of

GRIDS = st.tuples(st.integers(1, 5), st.integers(1, 5)) | st.just((0, 0))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 7), st.data())
@settings(max_examples=25)
def test_every_token_is_a_patch_of_its_image_or_padding(rows, images, spare, data):
    row = st.lists(st.tuples(GRIDS, st.booleans()), min_size=images, max_size=images)
    given = [data.draw(row) for _ in range(rows)]
    grids = np.array([[grid for grid, _ in each] for each in given], np.int32)
    mask = np.array([[real and grid != (0, 0) for grid, real in each] for each in given])
    tokens = max(1, int(grids.prod(axis=-1).sum(axis=1).max()) + spare)
    layout = lay_out(grids, mask, tokens)
    for number, each in enumerate(given):
        expected = []
        for image, ((height, width), _) in enumerate(each):
            assert starts_of(grids)[number, image] == len(expected)
            patches = [(image + 1, row, column) for row in range(height) for column in range(width)]
            expected += patches if mask[number, image] else [(0, 0, 0)] * len(patches)
        expected += [(0, 0, 0)] * (tokens - len(expected))
        found = np.concatenate([layout.segments_RT[number][:, None], layout.positions_RT2[number]], axis=1)
        assert [tuple(token) for token in found.tolist()] == expected
    assert layout.segments_RT.dtype == layout.positions_RT2.dtype == np.int32
