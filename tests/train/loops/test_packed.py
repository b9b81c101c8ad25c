"""Tasks over packs on the demo's photographs: parts of a batch, and every validation image counted once."""

import math

import pytest
import torch

from loaders import Packs, open_packs
from loaders.torch import TorchBatches
from train.batches.masks import PackMaskConfig
from train.loops.runtime import open_runtime
from train.loops.tasks import PackedClassifierTask, PackedMAETask
from train.models.mae import MAEConfig
from train.models.packed import PackedMAE, PackedViT
from train.models.vit import BlockConfig, ViTConfig

PACKS = Packs(tokens=24, images=2, patch=8)
BLOCK = BlockConfig(dim=16, num_heads=2)


@pytest.fixture(scope="module")
def batch(dataset):
    with open_packs(dataset, batch_size=8, packs=PACKS, threads=1) as loader:
        return next(iter(TorchBatches(loader)))


def test_a_classifiers_loss_is_the_mean_over_images_and_an_evaluation_counts_each_once(dataset, batch):
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=8, patch_size=8, depth=1, block=BLOCK, num_classes=9, pool="average_of_normed", class_token=False
    )
    with open_packs(dataset, "val", batch_size=8, packs=PACKS, threads=1) as validation:
        task = PackedClassifierTask(
            model=PackedViT(config, PACKS), runtime=open_runtime("cpu"), precision="auto", validation=validation
        )
        found = task.evaluate()
        assert found["images"] == validation.order.num_samples
        assert math.isfinite(found["loss"])
        assert 0 <= found["accuracy"] <= 1
    (whole,) = task.parts(batch, range(8))
    task.accum_iter = 2
    assert torch.allclose(sum(task.parts(batch, range(8))) / 2, whole, atol=1e-5)


def test_a_masked_autoencoders_parts_share_the_masks_of_the_batch(batch):
    torch.manual_seed(0)
    config = MAEConfig(
        image_size=8, patch_size=8, encoder=BLOCK, encoder_depth=1, decoder=BLOCK, decoder_depth=1, norm_pix_loss=True
    )
    task = PackedMAETask(
        model=PackedMAE(config, PACKS),
        runtime=open_runtime("cpu"),
        masks=PackMaskConfig(packs=PACKS),
        seed=0,
        accum_iter=1,
        precision="auto",
    )
    (whole,) = task.parts(batch, range(8))
    task.accum_iter = 2
    parts = [part.item() for part in task.parts(batch, range(8))]
    assert min(parts) <= whole.item() <= max(parts)
