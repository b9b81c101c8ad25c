"""A small masked autoencoder trained on packs, or on square crops of as many tokens: what `packs.py --train` compares.

Both are the same network from the same weights, with the same number of images and updates. Squares are packs of equal
grids, so that only the images' shapes and resolutions differ. Held-out images are the validation split.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat

import numpy as np
import torch

from loaders import LoaderConfig, Packs, open_loader, open_packs
from loaders.decode.decoders import cut_patches
from loaders.packs import lay_out
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD
from train.batches.masks import PackMaskConfig, draw_pack_masks
from train.models.mae import MAEConfig
from train.models.packed import Packed, PackedMAE, normalize_patches
from train.models.vit import BlockConfig

PACKS = Packs(patch=16, tokens=256, images=4)
SIDE = 8
"""Patches along a side of a square: 64, the mean of a pack's images."""
BATCH = 16
SEED = 0


def trained(dataset: str, kind: str, steps: int) -> PackedMAE:
    """Train on `packs` or `squares`."""
    torch.manual_seed(SEED)
    block, decoder = BlockConfig(dim=96, num_heads=3), BlockConfig(dim=64, num_heads=2)
    config = MAEConfig(
        image_size=16,
        patch_size=16,
        encoder=block,
        encoder_depth=4,
        decoder=decoder,
        decoder_depth=2,
        norm_pix_loss=True,
    )
    model = PackedMAE(config, PACKS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps, pct_start=0.1)
    for step, (packed, segments) in zip(range(steps), _batches(dataset, "train", kind), strict=False):
        loss, _ = _forward(model, packed, segments, range(step * BATCH, (step + 1) * BATCH))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model


@torch.no_grad()
def held_out_errors(dataset: str, model: PackedMAE) -> dict[str, float]:
    """Return the mean error of hidden patches for each held-out image, averaged, at its own shape and as a square."""
    model.eval()
    found = {}
    for kind in ("packs", "squares"):
        errors = []
        for number, (packed, segments) in enumerate(_batches(dataset, "val", kind)):
            _, each = _forward(model, packed, segments, range(number * BATCH, (number + 1) * BATCH))
            errors += each
        found[kind] = float(np.mean(errors))
    return found


def _forward(
    model: PackedMAE, packed: Packed, segments: np.ndarray, positions: range
) -> tuple[torch.Tensor, list[float]]:
    """Return the loss, and the error of each image."""
    masks = draw_pack_masks(PackMaskConfig(packs=PACKS), seed=SEED, positions=positions, segments_RT=segments)
    visible, is_visible, place = (
        torch.from_numpy(each) for each in (masks.visible_RK, masks.is_visible_RK, masks.place_RT)
    )
    output = model(packed, visible.long(), is_visible, place.long())
    errors = []
    for image in range(1, PACKS.images + 1):
        hidden = output.hidden_RT * (packed.segments_RT == image)
        counts, sums = hidden.sum(dim=1), (output.error_RT * hidden).sum(dim=1)
        errors += (sums / counts)[counts > 0].tolist()
    return output.loss, errors


def _batches(dataset: str, split: str, kind: str) -> Iterator[tuple[Packed, np.ndarray]]:
    if kind == "packs":
        packs = Packs(patch=16, tokens=PACKS.tokens, images=PACKS.images, crop=(0.2, 1.0))
        with open_packs(dataset, split, batch_size=BATCH, packs=packs, threads=2) as loader:
            for batch in chain.from_iterable(repeat(loader)) if split == "train" else loader:
                yield _packed(batch.images, batch.segments, batch.positions, batch.grids), batch.segments
        return
    size = SIDE * PACKS.patch
    with open_loader(dataset, split, batch_size=BATCH, image_size=size, threads=2, **_scale(split)) as squares:
        for batch in chain.from_iterable(repeat(squares)) if split == "train" else squares:
            rows = BATCH // PACKS.images
            patches = np.zeros((rows, PACKS.tokens, PACKS.patch_bytes), np.uint8)
            for number, image in enumerate(batch.images):
                cut_patches(image, patches, number * SIDE**2)
            grids = np.full((rows, PACKS.images, 2), SIDE, np.int32)
            layout = lay_out(grids, batch.mask.reshape(rows, -1), PACKS.tokens)
            yield _packed(patches, layout.segments_RT, layout.positions_RT2, grids), layout.segments_RT


def _scale(split: str) -> dict[str, tuple[float, float]]:
    return {"scale": LoaderConfig(batch_size=1).scale} if split == "train" else {}


def _packed(patches: np.ndarray, segments: np.ndarray, positions: np.ndarray, grids: np.ndarray) -> Packed:
    normalized = normalize_patches(torch.from_numpy(patches), mean=IMAGENET_MEAN, std=IMAGENET_STD)
    return Packed(normalized, *(torch.from_numpy(each) for each in (segments, positions, grids)))
