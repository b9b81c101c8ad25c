"""Tasks over packs: the losses of batches whose rows hold several images of any shape.

Shapes: R rows of this host, M images in a row, T tokens, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from dataprep.errors import UsageError
from loaders.torch import TorchBatch, TorchPackBatch
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD
from train.batches.masks import PackMaskConfig, draw_pack_masks
from train.loops.classify import NO_LABEL, ClassifierTask, mean_loss
from train.loops.runtime import Runtime, open_autocast
from train.loops.torch import Task, rows_of_part
from train.models.packed import Packed, PackedMAE, normalize_patches


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
    runtime: Runtime
    masks: PackMaskConfig
    seed: int
    accum_iter: int
    precision: str

    def parts(self, batch: TorchBatch, positions: range) -> Iterator[torch.Tensor]:
        """Yield the losses of the parts that `rows_of_part` makes; masks are drawn on the host."""
        segments_RT = packs_of(batch).segments_on_host
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


def packs_of(batch: TorchBatch) -> TorchPackBatch:
    """Return the batch.

    Raises:
        UsageError: It has squares.
    """
    if not isinstance(batch, TorchPackBatch):
        raise UsageError("a batch of squares, expected packs; open the loader with packs")
    return batch


def part_of(batch: TorchBatch, part: int, parts: int) -> Packed:
    """Return the normalised tokens of a part of a batch of packs, without a copy to other devices."""
    packs = packs_of(batch)
    fields = (packs.images, packs.segments, packs.positions, packs.grids)
    patches, segments, positions, grids = (rows_of_part(each, part, parts) for each in fields)
    return Packed(normalize_patches(patches, mean=IMAGENET_MEAN, std=IMAGENET_STD), segments, positions, grids)
