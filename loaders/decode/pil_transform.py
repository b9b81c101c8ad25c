"""Augmentations of other libraries as a loader's `transform`, with the same result for any number of workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from loaders.decode.seeding import SeededTransform

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image


class PilTransform(SeededTransform):
    """Turn an augmentation of PIL images that draws from global random generators, as timm's do, into a `transform`.

        from timm.data.auto_augment import rand_augment_transform
        open_loader(url, batch_size=1024, transform=PilTransform(rand_augment_transform("rand-m9-mstd0.5", {})))

    The function runs in processes of its own, one for each decoding thread, where the generators of Python and NumPy
    are seeded from the sample's own one for each call.

    Args:
        augment: Picklable function from a PIL image to one of the same size.
    """

    state_name = "loaders.transforms.PilTransform"
    """Where version 0.1.0 defined it, whose states name it."""

    def __init__(self, augment: Callable[[Image], Image]) -> None:
        self._augment = augment

    def __call__(self, image_HWC: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        augmented_HWC: NDArray[np.uint8] = self._seeded(rng, image_HWC)
        return augmented_HWC

    def _draw(self, seed: int, image_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
        import numpy as np
        from PIL import Image

        return np.asarray(self._augment(Image.fromarray(image_HWC)))
