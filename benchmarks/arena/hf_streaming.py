"""Hugging Face datasets: parquet with an Image column, streamed through a shuffle buffer into a DataLoader."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("HF_HOME", tempfile.mkdtemp(prefix="arena-hub-"))
import datasets
import torch
from arena_peers import SHUFFLE_SAMPLES, PeerConfig, tensor_augmentation
from arena_tensors import Decoded, batches

if TYPE_CHECKING:
    from arena_peers import Batch


def _decoded(decoded: Any, row: dict[str, Any]) -> dict[str, Any]:
    found = row["image"]
    return {"image": decoded(found["bytes"] if isinstance(found, dict) else found), "label": row["label"]}


def _pair(rows: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([row["image"] for row in rows]), torch.tensor([row["label"] for row in rows])


@dataclass(frozen=True, slots=True)
class HuggingFace:
    """Images that `datasets` decodes with PIL, as its documents show."""

    config: PeerConfig
    layout: ClassVar[str] = "parquet"
    packages: ClassVar[dict[str, str]] = {"datasets": "datasets"}
    in_tensors: ClassVar[bool] = False

    def iterate(self) -> Iterator[Batch]:
        files = self.config.shards("*.parquet")
        rows = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
        rows = rows.cast_column("image", datasets.Image(decode=not self.in_tensors))
        decoded = Decoded(self.config) if self.in_tensors else tensor_augmentation(self.config.image_size)
        rows = rows.shuffle(buffer_size=SHUFFLE_SAMPLES, seed=1).map(partial(_decoded, decoded))
        return batches(rows, self.config, collate_fn=_pair)


class HuggingFaceTensors(HuggingFace):
    """Bytes, decoded to tensors by torchvision."""

    in_tensors: ClassVar[bool] = True
