"""The task of all classifiers: the loss of a batch, and the accuracy over every validation image once.

Shapes: N images of this host, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

from loaders.loader import Loader
from loaders.torch import TorchBatch, normalize
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD
from train.loops.backend import skipped_images
from train.loops.runtime import Runtime, open_autocast
from train.loops.torch import Task, rows_of_part

NO_LABEL = -1
"""Label of rows without a sample, which do not count."""
Mix: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, range], tuple[torch.Tensor, torch.Tensor]
]
"""Function that mixes the i-th image of a batch with its partner, the i-th from the end.

Takes normalised images, labels, the partners' images and labels, and global positions; returns images and labels, which
become (N, C) shares."""


@dataclass(kw_only=True)
class ClassifierTask(Task):
    """Training of a classifier: cross entropy of its logits."""

    model: nn.Module
    runtime: Runtime
    precision: str
    accum_iter: int = 1
    label_smoothing: float = 0.0
    validation: Loader | None = None
    mix: Mix | None = None

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
        return normalize(images_NHWC, mean=IMAGENET_MEAN, std=IMAGENET_STD), labels_N

    def evaluate(self) -> dict[str, float]:
        """Return `accuracy` (0..1) and mean `loss` over all validation images, and `images`, their number.

        Raises:
            DataprepError: Not every image was counted once, except those that `on_error` skip leaves out.
        """
        if self.validation is None:
            return {}
        self.model.eval()
        correct, loss, counted = (torch.zeros((), device=self.runtime.device) for _ in range(3))
        with torch.no_grad():
            for batch in self.runtime.batches(self.validation):
                losses_N, right_N = self._judge(batch)
                correct = correct + (right_N & batch.mask).sum()
                loss = loss + (losses_N * batch.mask).sum()
                counted = counted + batch.mask.sum()
                self.runtime.end_step()
        self.model.train()
        images = int(counted)
        skipped = skipped_images(self.validation, images)
        return {"accuracy": float(correct) / images, "loss": float(loss) / images, "images": images, **skipped}

    def _judge(self, batch: TorchBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each image's loss, and whether its class has the largest logit."""
        with open_autocast(self.runtime.device, self.precision):
            logits_NC = self.model(normalize(batch.images, mean=IMAGENET_MEAN, std=IMAGENET_STD)).float()
        losses_N = F.cross_entropy(logits_NC, batch.labels, ignore_index=NO_LABEL, reduction="none")
        return losses_N, logits_NC.argmax(dim=1) == batch.labels


def mean_loss(
    logits_NC: torch.Tensor, targets: torch.Tensor, is_judged_N: torch.Tensor, label_smoothing: float
) -> torch.Tensor:
    """Return the mean cross entropy of the rows that hold samples; 0 if none does.

    Args:
        logits_NC: Logits, float32.
        targets: Labels (N,), or shares of the classes (N, C).
        is_judged_N: Whether a row holds a sample.
        label_smoothing: Share of a label that is spread over all classes.
    """
    if targets.dim() == 1:  # the mean of no row is NaN, whose gradient nothing below would remove
        is_any = is_judged_N.any()
        targets = torch.where(is_any, targets, 0)
        return is_any * F.cross_entropy(logits_NC, targets, ignore_index=NO_LABEL, label_smoothing=label_smoothing)
    smoothed_NC = targets * (1 - label_smoothing) + label_smoothing / targets.shape[1]
    loss = F.cross_entropy(logits_NC, smoothed_NC * is_judged_N[:, None])
    return loss * (len(targets) / is_judged_N.sum().clamp(min=1))
