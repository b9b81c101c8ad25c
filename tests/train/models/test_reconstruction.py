"""The picture of what a masked autoencoder paints."""

import io

import numpy as np
import torch
from PIL import Image

from train.batches.masks import MaskConfig, draw_masks
from train.loops.tasks import reconstruction_png
from train.models.mae import MaskedAutoencoder
from train.models.registry import mae_config


def test_a_row_shows_the_image_what_was_seen_what_was_painted_and_both():
    torch.manual_seed(0)
    model = MaskedAutoencoder(mae_config("mae_vit_micro_patch8", image_size=32))
    masks = draw_masks(MaskConfig(grid=4), seed=0, positions=range(2))
    visible, place = (torch.from_numpy(each).long() for each in (masks.visible_NK, masks.place_NL))
    images = torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8)
    png, height, width = reconstruction_png(model, images, visible, place)
    shown = np.asarray(Image.open(io.BytesIO(png)))
    assert shown.shape == (height, width, 3) == (2 * 36, 4 * 36, 3)
    original, seen, painted, both = (shown[:32, 36 * column : 36 * column + 32] for column in range(4))
    assert np.array_equal(original, images[0].numpy())
    is_hidden = (place[0].view(4, 4) >= visible.shape[1]).numpy().repeat(8, 0).repeat(8, 1)
    assert is_hidden.mean() == 0.75
    assert (seen[is_hidden] == 128).all()
    assert np.array_equal(seen[~is_hidden], original[~is_hidden])
    assert np.array_equal(both[is_hidden], painted[is_hidden])
    assert np.array_equal(both[~is_hidden], original[~is_hidden])
