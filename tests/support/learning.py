"""What training learns: to paint photographs, features that tell textures apart, and 500 images by heart; and the flags
of a ResNet's long runs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dataprep.demo.make import write_demo
from loaders.config import LoaderConfig
from loaders.torch import normalize
from tests.support.finished import build_here
from tests.support.textures import FIT_IMAGES, LEAST_FIT, SIDE, TEXTURES, write_textures
from train import finetune_mae, pretrain_mae, train_resnet, train_vit
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD, open_data
from train.batches.masks import MaskConfig, draw_masks
from train.checkpoints.checkpoint import CheckpointFolder
from train.finetune_mae import recipe_flags
from train.loops.loop import Training
from train.loops.tasks import reconstruction_png
from train.models.mae import MaskedAutoencoder
from train.models.registry import mae_config
from train.pretrain_mae import PretrainMAE as PretrainFlags
from train.train_resnet import STEPS, TrainResNet
from train.train_vit import TrainViT

MODEL = "mae_vit_micro_patch8"
"""2 blocks, 64 wide; of these images 64 patches."""
MICRO = {"input_size": SIDE, "device": "cpu", "log_interval_steps": 10}
PRETRAIN = {**MICRO, "num_workers": 1, "model": MODEL, "effective_batch_size": 64, "blr": 8e-3}
PROBE = {
    **MICRO,
    "linear_probe": True,
    "global_pool": True,
    "effective_batch_size": 100,
    "lr": 8.0,
    "epochs": 30,
    "warmup_epochs": 3,
    "min_crop": 0.6,
}
VIT = {
    "image_size": SIDE,
    "patch_size": 8,
    "embed_dim": 64,
    "num_heads": 2,
    "num_blocks": 4,
    "num_classes": len(TEXTURES),
    "min_crop": 1.0,
    "batch_size": 50,
    "epochs": 50,
    "warmup_steps": 40,
    "lr": 2e-3,
    "weight_decay": 0.05,
    "num_workers": 1,
    "device": "cpu",
}
"""Whole images, mirrored or not: nothing else is drawn."""
RESNET = {
    "model": "resnet18",
    "image_size": 32,
    "batch_size": 50,
    "min_crop": 1.0,
    "lr": 0.01,
    "lr_scheduler_type": STEPS,
    "lr_scheduler_divide_every_n_epochs": 20.0,
    "epochs": 30,
    "ckpt_interval": 30,
    "log_interval_steps": 10,
    "num_workers": 1,
}
RESNET_EXACT = {
    "model": "resnet18",
    "image_size": 32,
    "batch_size": 8,
    "lr": 0.02,
    "epochs": 30,
    "max_steps": 200,
    "ckpt_interval_steps": 10,
    "log_interval_steps": 1,
    "num_workers": 2,
}
PICTURE = Path("build/soak/reconstruction.png")
"""Held-out crops of photographs: original, what was seen, what was painted, both together."""
MOST_ERROR = 0.5
"""Largest error allowed, relative to painting the mean patch, over held-out photographs."""
STANDARD_ERRORS = 3.0


def reconstructs(folder: Path) -> str:
    """Pretrain on the demo's photographs; held-out crops of them are painted better than by the mean patch."""
    write_demo("imagenet", folder / "originals", images=400, odd=False)
    data = build_here("imagenet", folder / "originals", folder / "shards", "webdataset")
    checkpoint, losses = pretrained(data, folder / "mae", epochs=160, warmup_epochs=8)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    error, constant = reconstructed(data, checkpoint, PICTURE)
    fallen = np.mean(losses[:2]) / np.mean(losses[-10:])
    text = f"loss fallen by a factor of {fallen:.1f}; held-out error {error:.3f}, of the mean patch {constant:.3f}"
    assert error < MOST_ERROR * constant, text
    assert fallen > 1 / MOST_ERROR, text
    return text


def learns(folder: Path) -> str:
    """Pretrain on textures; a linear probe of the features beats that of a random encoder, and chance."""
    images = 1000
    data = write_textures(folder / "textures", images=2000, val_images=images)
    checkpoint, losses = pretrained(data, folder / "mae", epochs=60, warmup_epochs=5, norm_pix_loss=True, min_crop=0.6)
    error, constant = reconstructed(data, checkpoint, folder / "reconstruction.png")
    probes = {"pretrained": checkpoint, "random": random_encoder(folder)}
    found = {name: probed(data, folder / name, path) for name, path in probes.items()}
    margins = [
        (found["pretrained"] - other) / standard_error(found["pretrained"], other, images)
        for other in (found["random"], 1 / len(TEXTURES))
    ]
    text = (
        f"loss {losses[0]:.2f} to {losses[-1]:.2f}; held-out error {error:.3f}, of the mean patch {constant:.3f}; "
        f"probe {found['pretrained']:.1%}, of a random encoder {found['random']:.1%}, chance {1 / len(TEXTURES):.0%}: "
        f"{margins[0]:.1f} and {margins[1]:.1f} standard errors"
    )
    assert error < constant, text
    assert min(margins) > STANDARD_ERRORS, text
    return text


def fits(folder: Path) -> str:
    """A small ViT knows 500 images after it was trained on them."""
    data = write_textures(folder / "textures", images=FIT_IMAGES)
    training = train_vit.open_training(TrainViT(**VIT, data_path=data, output_dir=str(folder / "run")))
    training.run()
    return known(training, data)


def fits_resnet(folder: Path) -> str:
    """A ResNet-18 knows 500 textures of five classes after it was trained on them."""
    data = write_textures(folder / "textures", images=FIT_IMAGES)
    flags = TrainResNet(**RESNET, data_path=data, output_dir=str(folder / "run"), device="cpu")
    training = train_resnet.open_training(flags)
    training.run()
    return known(training, data)


def pretrained(data: str, folder: Path, **flags: Any) -> tuple[str, list[float]]:
    """Pretrain the micro MAE; its checkpoint, and the losses of the log."""
    flags = {**PRETRAIN, "data_path": data, "output_dir": str(folder), **flags}
    pretrain_mae.open_training(PretrainFlags(**flags)).run()
    (newest, *_) = CheckpointFolder(str(folder)).list()
    return str(folder / newest.name), [line["loss"] for line in logged(folder) if "loss" in line]


def probed(data: str, folder: Path, checkpoint: str) -> float:
    """The accuracy of a linear probe of a checkpoint's encoder, when it is done."""
    flags = recipe_flags(**PROBE, data_path=data, output_dir=str(folder), finetune=checkpoint)
    finetune_mae.open_training(flags).run()
    return float([line["val_accuracy"] for line in logged(folder) if "val_accuracy" in line][-1])


def random_encoder(folder: Path, seed: int = 1) -> str:
    """A file of weights that nothing was learned with."""
    torch.manual_seed(seed)
    path = folder / f"random-{seed}.pth"
    torch.save({"model": MaskedAutoencoder(mae_config(MODEL, image_size=SIDE)).state_dict()}, path)
    return str(path)


def reconstructed(data: str, checkpoint: str, picture: Path) -> tuple[float, float]:
    """Mean squared errors over hidden patches of held-out images: the model's, and that of the mean patch's.

    The mean patch is that of these very images, so that nothing constant could do better.
    """
    state = torch.load(checkpoint, weights_only=True)
    config = mae_config(MODEL, image_size=SIDE, norm_pix_loss=state["description"]["norm_pix_loss"])
    model = MaskedAutoencoder(config).eval()
    model.load_state_dict(state["model"])
    images_NHWC = torch.cat([torch.from_numpy(each) for each in held_out(data)])
    images = normalize(images_NHWC, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    masks = draw_masks(MaskConfig(grid=config.grid), seed=7, positions=range(len(images)))
    visible, place = (torch.from_numpy(each).long() for each in (masks.visible_NK, masks.place_NL))
    with torch.no_grad():
        output = model(images, visible, place)
    target_NPV = model.targets(images)
    error_NP = (target_NPV - target_NPV.mean(dim=(0, 1))).square().mean(dim=-1)
    constant = (error_NP * output.hidden).sum() / output.hidden.sum()
    shown = [each[:: max(1, len(images) // 10)] for each in (images_NHWC, visible, place)]
    png, _, _ = reconstruction_png(model, *shown)
    picture.write_bytes(png)
    return float(output.loss), float(constant)


def held_out(data: str) -> Iterator[np.ndarray]:
    """Batches of the validation images, (N, SIDE, SIDE, 3), uint8."""
    loader = open_data(data).validation_loader(LoaderConfig(batch_size=50, image_size=SIDE, threads=1))
    assert loader is not None
    with loader:
        for batch in loader:
            yield batch.images[batch.mask]


def known(training: Training, data: str) -> str:
    """The share of the images that a classifier knows, as it saw them: whole, without the crop of an evaluation.

    Args:
        training: Done.
        data: What it was trained on.
    """
    config = training.loader.config
    training.backend.task.validation = open_data(data).training_loader(
        LoaderConfig(
            batch_size=50,
            image_size=config.image_size,
            resize=config.image_size,
            interpolation=config.interpolation,
            shuffle=False,
            augment=False,
            threads=1,
        )
    )
    with training.backend.task.validation:
        found = training.backend.task.evaluate()
    text = f"{found['accuracy']:.1%} of {found['images']} images"
    assert found["images"] == FIT_IMAGES, text
    assert found["accuracy"] > LEAST_FIT, text
    return text


def standard_error(accuracy: float, other: float, images: int) -> float:
    """Return the standard error of the difference between two accuracies, each over `images` images."""
    return math.sqrt(sum(each * (1 - each) for each in (accuracy, other)) / images)


def logged(folder: Path) -> list[dict[str, Any]]:
    """A run's log."""
    return [json.loads(line) for line in (folder / "log.txt").read_text().splitlines()]
