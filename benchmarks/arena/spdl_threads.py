"""SPDL as its guide shows it: a pipeline of threads, which decode and crop with FFmpeg through spdl.io."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import spdl.io
from arena_peers import CROP_AREA, CROP_ASPECT, PeerConfig
from layouts import labelled
from spdl.pipeline import PipelineBuilder

if TYPE_CHECKING:
    from arena_peers import Batch


def crop(height: int, width: int) -> tuple[int, int, int, int]:
    """Return height, width, top and left of a random crop, drawn as torchvision draws it."""
    for _ in range(10):
        area, aspect = height * width * random.uniform(*CROP_AREA), exp(random.uniform(*map(log, CROP_ASPECT)))
        rows, columns = round(sqrt(area / aspect)), round(sqrt(area * aspect))
        if 0 < rows <= height and 0 < columns <= width:
            return rows, columns, random.randint(0, height - rows), random.randint(0, width - columns)
    side = min(height, width)
    return side, side, (height - side) // 2, (width - side) // 2


@dataclass(frozen=True, slots=True)
class Spdl:
    """Files in class folders."""

    config: PeerConfig
    layout: ClassVar[str] = "imagefolder"
    packages: ClassVar[dict[str, str]] = {"spdl": "spdl"}

    def iterate(self) -> Iterator[Batch]:
        config = self.config
        builder = PipelineBuilder().add_source(self._entries()).pipe(self._image, concurrency=config.workers)
        builder = builder.aggregate(config.batch_size).pipe(self._batch).add_sink(2)
        pipeline = builder.build(num_threads=config.workers, max_failures=0)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    def _entries(self) -> Iterator[tuple[str, int]]:
        entries = [(str(path), label) for path, label in labelled(self.config.root)]
        while True:
            random.shuffle(entries)
            yield from entries

    def _image(self, entry: tuple[str, int]) -> tuple[Any, int]:
        path, label = entry
        size, packets = self.config.image_size, spdl.io.demux_image(path)
        rows, columns, top, left = crop(packets.height, packets.width)
        graph = f"crop={columns}:{rows}:{left}:{top}:exact=1,scale={size}:{size}:flags={self.config.interpolation}"
        if random.random() < 0.5:
            graph += ",hflip"
        frames = spdl.io.decode_packets(packets, filter_desc=f"{graph},format=rgb24")
        return frames, label

    def _batch(self, found: list[tuple[Any, int]]) -> Batch:
        images_NHWC = spdl.io.to_numpy(spdl.io.convert_frames([frames for frames, _ in found]))
        return images_NHWC, np.array([label for _, label in found], np.int64)
