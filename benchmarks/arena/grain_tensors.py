"""Grain with ArrayRecord's documented read options, decode_jpeg and v2 transforms on uint8 tensors, in threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import grain
import numpy as np
import torch
from arena_peers import LABEL_BYTES, PeerConfig
from arena_tensors import Decoded

if TYPE_CHECKING:
    from arena_peers import Batch


class Augmented:
    """Turns a record into an image, HWC, and its label."""

    def __init__(self, config: PeerConfig) -> None:
        self._decoded = Decoded(config)

    def __call__(self, record: bytes) -> tuple[Any, Any]:
        image_CHW = self._decoded(record[LABEL_BYTES:])
        return image_CHW.permute(1, 2, 0).numpy(), np.int64(int.from_bytes(record[:LABEL_BYTES], "little"))


@dataclass(frozen=True, slots=True)
class GrainTensors:
    """Records of array_record in a global shuffle, with the index of every file in memory."""

    config: PeerConfig
    layout: ClassVar[str] = "array_record"
    packages: ClassVar[dict[str, str]] = {"grain": "grain"}

    def iterate(self) -> Iterator[Batch]:
        torch.set_num_threads(1)
        files = self.config.shards("*.array_record")
        source = grain.sources.ArrayRecordDataSource(files, reader_options={"index_storage_option": "in_memory"})
        yield from (
            grain.MapDataset.source(source)
            .seed(0)
            .shuffle()
            .repeat()
            .map(Augmented(self.config))
            .to_iter_dataset(grain.ReadOptions(num_threads=self.config.workers))
            .batch(self.config.batch_size, drop_remainder=True)
        )
