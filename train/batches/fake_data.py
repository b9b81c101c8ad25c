"""Fake images, to try a model without data: loaders that read nothing.

Shapes: N images of this host.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from loaders.config import LoaderConfig
from loaders.engine.batch import Batch
from loaders.loader import Loader
from loaders.order import Order, check_world
from train.batches.data import TRAIN, VALIDATION, Data

TRAINING_IMAGES = 1_281_167
VALIDATION_IMAGES = 50_000
"""Numbers of images in ImageNet's splits (TRAINING_IMAGES, VALIDATION_IMAGES)."""
CLASSES = 1000
"""Number of a model's logits, unless another one is given."""


class FakeData(Data):
    """Data with the splits of ImageNet, whose images are all black."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("fake", (TRAIN[0], VALIDATION[0]), CLASSES, images={TRAIN[0]: TRAINING_IMAGES})

    @property
    def fewest_classes(self) -> int:
        """1: all images are of class 0."""
        return 1

    def _loader(self, split: str, config: LoaderConfig) -> Loader:
        return FakeLoader(config, TRAINING_IMAGES if split == TRAIN[0] else VALIDATION_IMAGES)


class FakeLoader(Loader):
    """Loader of black images of class 0, with the epochs, positions and masked tail of a loader of real images."""

    def __init__(self, config: LoaderConfig, num_images: int) -> None:
        check_world(config.batch_size, config.rank, config.world_size)
        self.config = config
        self.order = Order(
            shard_samples=(num_images,), seed=config.seed, global_batch=config.batch_size, samples_per_block=1
        )
        self._batch, self._producer = 0, None

    def __iter__(self) -> Iterator[Batch]:
        """Yield the rest of the epoch."""
        self._begin()
        rows, size = self.config.rows, self.config.image_size
        images_NHWC = np.zeros((rows, size, size, 3), np.uint8)
        stop = self._end_of_epoch()
        while self._batch < stop:
            first = self.order.batch_start(self._batch) + self.config.rank
            positions_N = first + self.config.world_size * np.arange(rows)
            mask_N = positions_N < self.order.num_samples if not self.config.shuffle else np.ones(rows, np.bool_)
            keys = [f"fake-{position % self.order.num_samples}" for position in positions_N]
            self._batch += 1
            yield Batch(images_NHWC, np.where(mask_N, 0, -1), keys, mask_N, {}, self.state_dict())
        self._end()

    @property
    def classes(self) -> tuple[str, ...]:
        """No names: the images have no content."""
        return ()

    @cached_property
    def _sequence(self) -> dict[str, object]:
        return {"dataset": "fake", "samples": self.order.num_samples, **self.config.sequence_document()}
