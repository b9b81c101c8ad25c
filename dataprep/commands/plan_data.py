"""The part of `dataprep plan-input` about the data: number and bytes of the images, and the requests that read them."""

from __future__ import annotations

from dataclasses import dataclass

from dataprep.commands.region_report import READ_BYTES, gets_of
from dataprep.errors import UsageError
from dataprep.sources import DATASETS
from dataprep.sources.base import SplitFacts

STORED_SIDES = {"imagenet": 387, "imagenet-21k": None, "coco": 480, "coco-dup5": 480}
"""Shorter side of the images of each dataset with a published number of them, in pixels; None if it is not known.
ImageNet's mean image has 469 x 387, COCO's usual one 640 x 480."""
GIVEN, MEAN_OF = "given", "mean of"
"""Sources of figures: the options, and a dataset of --dataset or the objects."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedData:
    """What is said of the data; None for what is not given, which a published dataset's figures stand for."""

    dataset: str
    given_bytes: int | None
    images: int | None
    bytes_per_image: int | None
    objects: int | None

    def __post_init__(self) -> None:
        if self.given_bytes and self.images and self.bytes_per_image:
            raise UsageError(
                f"--bytes-per-image {self.bytes_per_image:,}: --dataset-bytes and --images give "
                f"{self.given_bytes / self.images:,.0f} bytes an image; leave one of the three out"
            )

    @property
    def given_bytes_per_image(self) -> float | None:
        """Bytes of an image as the options say them; None if they do not."""
        if self.given_bytes and self.images:
            return self.given_bytes / self.images
        return self.bytes_per_image

    @property
    def assumed_bytes_per_image(self) -> tuple[float, str]:
        """Bytes of an image where the options do not say them, and whose mean that is.

        Raises:
            UsageError: The dataset's bytes were not published, and no other figure stands for them.
        """
        if self.given_bytes and self.objects and is_loose(self.given_bytes, self.objects):
            return self.given_bytes / self.objects, f"{MEAN_OF} the objects"
        return self._mean_bytes, f"{MEAN_OF} {self.dataset}"

    @property
    def any_bytes_per_image(self) -> float:
        """Bytes of an image, given or assumed."""
        return self.given_bytes_per_image or self.assumed_bytes_per_image[0]

    @property
    def short_side(self) -> int | None:
        """Shorter side of the dataset's images; None if it is not known."""
        return STORED_SIDES[self.dataset]

    @property
    def repeats(self) -> int:
        """Passes over the data that make one epoch."""
        return 1 if self.given_bytes or self.images else self._facts.repeats

    @property
    def epoch_images(self) -> int | None:
        """Images of an epoch; None if nothing says their number but the data's size."""
        return self.images or (None if self.given_bytes else self._samples * self.repeats)

    def num_bytes(self, bytes_per_image: float) -> float:
        """Return the size of one pass over the data."""
        return self.given_bytes or (self.images or self._samples) * bytes_per_image

    @property
    def _facts(self) -> SplitFacts:
        return DATASETS[self.dataset].facts["train"]

    @property
    def _samples(self) -> int:
        return self._facts.samples or 0

    @property
    def _archive_bytes(self) -> int:
        """Bytes of the archives of images; an archive of several splits has none (COCO's annotations)."""
        splits = DATASETS[self.dataset].facts.values()
        shared = {each.name for facts in splits if facts is not self._facts for each in facts.archives}
        return sum(each.num_bytes or 0 for each in self._facts.archives if each.name not in shared)

    @property
    def _mean_bytes(self) -> float:
        """Mean size of the dataset's original images."""
        num_bytes = self._archive_bytes or self.given_bytes
        if num_bytes is None:
            raise UsageError(
                f"--dataset {self.dataset}: the bytes of its {self._samples:,} images were not published; give "
                "--dataset-bytes or --bytes-per-image"
            )
        return num_bytes / self._samples


def is_loose(num_bytes: float, objects: int) -> bool:
    """Return whether objects are smaller than a read of the loader, as loose pictures are."""
    return num_bytes / objects < READ_BYTES


def requests_per_image(num_bytes: float, images: float, objects: int | None) -> float:
    """Return how many requests read one image.

    Args:
        num_bytes: Size of one pass over the data.
        images: Number of images in it.
        objects: Number of objects, all of one size; None for shards that are much larger than a read.
    """
    return (num_bytes / READ_BYTES if objects is None else gets_of(round(num_bytes), objects)) / images
