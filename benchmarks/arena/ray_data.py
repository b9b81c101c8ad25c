"""Ray Data: read_parquet of bytes, map to tensors in Ray's workers, iter_torch_batches with a local shuffle buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import ray
import torch
from arena_peers import SHUFFLE_SAMPLES, PeerConfig
from arena_tensors import Decoded

if TYPE_CHECKING:
    from arena_peers import Batch


class Augmented:
    """Turns a row of bytes into a row with an image, HWC, and its label."""

    def __init__(self, config: PeerConfig) -> None:
        torch.set_num_threads(1)
        self._decoded = Decoded(config)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        image_CHW = self._decoded(row["image"]["bytes"])
        return {"image": np.ascontiguousarray(image_CHW.permute(1, 2, 0).numpy()), "label": row["label"]}


@dataclass(frozen=True, slots=True)
class RayData:
    """Parquet in actors, one for each worker."""

    config: PeerConfig
    layout: ClassVar[str] = "parquet"
    packages: ClassVar[dict[str, str]] = {"ray": "ray"}

    def iterate(self) -> Iterator[Batch]:
        config = self.config
        ray.init(
            num_cpus=config.workers + 1,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            object_store_memory=2 << 30,
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
        rows = ray.data.read_parquet(config.shards("*.parquet"), shuffle="files", override_num_blocks=64)
        actors = ray.data.ActorPoolStrategy(size=config.workers)
        rows = rows.map(Augmented, fn_constructor_args=(config,), compute=actors)
        while True:
            found = rows.iter_batches(
                batch_size=config.batch_size,
                batch_format="numpy",
                drop_last=True,
                local_shuffle_buffer_size=SHUFFLE_SAMPLES // 2,
            )
            for batch in found:
                yield batch["image"], batch["label"]
