"""SPDL's pipeline of threads with any function that gives the interpreter lock back: here torchvision's on tensors."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from arena_peers import PeerConfig
from arena_tensors import Decoded, read
from layouts import labelled
from spdl.pipeline import PipelineBuilder

if TYPE_CHECKING:
    from arena_peers import Batch


@dataclass(frozen=True, slots=True)
class SpdlTensors:
    """Files in class folders."""

    config: PeerConfig
    layout: ClassVar[str] = "imagefolder"
    packages: ClassVar[dict[str, str]] = {"spdl": "spdl"}

    def iterate(self) -> Iterator[Batch]:
        config, decoded = self.config, Decoded(self.config)
        torch.set_num_threads(1)

        def image(entry: tuple[str, int]) -> tuple[Any, int]:
            return decoded(read(entry[0])), entry[1]

        def batch(found: list[tuple[Any, int]]) -> Batch:
            images_NCHW = torch.stack([image_CHW for image_CHW, _ in found])
            return images_NCHW.permute(0, 2, 3, 1).numpy(), np.array([label for _, label in found], np.int64)

        builder = PipelineBuilder().add_source(self._entries()).pipe(image, concurrency=config.workers)
        pipeline = builder.aggregate(config.batch_size).pipe(batch).add_sink(2).build(num_threads=config.workers)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    def _entries(self) -> Iterator[tuple[str, int]]:
        entries = [(str(path), label) for path, label in labelled(self.config.root)]
        while True:
            random.shuffle(entries)
            yield from entries
