"""Augmentation for fine-tuning, after crop and flip: RandAugment or colour jitter, then erased boxes.

Cubuk et al., "RandAugment", 2020, as timm makes it; Zhong et al., "Random erasing data augmentation", AAAI 2020.
It runs where images are decoded, with the sample's own random generator: the same for any number of hosts and workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataprep.errors import UsageError, install_hint
from loaders.decode.transforms import PilTransform
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

ERASE_MODES = ("const", "rand", "pixel")
"""Ways to fill a box: with the mean colour, with one random colour, or with a random colour for each pixel."""
ERASED_AREA = (0.02, 1 / 3)
"""Smallest and largest share of the image that all boxes cover together."""
ERASED_RATIO = (0.3, 1 / 0.3)
"""Smallest and largest ratio of a box's height to its width."""
_TRIES = 10
"""Number of draws after which a box that fits nowhere is left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Erasing:
    """Settings of random erasing: boxes of an image are painted over.

    Raises:
        UsageError: A value is out of its range.
    """

    prob: float = 0.0
    """Probability that an image gets boxes."""
    mode: str = "pixel"
    count: int = 1
    """Largest number of boxes in an image; the number is drawn from 1 to this one."""

    def __post_init__(self) -> None:
        if not 0 <= self.prob <= 1:
            raise UsageError(f"--reprob must be a probability, got {self.prob}")
        if self.mode not in ERASE_MODES:
            raise UsageError(f"--remode must be one of {', '.join(ERASE_MODES)}, got {self.mode!r}")
        if self.count < 1:
            raise UsageError(f"--recount must be 1 or more, got {self.count}")


class FinetuneAugment:
    """Augmentation of one image: a loader's `transform`.

    Args:
        policy: timm's name of an augmentation, e.g. `rand-m9-mstd0.5-inc1`; empty: none.
        color_jitter: Largest factor by which brightness, contrast and saturation change; only without a policy.
        erasing: Boxes that are painted over, last of all.
        image_size: Side of the images, pixels.

    Raises:
        UsageError: The policy is unknown, timm is not installed, or the jitter is out of its range.
    """

    state_name = "train.finetune_augment.FinetuneAugment"
    """Where version 0.1.0 defined it, whose checkpoints name it."""

    def __init__(self, *, policy: str, color_jitter: float, erasing: Erasing, image_size: int) -> None:
        if not 0 <= color_jitter <= 1:
            raise UsageError(f"--color_jitter must be 0 to 1, got {color_jitter}")
        if policy and color_jitter:
            raise UsageError(
                f"--color_jitter {color_jitter} with --aa {policy}, which changes colours itself; give one, or --aa ''"
            )
        self._policy = PilTransform(_timm_policy(policy, image_size)) if policy else None
        self._color_jitter, self._erasing = color_jitter, erasing

    def __call__(self, image_HWC: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        if self._policy is not None:
            image_HWC = self._policy(image_HWC, rng)
        elif self._color_jitter:
            image_HWC = _jittered(image_HWC, self._color_jitter, rng)
        if rng.random() < self._erasing.prob:
            image_HWC = _erased(image_HWC, self._erasing, rng)
        return image_HWC


def _timm_policy(name: str, image_size: int) -> Callable[[Image], Image]:
    try:
        from timm.data.auto_augment import augment_and_mix_transform, auto_augment_transform, rand_augment_transform
    except ImportError:
        raise UsageError(f"--aa {name} needs timm: {install_hint('finetune')}, or give --aa ''") from None
    from PIL.Image import Resampling

    kinds = {"rand": rand_augment_transform, "augmix": augment_and_mix_transform}
    # 0.45 is the value in timm's own training: policies name magnitudes, and the caller says how many pixels they mean.
    options = {
        "translate_const": int(image_size * 0.45),
        "img_mean": tuple(min(255, round(255 * each)) for each in IMAGENET_MEAN),
        "interpolation": Resampling.BICUBIC,
    }
    try:
        policy: Callable[[Image], Image] = kinds.get(name.partition("-")[0], auto_augment_transform)(name, options)
    except (AssertionError, KeyError, ValueError) as error:
        raise UsageError(f"--aa {name}: not an augmentation of timm ({error}); e.g. rand-m9-mstd0.5-inc1") from None
    return policy


def _jittered(image_HWC: NDArray[np.uint8], jitter: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Change brightness, contrast and saturation, each by its own random factor, in random order."""
    import numpy as np
    from PIL import Image, ImageEnhance

    factors = rng.uniform(1 - jitter, 1 + jitter, 3)
    kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    image = Image.fromarray(image_HWC)
    for each in np.argsort(rng.random(3)):
        image = kinds[each](image).enhance(float(factors[each]))
    return np.asarray(image)


def _erased(image_HWC: NDArray[np.uint8], erasing: Erasing, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Fill boxes of an image; noise is normal, with the data's mean and standard deviation, clipped to 0..255."""
    import numpy as np

    image_HWC = image_HWC.copy()
    height, width = image_HWC.shape[:2]
    count = int(rng.integers(1, erasing.count + 1))
    for _ in range(count):
        box = _erased_box(height, width, count, rng)
        if box is None:
            continue
        top, left, box_height, box_width = box
        shape = (box_height, box_width, 3) if erasing.mode == "pixel" else (1, 1, 3)
        noise = np.zeros(shape) if erasing.mode == "const" else rng.standard_normal(shape)
        color = 255 * (np.array(IMAGENET_MEAN) + noise * np.array(IMAGENET_STD))
        image_HWC[top : top + box_height, left : left + box_width] = np.clip(np.rint(color), 0, 255).astype(np.uint8)
    return image_HWC


def _erased_box(height: int, width: int, count: int, rng: np.random.Generator) -> tuple[int, int, int, int] | None:
    """Draw top, left, height and width in pixels of a box smaller than the image; None where no draw fits."""
    low, high = (math.log(each) for each in ERASED_RATIO)
    for _ in range(_TRIES):
        area = rng.uniform(*ERASED_AREA) * height * width / count
        ratio = math.exp(rng.uniform(low, high))
        box_height, box_width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if box_height < height and box_width < width:
            top, left = (int(rng.integers(0, space + 1)) for space in (height - box_height, width - box_width))
            return top, left, box_height, box_width
    return None
