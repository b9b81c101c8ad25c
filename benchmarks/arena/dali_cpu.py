"""DALI on the CPU, as its documents have it for ImageNet: decoders.image_random_crop, resize, flip, in its threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from arena_peers import CROP_AREA, CROP_ASPECT, PeerConfig
from nvidia.dali import fn, pipeline_def, types

if TYPE_CHECKING:
    from arena_peers import Batch

FILTERS = {"bicubic": types.INTERP_CUBIC, "bilinear": types.INTERP_LINEAR}


@pipeline_def
def images(config: PeerConfig) -> tuple[Any, Any]:
    """Return the graph's images and labels."""
    encoded, labels = fn.readers.file(file_root=str(config.root), random_shuffle=True, name="files")
    crops = fn.decoders.image_random_crop(
        encoded, device="cpu", output_type=types.RGB, random_area=CROP_AREA, random_aspect_ratio=CROP_ASPECT
    )
    size = config.image_size
    resized = fn.resize(crops, resize_x=size, resize_y=size, interp_type=FILTERS[config.interpolation], antialias=True)
    return fn.flip(resized, horizontal=fn.random.coin_flip()), labels


@dataclass(frozen=True, slots=True)
class Dali:
    """Files in class folders, decoded where the crop is."""

    config: PeerConfig
    layout: ClassVar[str] = "imagefolder"
    packages: ClassVar[dict[str, str]] = {"nvidia": "nvidia-dali-cuda120"}

    def iterate(self) -> Iterator[Batch]:
        pipeline = images(
            self.config, batch_size=self.config.batch_size, num_threads=self.config.workers, device_id=None, seed=1
        )
        pipeline.build()
        while True:
            found, labels = pipeline.run()
            yield np.asarray(found.as_tensor()), np.asarray(labels.as_tensor()).reshape(-1)
