"""Tasks in PyTorch, each the losses of a batch: classifiers, masked autoencoders, and both over packs.

Shapes: N images of this host, C classes, H x W pixels, L patches of an image, K of them visible. In packs: R rows of
this host, M images in a row, T tokens.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
import torch.nn.functional as F

from loaders.config import LoaderConfig
from loaders.loader import Loader
from loaders.torch import TorchBatch, TorchPackBatch, normalize
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD
from train.batches.masks import MaskConfig, PackMaskConfig, draw_masks, draw_pack_masks
from train.batches.mixing import Mixer
from train.loops.backend import skipped_images
from train.loops.runtime import open_autocast
from train.loops.torch import Task, rows_of_part
from train.models.mae import MaskedAutoencoder, image_of, patches_of
from train.models.packed import Packed, PackedMAE
from train.telemetry.logs import Logs

NO_LABEL = -1
"""Label of rows without a sample, which do not count."""


def normalised(images_NHWC: torch.Tensor) -> torch.Tensor:
    """Return images of 0..255, NCHW, with mean 0 and standard deviation 1, by ImageNet's statistics."""
    return normalize(images_NHWC, mean=IMAGENET_MEAN, std=IMAGENET_STD)


@dataclass(kw_only=True)
class ClassifierTask(Task):
    """Training of a classifier: cross entropy of its logits."""

    label_smoothing: float = 0.0
    validation: Loader | None = None
    mix: Mixer | None = None

    def parts(self, batch: TorchBatch, positions: range) -> Iterator[torch.Tensor]:
        """Yield the losses of the parts that `rows_of_part` makes."""
        for part in range(self.accum_iter):
            images_NCHW, labels_N = self._part(batch.images, batch.labels, part)
            targets = labels_N
            if self.mix is not None:
                # The partner may be on another device and in another part, so the complete batch is reversed.
                partners = self._part(batch.images.flip(0), batch.labels.flip(0), part)
                images_NCHW, targets = self.mix(images_NCHW, targets, *partners, positions[part :: self.accum_iter])
            with open_autocast(self.runtime.device, self.precision):
                logits_NC = self.model(images_NCHW)
            yield mean_loss(logits_NC.float(), targets, labels_N != NO_LABEL, self.label_smoothing)

    def _part(self, images: torch.Tensor, labels: torch.Tensor, part: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a part's normalised images, NCHW, and labels."""
        images_NHWC, labels_N = (rows_of_part(each, part, self.accum_iter) for each in (images, labels))
        return normalised(images_NHWC), labels_N

    def evaluate(self, is_stopped: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        """Return `accuracy` (0..1) and mean `loss` over all validation images, and `images`, their number; None if the
        evaluation was given up. Raises DataprepError if not every image was counted once, except those that
        `on_error` skip leaves out."""
        if self.validation is None:
            return {}
        self.model.eval()
        correct, loss, counted = (torch.zeros((), device=self.runtime.device) for _ in range(3))
        stopped = False
        with torch.no_grad(), contextlib.closing(self.runtime.batches(self.validation)) as batches:
            for batch in batches:
                losses_N, right_N = self._judge(batch)
                correct = correct + (right_N & batch.mask).sum()
                loss = loss + (losses_N * batch.mask).sum()
                counted = counted + batch.mask.sum()
                self.runtime.end_step()
                if stopped := is_stopped():
                    break
        self.model.train()
        if stopped:
            return None
        images = int(counted)
        skipped = skipped_images(self.validation, images)
        return {"accuracy": float(correct) / images, "loss": float(loss) / images, "images": images, **skipped}

    def _judge(self, batch: TorchBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each image's loss, and whether its class has the largest logit."""
        with open_autocast(self.runtime.device, self.precision):
            logits_NC = self.model(normalised(batch.images)).float()
        losses_N = F.cross_entropy(logits_NC, batch.labels, ignore_index=NO_LABEL, reduction="none")
        return losses_N, logits_NC.argmax(dim=1) == batch.labels


def mean_loss(
    logits_NC: torch.Tensor, targets: torch.Tensor, is_judged_N: torch.Tensor, label_smoothing: float
) -> torch.Tensor:
    """Return the mean cross entropy of the rows that hold samples; 0 if none does.

    Args:
        targets: Labels (N,), or shares of the classes (N, C).
        label_smoothing: Share of a label that is spread over all classes.
    """
    if targets.dim() == 1:  # the mean of no row is NaN, whose gradient nothing below would remove
        is_any = is_judged_N.any()
        targets = torch.where(is_any, targets, 0)
        return is_any * F.cross_entropy(logits_NC, targets, ignore_index=NO_LABEL, label_smoothing=label_smoothing)
    smoothed_NC = targets * (1 - label_smoothing) + label_smoothing / targets.shape[1]
    loss = F.cross_entropy(logits_NC, smoothed_NC * is_judged_N[:, None])
    return loss * (len(targets) / is_judged_N.sum().clamp(min=1))


_GAP_PIXELS = 4


def reconstruction_png(
    model: MaskedAutoencoder, images_NHWC: torch.Tensor, visible_NK: torch.Tensor, place_NL: torch.Tensor
) -> tuple[bytes, int, int]:
    """Return a PNG and its height and width; the model is on the host, images are uint8, NHWC."""
    from PIL import Image

    images_NCHW = normalised(images_NHWC)
    with torch.no_grad():
        output = model(images_NCHW, visible_NK, place_NL)
        painted_NPV = output.prediction
        if model.config.norm_pix_loss:  # mean and standard deviation of a patch are not predicted
            variance, center = torch.var_mean(patches_of(images_NCHW, model.prediction_pixels), -1, keepdim=True)
            painted_NPV = painted_NPV * variance.sqrt() + center
    scale, shift = (torch.tensor(each)[:, None, None] for each in (IMAGENET_STD, IMAGENET_MEAN))
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
    masks: MaskConfig
    loader: Loader
    seed: int

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
                loss: torch.Tensor = self.model(normalised(images_NHWC), visible, place, mask).loss
            yield loss

    def picture(self, weights: Mapping[str, Any], step: int, logs: Logs) -> None:
        """Log predictions for the same few images each time, computed on the host so that no device compiles for it."""
        if logs.folder is None:
            return
        model = MaskedAutoencoder(self.model.config)
        model.load_state_dict(weights)
        masks = draw_masks(self.masks, seed=self.seed, positions=range(len(self._shown)))
        visible_NK, place_NL = (torch.from_numpy(each).long() for each in (masks.visible_NK, masks.place_NL))
        png, height, width = reconstruction_png(model, self._shown, visible_NK, place_NL)
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


@dataclass(kw_only=True)
class PackedClassifierTask(ClassifierTask):
    """Training of a classifier: cross entropy of the logits of each image."""

    def parts(self, batch: TorchBatch, positions: range) -> Iterator[torch.Tensor]:
        """Yield the losses of the parts that `rows_of_part` makes."""
        for part in range(self.accum_iter):
            logits_NC, labels_N = self._logits(batch, part, self.accum_iter)
            yield mean_loss(logits_NC, labels_N, labels_N != NO_LABEL, self.label_smoothing)

    def _logits(self, batch: TorchBatch, part: int, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and labels of all images of a part."""
        packed = part_of(batch, part, parts)
        with open_autocast(self.runtime.device, self.precision):
            logits_RMC = self.model(*packed)
        return logits_RMC.float().flatten(0, 1), rows_of_part(batch.labels, part, parts).flatten()

    def _judge(self, batch: TorchBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each image's loss, and whether its class has the largest logit; both (R, M)."""
        logits_NC, labels_N = self._logits(batch, 0, 1)
        losses_N = F.cross_entropy(logits_NC, labels_N, ignore_index=NO_LABEL, reduction="none")
        right_N = logits_NC.argmax(dim=1) == labels_N
        return losses_N.view_as(batch.mask), right_N.view_as(batch.mask)


@dataclass(kw_only=True)
class PackedMAETask(Task):
    """Training of a masked autoencoder: the error of the hidden patches."""

    model: PackedMAE
    masks: PackMaskConfig
    seed: int

    def parts(self, batch: TorchBatch, positions: range) -> Iterator[torch.Tensor]:
        """Yield the losses of the parts that `rows_of_part` makes; masks are drawn on the host."""
        segments_RT = cast(TorchPackBatch, batch).segments_on_host
        drawn = draw_pack_masks(self.masks, seed=self.seed, positions=positions, segments_RT=segments_RT)
        masks = [
            self.runtime.put(torch.from_numpy(each)) for each in (drawn.visible_RK, drawn.is_visible_RK, drawn.place_RT)
        ]
        for part in range(self.accum_iter):
            packed = part_of(batch, part, self.accum_iter)
            visible, is_visible, place = (rows_of_part(each, part, self.accum_iter) for each in masks)
            with open_autocast(self.runtime.device, self.precision):
                loss: torch.Tensor = self.model(packed, visible.long(), is_visible, place.long()).loss
            yield loss


def part_of(batch: TorchBatch, part: int, parts: int) -> Packed:
    """Return the normalised tokens of a part of a batch of packs, without a copy to other devices."""
    packs = cast(TorchPackBatch, batch)  # as the loader of a run with packs yields them
    fields = (packs.images, packs.segments, packs.positions, packs.grids)
    patches, segments, positions, grids = (rows_of_part(each, part, parts) for each in fields)
    return Packed(normalised_patches(patches), segments, positions, grids)


def normalised_patches(patches_RTV: torch.Tensor) -> torch.Tensor:
    """Return patches of 0..255, uint8, with mean 0 and standard deviation 1, by ImageNet's statistics."""
    pixels = patches_RTV.view(*patches_RTV.shape[:-1], -1, 3)
    mean_C, std_C = (255 * torch.tensor(each, device=pixels.device) for each in (IMAGENET_MEAN, IMAGENET_STD))
    found: torch.Tensor = (pixels - mean_C) / std_C
    return found.flatten(-2)
