"""Networks over packs: an image's output depends on no other image, and squares give what the square networks give."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dataprep.errors import UsageError
from loaders import Packs
from loaders.decode.decoders import cut_patches
from loaders.packs import lay_out
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD
from train.batches.masks import PackMaskConfig, draw_pack_masks
from train.loops.tasks import normalised_patches
from train.models.mae import MAEConfig
from train.models.packed import FactorizedPositions, Packed, PackedMAE, PackedViT, pooled
from train.models.vit import BlockConfig, VisionTransformer, ViTConfig

PACKS = Packs(tokens=24, images=3, patch=4, min_tokens=2, max_tokens=16)
BLOCK = BlockConfig(dim=16, num_heads=2)
VIT = ViTConfig(
    image_size=8, patch_size=4, depth=2, block=BLOCK, num_classes=5, pool="average_of_normed", class_token=False
)
MAE = MAEConfig(image_size=8, patch_size=4, encoder=BLOCK, encoder_depth=2, decoder=BLOCK, decoder_depth=1)


def packed(grids, seed=0):
    """Random pixels of images with these grids."""
    grids = np.array(grids, np.int32)
    layout = lay_out(grids, grids.prod(axis=-1) > 0, PACKS.tokens)
    patches = torch.randn(len(grids), PACKS.tokens, PACKS.patch_bytes, generator=torch.manual_seed(seed))
    patches[torch.from_numpy(layout.segments_RT == 0)] = 0
    return Packed(patches, *(torch.from_numpy(each) for each in (layout.segments_RT, layout.positions_RT2, grids)))


@pytest.mark.parametrize("kind", ["fractional", "absolute"])
def test_logits_of_an_image_do_not_depend_on_its_row(kind):
    torch.manual_seed(0)
    model = PackedViT(VIT, PACKS, kind).eval()
    batch = packed([[(2, 3), (4, 2), (1, 5)], [(3, 3), (2, 2), (0, 0)]])
    logits = model(*batch)
    assert logits.shape == (2, 3, 5)
    # The second image of the first row alone, at another place in another row.
    alone = packed([[(4, 2), (0, 0), (0, 0)]])
    alone.patches_RTV[0, :8] = batch.patches_RTV[0, 6:14]
    assert torch.allclose(model(*alone)[0, 0], logits[0, 1], atol=1e-5)
    noisy = batch._replace(patches_RTV=batch.patches_RTV + 9 * (batch.segments_RT == 0).unsqueeze(-1))
    assert torch.allclose(model(*noisy), logits, atol=1e-5)


def test_a_square_image_gives_the_logits_of_the_square_network():
    torch.manual_seed(0)
    square, model = VisionTransformer(VIT).eval(), PackedViT(VIT, PACKS, "absolute").eval()
    weights = {name: value for name, value in square.state_dict().items() if not name.startswith("pos_embed")}
    assert set(model.state_dict()) - set(weights) == {"pos_embed.rows", "pos_embed.columns"}
    model.load_state_dict(weights, strict=False)
    rows, columns = model.pos_embed.rows.detach(), model.pos_embed.columns.detach()
    square.pos_embed.data = (rows[:2, None] + columns[None, :2]).reshape(1, 4, -1)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    patches = np.zeros((1, PACKS.tokens, PACKS.patch_bytes), np.uint8)
    cut_patches(pixels, patches, 0)
    batch = packed([[(2, 2), (0, 0), (0, 0)]])
    batch = batch._replace(patches_RTV=normalised_patches(torch.from_numpy(patches)))
    image = (torch.from_numpy(pixels) / 255 - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    expected = square(image.permute(2, 0, 1)[None])
    assert torch.allclose(model(*batch)[0, 0], expected[0], atol=1e-5)


def test_fractional_positions_are_those_of_the_image_at_any_size():
    torch.manual_seed(0)
    positions = FactorizedPositions(8, 16, "fractional")
    assert positions.steps == 8
    small, large = (positions(packed([[grid, (0, 0), (0, 0)]]))[0] for grid in ((1, 2), (1, 4)))
    assert torch.equal(small[0], positions.rows[4] + positions.columns[2])
    assert torch.equal(large[:4], positions.rows[4] + positions.columns[[1, 3, 5, 7]])


def test_the_loss_is_the_error_of_hidden_patches_and_no_hidden_pixel_is_seen():
    torch.manual_seed(0)
    model = PackedMAE(replace(MAE, norm_pix_loss=True), PACKS).eval()
    batch = packed([[(2, 3), (4, 2), (1, 5)], [(3, 3), (2, 2), (0, 0)]])
    masks = draw_pack_masks(
        PackMaskConfig(packs=PACKS, ratio=0.5), seed=0, positions=range(6), segments_RT=batch.segments_RT.numpy()
    )
    visible, is_visible, place = (
        torch.from_numpy(each) for each in (masks.visible_RK, masks.is_visible_RK, masks.place_RT)
    )
    output = model(batch, visible.long(), is_visible, place.long())
    hidden = (place == visible.shape[1]) & (batch.segments_RT > 0)
    assert torch.equal(output.hidden.bool(), hidden)
    assert int(hidden.sum()) == 3 + 4 + 3 + 5 + 2
    error = (output.prediction - model.targets(batch.patches_RTV)).square().mean(dim=-1)
    assert torch.allclose(output.loss, error[hidden].mean())
    other = batch._replace(patches_RTV=batch.patches_RTV + hidden.unsqueeze(-1) * 3.0)
    changed = model(other, visible.long(), is_visible, place.long())
    assert torch.allclose(changed.prediction, output.prediction, atol=1e-5)
    output.loss.backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


def test_pooling_is_the_mean_of_each_image():
    batch = packed([[(2, 3), (4, 2), (0, 0)]])
    tokens = torch.randn(1, PACKS.tokens, 6)
    found = pooled(tokens, batch.segments_RT, 3)
    assert torch.allclose(found[0, 0], tokens[0, :6].mean(dim=0), atol=1e-6)
    assert torch.allclose(found[0, 1], tokens[0, 6:14].mean(dim=0), atol=1e-6)
    assert not found[0, 2].any()


def test_what_needs_square_grids_is_refused():
    with pytest.raises(UsageError, match="pooled by the average"):
        PackedViT(replace(VIT, pool="token", class_token=True), PACKS)
    with pytest.raises(UsageError, match="decoder_downsampling and pred_downsampling must be 1"):
        PackedMAE(replace(MAE, decoder_downsampling=2), PACKS)
