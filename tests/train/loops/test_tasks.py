"""Classifiers on real shards: every validation image counts once, and parts add up to the whole."""

import io
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from dataprep.demo.make import write_demo
from dataprep.errors import DataprepError, UsageError
from loaders import Packs, open_packs
from loaders.config import LoaderConfig
from loaders.torch import TorchBatch, TorchBatches, normalize
from tests.support.finished import build_here
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD, Data, classes_of, open_data
from train.batches.masks import MaskConfig, PackMaskConfig, draw_masks
from train.batches.mixing import MixConfig, Mixer
from train.loops.runtime import open_runtime
from train.loops.tasks import ClassifierTask, MAETask, PackedClassifierTask, PackedMAETask, reconstruction_png
from train.models.mae import MAEConfig, MaskedAutoencoder
from train.models.packed import PackedMAE, PackedViT
from train.models.registry import create_model, mae_config
from train.models.vit import BlockConfig, ViTConfig


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Data:
    """Photographs with both splits."""
    originals = tmp_path_factory.mktemp("originals")
    write_demo("imagenet", originals, images=70, odd=False)
    return open_data(build_here("imagenet", originals, tmp_path_factory.mktemp("dataset") / "shards", "tfrecord"))


def open_task(data: Data, **settings) -> ClassifierTask:
    torch.manual_seed(0)
    model = create_model("tiny_cnn", image_size=32, num_classes=classes_of(data, None))
    validation = data.validation_loader(LoaderConfig(batch_size=4, image_size=32, threads=1))
    return ClassifierTask(
        model=model, runtime=open_runtime("cpu"), precision="float32", validation=validation, **settings
    )


def test_every_validation_image_counts_once(data):
    task = open_task(data)
    found = task.evaluate()

    every = data.validation_loader(LoaderConfig(batch_size=1, image_size=32, threads=1))
    assert every.order.num_samples % 4, "the last batch must have rows without a sample"
    right, losses = [], []
    with torch.no_grad(), every:
        for batch in every:
            logits = task.model(normalize(torch.from_numpy(batch.images), mean=IMAGENET_MEAN, std=IMAGENET_STD))
            label = torch.from_numpy(batch.labels.copy())
            right.append(logits.argmax() == label[0])
            losses.append(float(F.cross_entropy(logits, label)))
    assert found["images"] == len(losses) == every.order.num_samples
    assert found["accuracy"] == pytest.approx(sum(map(int, right)) / len(right))
    assert found["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert task.evaluate() == found, "a second evaluation begins where the first one did"
    assert task.model.training


def test_an_evaluation_uses_no_random_numbers(data):
    """Dropout is off in an evaluation, and on again when training continues."""
    task = open_task(data)
    plain = task.evaluate()
    task.model = torch.nn.Sequential(torch.nn.Dropout(0.5), task.model)
    assert task.evaluate() == plain
    assert task.model.training


def test_smoothed_labels_give_every_class_its_share(data):
    """Szegedy et al., CVPR 2016: (1 - s) of the label's class, s / C of each; rows without a sample count nothing."""
    batch = first_batch(data)
    batch.labels[3] = -1
    task = open_task(data, label_smoothing=0.3)
    (loss,) = task.parts(batch, range(8))
    with torch.no_grad():
        logits = task.model(normalize(batch.images, mean=IMAGENET_MEAN, std=IMAGENET_STD)).double()
    chances = (logits.exp() / logits.exp().sum(1, keepdim=True)).log()
    rows = [row for row in range(8) if row != 3]
    expected = [-0.7 * chances[row, batch.labels[row]] - 0.3 * chances[row].mean() for row in rows]
    assert loss.item() == pytest.approx(float(sum(expected) / 7), rel=1e-5)


def first_batch(data: Data, masked: tuple[int, ...] = ()) -> TorchBatch:
    """A batch of eight, of which some rows could not be read, as a loader with on_error="skip" delivers them."""
    with data.training_loader(LoaderConfig(batch_size=8, image_size=32, threads=1)) as loader:
        batch = next(open_runtime("cpu").batches(loader))
    for row in masked:
        batch.images[row], batch.labels[row], batch.mask[row] = 0, -1, False
    return batch


def mixer(mix: MixConfig, data: Data) -> Mixer:
    return Mixer(config=mix, put=lambda rows: rows, seed=1, batch_size=lambda: 8, num_classes=data.num_classes)


@pytest.mark.parametrize("mix", [None, MixConfig(mixup=0.8), MixConfig(cutmix=1.0), MixConfig(mixup=0.8, mode="elem")])
def test_images_that_could_not_be_read_take_no_part_in_the_loss(data, mix):
    """The mean of the rows that remain, with the images and labels of their own mixes; row 5's partner is row 2."""
    config = mix and mixer(mix, data)
    batch, whole = first_batch(data, masked=(2, 4)), first_batch(data)
    task = open_task(data, label_smoothing=0.1, mix=config)
    (loss,) = task.parts(batch, range(8))
    loss.backward()
    images = normalize(whole.images, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    shares = F.one_hot(whole.labels, data.num_classes).float()
    if config is not None:
        mixed, mixed_shares = config(images, whole.labels, images.flip(0), whole.labels.flip(0), range(8))
        for row in (0, 1, 6, 7):  # the partners of 3 and 5 were not read
            images[row], shares[row] = mixed[row], mixed_shares[row]
    rows = [0, 1, 3, 5, 6, 7]
    with torch.no_grad():
        due = F.cross_entropy(task.model(images)[rows], shares[rows], label_smoothing=0.1)
    assert loss.item() == pytest.approx(due.item(), rel=1e-5)


@pytest.mark.parametrize("mix", [None, MixConfig(mixup=0.8, cutmix=1.0)])
def test_a_batch_of_which_nothing_could_be_read_changes_nothing(data, mix):
    config = mix and mixer(mix, data)
    task = open_task(data, mix=config)
    (loss,) = task.parts(first_batch(data, masked=tuple(range(8))), range(8))
    loss.backward()
    assert loss.item() == 0
    assert not any(each.grad.any() for each in task.model.parameters() if each.grad is not None)


@pytest.fixture
def bad_photographs(photographs, tmp_path) -> str:
    """Photographs of which one in each split is no image."""
    shutil.copytree(photographs, tmp_path / "bad")
    shutil.copytree(tmp_path / "bad/train", tmp_path / "bad/val")
    for split in ("train", "val"):
        (tmp_path / "bad" / split / "class0/2.jpg").write_bytes(b"not an image")
    return str(tmp_path / "bad")


def test_an_evaluation_counts_the_images_that_could_be_read(bad_photographs, tmp_path):
    data = open_data(bad_photographs, index_dir=str(tmp_path / "index"))
    settings = LoaderConfig(batch_size=4, image_size=32, threads=1, on_error="skip")
    task = replace(open_task(data), validation=data.validation_loader(settings))
    found = task.evaluate()
    assert (found["images"], found["skipped"]) == (11, 1)
    with data.validation_loader(settings) as loader, torch.no_grad():
        rows = [
            (task.model(normalize(batch.images, mean=IMAGENET_MEAN, std=IMAGENET_STD))[row], batch.labels[row])
            for batch in open_runtime("cpu").batches(loader)
            for row in range(4)
            if batch.mask[row]
        ]
    assert found["accuracy"] == pytest.approx(sum(int(each.argmax() == label) for each, label in rows) / 11)
    with pytest.raises(DataprepError, match=r"2\.jpg.*cannot be decoded"):
        open_task(data).evaluate()


def test_losses_of_parts_add_up_to_the_loss_of_the_batch(data):
    batch = first_batch(data)
    (whole,) = open_task(data).parts(batch, range(8))
    parts = list(open_task(data, accum_iter=4).parts(batch, range(8)))
    assert len(parts) == 4
    assert (sum(parts) / 4).item() == pytest.approx(whole.item(), rel=1e-5)


def test_the_mixed_images_and_labels_are_trained_on(data):
    seen, partners = [], []

    def mix(images_NCHW, labels_N, others_NCHW, other_labels_N, positions):
        seen.append(positions)
        partners.extend(other_labels_N.tolist())
        return images_NCHW, F.one_hot(labels_N, data.num_classes).float()

    batch = first_batch(data)
    (plain,) = open_task(data).parts(batch, range(16, 32, 2))
    mixed = list(open_task(data, accum_iter=2, mix=mix).parts(batch, range(16, 32, 2)))
    assert seen == [range(16, 32, 4), range(18, 32, 4)]
    assert partners == [*batch.labels.flip(0)[::2].tolist(), *batch.labels.flip(0)[1::2].tolist()]
    assert (sum(mixed) / 2).item() == pytest.approx(plain.item(), rel=1e-5)


def test_data_without_labels_or_with_more_classes_than_logits_are_refused(data):
    assert classes_of(data, 1000) == 1000
    with pytest.raises(UsageError, match="`num_classes` is 1, but the data have"):
        classes_of(data, 1)
    with pytest.raises(UsageError, match="no labels"):
        classes_of(Data(url="x", splits=("train",), num_classes=None), 10)


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


def test_images_that_could_not_be_read_take_no_part_in_the_loss_of_an_autoencoder(dataset):
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
