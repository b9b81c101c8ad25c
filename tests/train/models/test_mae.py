"""The masked autoencoder beside a formulation of its own: loops over samples and patches, as the papers say it."""

import math

import numpy as np
import pytest
import torch

from train.batches.masks import MaskConfig, draw_masks
from train.models.mae import image_of, patches_of
from train.models.registry import create_model
from train.models.sizes import sincos_positions


def model_and_batch(**options):
    torch.manual_seed(1)
    model = create_model("mae_vit_micro_patch8", image_size=64, **options)
    masks = draw_masks(MaskConfig(grid=8, unit=2), seed=3, positions=range(3))
    visible, place = (torch.from_numpy(each).long() for each in (masks.visible_NK, masks.place_NL))
    return model, torch.randn(3, 3, 64, 64), visible, place


def patch(image_CHW: torch.Tensor, row: int, column: int, pixels: int) -> torch.Tensor:
    """A patch's pixels row by row, each with its three colours."""
    values = []
    for y in range(row * pixels, (row + 1) * pixels):
        for x in range(column * pixels, (column + 1) * pixels):
            values += [image_CHW[colour, y, x] for colour in range(3)]
    return torch.stack(values)


@pytest.mark.parametrize("standardised", [False, True])
@pytest.mark.parametrize("coarse", [1, 2])
def test_the_loss_is_the_mean_over_hidden_patches(standardised, coarse):
    options = {"decoder_downsampling": coarse, "pred_downsampling": coarse}
    model, images, visible, place = model_and_batch(norm_pix_loss=standardised, **options)
    with torch.no_grad():
        output = model(images, visible, place)
    grid, pixels = 8 // coarse, 8 * coarse
    weighted = weights = 0.0
    for sample in range(3):
        shown = set(visible[sample].tolist())
        for row in range(grid):
            for column in range(grid):
                inside = [
                    (row * coarse + dy) * 8 + column * coarse + dx for dy in range(coarse) for dx in range(coarse)
                ]
                weight = sum(number not in shown for number in inside) / len(inside)
                target = patch(images[sample], row, column, pixels).double()
                if standardised:
                    mean = target.sum() / len(target)
                    variance = ((target - mean) ** 2).sum() / (len(target) - 1)
                    target = (target - mean) / math.sqrt(variance + 1e-6)
                error = output.prediction[sample, row * grid + column].double() - target
                assert output.hidden[sample, row * grid + column] == weight
                weighted += weight * float((error**2).sum()) / len(target)
                weights += weight
    assert float(output.loss) == pytest.approx(weighted / weights, rel=1e-5)


def test_the_encoder_sees_the_visible_patches_alone():
    model, images, visible, place = model_and_batch()
    changed = images.clone()
    for sample in range(3):
        for number in set(range(64)) - set(visible[sample].tolist()):
            row, column = divmod(number, 8)
            changed[sample, :, row * 8 : row * 8 + 8, column * 8 : column * 8 + 8] = 7.0
    assert torch.equal(model.encode(images, visible), model.encode(changed, visible))
    assert torch.equal(model(images, visible, place).prediction, model(changed, visible, place).prediction)
    assert not torch.equal(model.encode(images, visible), model.encode(-images, visible))


def test_every_decoded_token_depends_on_its_own_token_and_position():
    """With no block between, a visible patch's output depends on its own token and position only."""
    model, images, visible, place = model_and_batch(decoder_depth=0)
    encoded = model.encode(images, visible)
    decoded = model.decode(encoded, place)
    tokens = model.decoder_embed(encoded)[:, 1:]
    for sample in range(3):
        for index, number in enumerate(visible[sample].tolist()):
            alone = model.decoder_pred(
                model.decoder_norm(tokens[sample, index] + model.decoder_pos_embed[0, 1 + number])
            )
            assert torch.allclose(decoded[sample, number], alone, atol=1e-5)


def test_positions_are_sines_and_cosines_of_columns_then_rows():
    table = sincos_positions(16, 3)[0]
    assert not table[0].any()
    for row in range(3):
        for column in range(3):
            expected = []
            for place in (column, row):
                angles = [place / 10_000 ** (i / 4) for i in range(4)]
                expected += [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
            assert np.allclose(table[1 + row * 3 + column], expected, atol=1e-6)


def test_patches_become_the_image_again():
    images = torch.arange(2 * 3 * 12 * 12.0).view(2, 3, 12, 12)
    patches = patches_of(images, 4)
    assert torch.equal(patches[1, 5], patch(images[1], 1, 2, 4))
    assert torch.equal(image_of(patches), images)


def test_upsampling_paints_at_the_finer_grid():
    model, images, visible, place = model_and_batch(decoder_downsampling=4, pred_downsampling=2)
    assert model(images, visible, place).prediction.shape == (3, 16, 3 * 16**2)
