"""The task of masked autoencoders: its losses are the model's, with the masks of the samples' positions."""

import numpy as np
import pytest
import torch

from loaders.config import LoaderConfig
from loaders.torch import TorchBatches, normalize
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD, open_data
from train.batches.masks import MaskConfig, draw_masks
from train.loops.runtime import open_runtime
from train.loops.tasks import MAETask
from train.models.registry import create_model


def test_each_part_has_the_loss_of_its_rows(dataset):
    model = create_model("mae_vit_micro_patch8", image_size=32)
    masks = MaskConfig(grid=4)
    with open_data(dataset).training_loader(LoaderConfig(batch_size=8, image_size=32, threads=1)) as loader:
        batch = next(iter(TorchBatches(loader)))
        task = MAETask(
            model=model, runtime=open_runtime("cpu"), masks=masks, loader=loader, seed=3, accum_iter=2, precision="auto"
        )
        found = [loss.item() for loss in task.parts(batch, range(8))]
    drawn = draw_masks(masks, seed=3, positions=range(8))
    for part, loss in enumerate(found):
        rows = np.arange(part, 8, 2)
        images = normalize(batch.images[rows], mean=IMAGENET_MEAN, std=IMAGENET_STD)
        indices = (torch.from_numpy(each[rows]).long() for each in (drawn.visible_NK, drawn.place_NL))
        assert loss == pytest.approx(model(images, *indices).loss.item(), rel=1e-5)


def test_images_that_could_not_be_read_take_no_part_in_the_loss(dataset):
    model = create_model("mae_vit_micro_patch8", image_size=32)
    drawn = draw_masks(MaskConfig(grid=4), seed=3, positions=range(8))
    images = torch.randn(8, 3, 32, 32)
    indices = [torch.from_numpy(each).long() for each in (drawn.visible_NK, drawn.place_NL)]
    mask = torch.tensor([True, False, True, True, False, True, True, True])
    due = model(images[mask], *(each[mask] for each in indices)).loss.item()
    images[~mask] = 0
    assert model(images, *indices, mask).loss.item() == pytest.approx(due, rel=1e-5)
    assert model(images, *indices, mask | True).loss.item() == model(images, *indices).loss.item()
    loss = model(images, *indices, mask & False).loss
    loss.backward()
    assert loss.item() == 0
    assert not any(each.grad.any() for each in model.parameters() if each.grad is not None)
