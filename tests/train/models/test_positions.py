"""Fixed positions: those of PyTorch's masked autoencoder."""

import numpy as np
import pytest

from train.models import mae
from train.models.sizes import sincos_positions


@pytest.mark.parametrize(("dim", "grid"), [(4, 1), (64, 8), (768, 14)])
def test_positions_are_those_of_pytorch(dim, grid):
    expected = mae.sincos_positions(dim, grid).numpy()
    found = sincos_positions(dim, grid)
    assert found.dtype == expected.dtype
    assert np.abs(found - expected).max() < 1e-7
