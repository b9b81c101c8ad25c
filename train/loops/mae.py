"""The task of masked autoencoders in PyTorch.

Shapes: N images of this host, H x W pixels, C = 3 channels, L patches of an image, K of them visible.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from loaders.config import LoaderConfig
from loaders.loader import Loader
from loaders.torch import TorchBatch, normalize
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD
from train.batches.masks import MaskConfig, draw_masks
from train.loops.runtime import Runtime, open_autocast
from train.loops.torch import Task, rows_of_part
from train.models.mae import MaskedAutoencoder, image_of, patches_of
from train.telemetry.logs import Logs

_GAP_PIXELS = 4


def reconstruction_png(
    model: MaskedAutoencoder,
    images_NHWC: torch.Tensor,
    visible_NK: torch.Tensor,
    place_NL: torch.Tensor,
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> tuple[bytes, int, int]:
    """Return a PNG and its height and width.

    Args:
        model: Model on the host.
        images_NHWC: Images, uint8.
        visible_NK: As `MaskedAutoencoder.forward` takes it.
        place_NL: As `MaskedAutoencoder.forward` takes it.
        mean: Mean of each channel, for values of 0..1, as the model was trained with.
        std: Standard deviation of each channel, for values of 0..1, as the model was trained with.
    """
    from PIL import Image

    images_NCHW = normalize(images_NHWC, mean=mean, std=std)
    with torch.no_grad():
        output = model(images_NCHW, visible_NK, place_NL)
        painted_NPV = output.prediction_NPV
        if model.config.norm_pix_loss:  # mean and standard deviation of a patch are not predicted
            variance, center = torch.var_mean(patches_of(images_NCHW, model.prediction_pixels), -1, keepdim=True)
            painted_NPV = painted_NPV * variance.sqrt() + center
    scale, shift = (torch.tensor(each)[:, None, None] for each in (std, mean))
    painted = ((image_of(painted_NPV) * scale + shift) * 255).clamp(0, 255).byte()
    original = images_NHWC.permute(0, 3, 1, 2)
    grid = model.config.grid
    hidden = (place_NL >= visible_NK.shape[1]).view(-1, 1, grid, grid)
    hidden = hidden.repeat_interleave(model.config.patch_size, 2).repeat_interleave(model.config.patch_size, 3)
    gray = torch.full_like(original, 128)
    columns = [original, torch.where(hidden, gray, original), painted, torch.where(hidden, painted, original)]
    framed = [torch.nn.functional.pad(each, (0, _GAP_PIXELS, 0, _GAP_PIXELS), value=255) for each in columns]
    picture = torch.cat([torch.cat(list(row), dim=2) for row in zip(*framed, strict=True)], dim=1)
    stream = io.BytesIO()
    Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy()).save(stream, "PNG")
    return stream.getvalue(), picture.shape[1], picture.shape[2]


_PICTURE_IMAGES = 4
"""Number of images in the picture that is made after each checkpoint."""


@dataclass(kw_only=True)
class MAETask(Task):
    """Training of a masked autoencoder, with a picture of its predictions after each checkpoint."""

    model: MaskedAutoencoder
    runtime: Runtime
    masks: MaskConfig
    loader: Loader
    seed: int
    accum_iter: int
    precision: str

    def parts(self, batch: TorchBatch, positions: range) -> Iterator[torch.Tensor]:
        """Yield the losses of the parts that `rows_of_part` makes."""
        own = self.loader.positions(positions.start // self.loader.config.batch_size)
        masks = draw_masks(self.masks, seed=self.seed, positions=own)
        visible_NK, place_NL = (
            self.runtime.put(torch.from_numpy(each)).long() for each in (masks.visible_NK, masks.place_NL)
        )
        for part in range(self.accum_iter):
            images_NHWC, visible, place, mask = (
                rows_of_part(each, part, self.accum_iter) for each in (batch.images, visible_NK, place_NL, batch.mask)
            )
            with open_autocast(self.runtime.device, self.precision):
                loss: torch.Tensor = self.model(_normalised(images_NHWC), visible, place, mask).loss
            yield loss

    def picture(self, weights: Mapping[str, Any], step: int, logs: Logs) -> None:
        """Log predictions for the same few images each time, computed on the host so that no device compiles for it."""
        if logs.folder is None:
            return
        model = MaskedAutoencoder(self.model.config)
        model.load_state_dict(weights)
        masks = draw_masks(self.masks, seed=self.seed, positions=range(len(self._shown)))
        visible_NK, place_NL = (torch.from_numpy(each).long() for each in (masks.visible_NK, masks.place_NL))
        png, height, width = reconstruction_png(
            model, self._shown, visible_NK, place_NL, mean=IMAGENET_MEAN, std=IMAGENET_STD
        )
        logs.picture(step, "reconstruction", png, height=height, width=width)

    @cached_property
    def _shown(self) -> torch.Tensor:
        """The first images of the dataset, NHWC, uint8."""
        config = LoaderConfig(
            batch_size=min(_PICTURE_IMAGES, self.loader.order.num_samples),
            image_size=self.loader.config.image_size,
            shuffle=False,
            augment=False,
            threads=1,
            on_error=self.loader.config.on_error,
        )
        with Loader(self.loader.dataset, config) as few:
            return torch.from_numpy(next(iter(few)).images.copy())


def _normalised(images_NHWC: torch.Tensor) -> torch.Tensor:
    return normalize(images_NHWC, mean=IMAGENET_MEAN, std=IMAGENET_STD)
