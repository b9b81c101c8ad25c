"""What training learns, on data of which it is known what there is to learn: drawn textures in five classes.

python -m tests.support.learning FOLDER       reconstructs and probes, then fits; a line each

A texture's class is its form; colours, scale, angle and place are drawn for each image: no mean colour tells it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from loaders.torch import normalize
from train.checkpoint import CheckpointFolder
from train.data import IMAGENET_MEAN, IMAGENET_STD, open_data
from train.finetune_flags import Flags, recipe_flags
from train.finetune_mae import open_training
from train.mae_flags import Flags as PretrainFlags
from train.masks import MaskConfig, draw_masks
from train.models import mae_config
from train.models.mae import MaskedAutoencoder
from train.pretrain_mae import open_training as open_pretraining
from train.reconstruction import reconstruction_png

SIDE = 64
"""Of the textures, pixels."""
LEAST_FIT = 0.95
Field = NDArray[np.float64]


def _stripes(x: Field, y: Field) -> Field:
    return np.sin(x)


def _checks(x: Field, y: Field) -> Field:
    return np.sin(x) * np.sin(y) * 2


def _dots(x: Field, y: Field) -> Field:
    return np.cos(x) + np.cos(y) - 1.1


def _rings(x: Field, y: Field) -> Field:
    return np.sin(np.hypot(x, y))


def _waves(x: Field, y: Field) -> Field:
    return np.sin(x + 2 * np.sin(y / 2))


TEXTURES: dict[str, Callable[[Field, Field], Field]] = {
    "stripes": _stripes,
    "checks": _checks,
    "dots": _dots,
    "rings": _rings,
    "waves": _waves,
}
MICRO = {"input_size": SIDE, "device": "cpu", "log_interval_steps": 10, "num_workers": 0}
"""Flags of all runs here, with the micro encoder: 2 blocks, 64 wide, 8 pixels a patch, 64 patches."""
PRETRAIN = {**MICRO, "num_workers": 2, "model": "mae_vit_micro_patch8", "effective_batch_size": 64, "blr": 4e-3}
PLAIN = {"aa": "", "reprob": 0.0, "smoothing": 0.0, "drop_path": 0.0, "min_crop": 1.0}
"""Fine-tuning that only flips."""


def draw_texture(name: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """One image, uint8, (SIDE, SIDE, 3)."""
    angle, scale = rng.uniform(0, 2 * np.pi), rng.uniform(0.25, 0.5)
    shift = rng.uniform(-20, 20, 2)
    row, column = np.mgrid[:SIDE, :SIDE]
    across, down = column - SIDE / 2 + shift[0], row - SIDE / 2 + shift[1]
    x, y = (
        scale * (np.cos(angle) * across - np.sin(angle) * down),
        scale * (np.sin(angle) * across + np.cos(angle) * down),
    )
    share_HW1 = 1 / (1 + np.exp(-4 * TEXTURES[name](x, y)))[:, :, None]
    colors = rng.uniform(0, 255, (2, 3))
    while np.abs(colors[0] - colors[1]).sum() < 200:
        colors = rng.uniform(0, 255, (2, 3))
    pixels = share_HW1 * colors[0] + (1 - share_HW1) * colors[1] + rng.normal(0, 6, (SIDE, SIDE, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def write_textures(folder: Path, *, images: int, val_images: int, seed: int = 0) -> Path:
    """A folder of classes with splits `train` and `val`."""
    rng = np.random.default_rng(seed)
    for split, count in (("train", images), ("val", val_images)):
        for index in range(count):
            name = list(TEXTURES)[index % len(TEXTURES)]
            path = folder / split / name / f"{index:05d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw_texture(name, rng)).save(path, quality=92)
    return folder


def pretrained(data: str, folder: Path, **flags: Any) -> tuple[str, list[float]]:
    """Pretrain the micro MAE; its checkpoint, and the losses of the log."""
    training = open_pretraining(PretrainFlags(**{**PRETRAIN, "data_path": data, "output_dir": str(folder), **flags}))
    if training.run():
        raise RuntimeError("stopped by a signal")
    (newest, *_) = CheckpointFolder(str(folder)).list()
    return str(folder / newest.name), [line["loss"] for line in logged(folder) if "loss" in line]


def probed(data: str, folder: Path, checkpoint: str, **flags: Any) -> float:
    """The best accuracy of a linear probe of a checkpoint's encoder."""
    values = {
        "linear_probe": True,
        "finetune": checkpoint,
        "effective_batch_size": 64,
        "lr": 5.0,
        "global_pool": True,
        **flags,
    }
    return _accuracy(recipe_flags(**{**MICRO, "data_path": data, "output_dir": str(folder), **values}))


def fitted(data: str, folder: Path, **flags: Any) -> float:
    """The best accuracy of a micro ViT that is trained from random weights."""
    values = {**PLAIN, "model": "vit_micro_patch8", "effective_batch_size": 50, "layer_decay": 1.0, **flags}
    return _accuracy(recipe_flags(**{**MICRO, "data_path": data, "output_dir": str(folder), **values}))


def random_encoder(folder: Path, seed: int = 1) -> str:
    """A file of weights that nothing was learned with."""
    torch.manual_seed(seed)
    path = folder / f"random-{seed}.pth"
    folder.mkdir(parents=True, exist_ok=True)
    model = MaskedAutoencoder(mae_config("mae_vit_micro_patch8", image_size=SIDE))
    torch.save({"model": model.state_dict()}, path)
    return str(path)


def reconstructed(data: str, checkpoint: str, picture: Path) -> tuple[float, float]:
    """Mean squared errors over hidden patches of held-out images: the model's, and that of the mean patch's.

    The mean patch is that of these very images, so that nothing constant could do better.
    """
    state = torch.load(checkpoint, weights_only=True)
    config = mae_config(state["description"]["model"], image_size=state["description"]["input_size"])
    model = MaskedAutoencoder(config).eval()
    model.load_state_dict(state["model"])
    loader = open_data(data).validation_loader(batch_size=50, image_size=config.image_size, threads=1)
    assert loader is not None
    with loader:  # every fifth image, so that all classes are among them
        images_NHWC = torch.cat([torch.from_numpy(batch.images[::5].copy()) for batch in loader])
    images = normalize(images_NHWC, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    masks = draw_masks(MaskConfig(grid=config.grid), seed=7, positions=range(len(images)))
    visible, place = (torch.from_numpy(each).long() for each in (masks.visible_NK, masks.place_NL))
    with torch.no_grad():
        output = model(images, visible, place)
    target_NPV = model.targets(images)
    error_NP = (target_NPV - target_NPV.mean(dim=(0, 1))).square().mean(dim=-1)
    constant = (error_NP * output.hidden_NP).sum() / output.hidden_NP.sum()
    shown = [each[:: len(images) // 10] for each in (images_NHWC, images, visible, place)]
    png, _, _ = reconstruction_png(model, *shown, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    picture.write_bytes(png)
    return float(output.loss), float(constant)


def logged(folder: Path) -> list[dict[str, Any]]:
    """A run's log."""
    return [json.loads(line) for line in (folder / "log.txt").read_text().splitlines()]


def _accuracy(flags: Flags) -> float:
    training = open_training(flags)
    if training.run():
        raise RuntimeError("stopped by a signal")
    return max(line["val_accuracy"] for line in logged(Path(flags.output_dir)) if "val_accuracy" in line)


def learns(folder: Path) -> str:
    """Pretrain, look at held-out images, probe; a random encoder, the mean patch and chance must be beaten."""
    data = str(write_textures(folder / "textures", images=1000, val_images=1000))
    checkpoint, losses = pretrained(data, folder / "mae", epochs=80, warmup_epochs=8)
    error, constant = reconstructed(data, checkpoint, folder / "reconstruction.png")
    probes = {"pretrained": checkpoint, "random": random_encoder(folder)}
    found = {name: probed(data, folder / name, path, epochs=20, warmup_epochs=2) for name, path in probes.items()}
    chance = 1 / len(TEXTURES)
    text = (
        f"loss {losses[0]:.2f} to {losses[-1]:.2f}, a factor of {losses[0] / losses[-1]:.1f}; held-out error "
        f"{error:.3f}, of the mean patch {constant:.3f}; probe {found['pretrained']:.1%}, of a random encoder "
        f"{found['random']:.1%}, chance {chance:.0%}"
    )
    assert error < constant, text
    assert chance < found["random"] < found["pretrained"], text
    return text


def fits(folder: Path) -> str:
    """A micro ViT knows 500 images after it was trained on them."""
    few = write_textures(folder / "few", images=500, val_images=0)
    (few / "val").symlink_to(few / "train")
    accuracy = fitted(str(few), folder / "fit", epochs=100, warmup_epochs=5, blr=1e-2)
    assert accuracy > LEAST_FIT, accuracy
    return f"{accuracy:.1%} of 500 images"


def main() -> None:
    for what in (learns, fits):
        print(what(Path(sys.argv[1])), flush=True)


if __name__ == "__main__":
    main()
