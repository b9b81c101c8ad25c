"""The loaders of a training run, over a dataset or over plain data that are indexed first."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep.adopt import AdoptRequest, adopt
from dataprep.errors import UsageError
from dataprep.manifest import read_manifest
from dataprep.placement import guard
from dataprep.storage import open_storage
from loaders.config import LoaderConfig
from loaders.dataset import open_dataset
from loaders.loader import Loader

TRAIN = ("train", "training")
VALIDATION = ("val", "validation", "valid", "validate", "test")
"""Names of splits, the first one that is there is taken."""
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Of each channel, for values of 0..1, as all published models on ImageNet use them."""


@dataclass(frozen=True, slots=True)
class Data:
    """What a run reads: a dataset, which is one of ours or an index of others'."""

    url: str
    splits: tuple[str, ...]
    num_classes: int | None
    """None where it has no labels."""

    def training_loader(self, **settings: Any) -> Loader:
        """A shuffled loader over the split `train`, or over the only one there is.

        Args:
            settings: Fields of `LoaderConfig`.

        Raises:
            UsageError: There are several splits and none of them is `train`.
        """
        split = self.splits[0] if len(self.splits) == 1 else self._first_of(TRAIN)
        if split is None:
            named = ", ".join(self.splits)
            raise UsageError(f"{self.url}: no split {TRAIN[0]!r} among {named}; give one by its own folder")
        return self._loader(split, settings)

    def validation_loader(self, **settings: Any) -> Loader | None:
        """A loader over every image of the split `val` once, or of `validation` or `test`; None without any of them."""
        split = self._first_of(VALIDATION)
        return None if split is None else self._loader(split, {"shuffle": False, "augment": False, **settings})

    def _first_of(self, names: Sequence[str]) -> str | None:
        return next((name for name in names if name in self.splits), None)

    def _loader(self, split: str, settings: dict[str, Any]) -> Loader:
        config = LoaderConfig(**settings)
        return Loader(open_dataset(self.url, split, config.region_policy), config)


def open_data(data_path: str, *, index_dir: str | None = None, region_policy: str = "refuse") -> Data:
    """Find a run's data, before the first image is read.

    Args:
        data_path: A dataset that `dataprep build` made or `dataprep adopt` indexed, or data of other tools: an image
            folder, tars, a TFDS directory. Those are indexed first, which reads their headers once.
        index_dir: Where that index is kept; by default in the user's cache, under a name made of `data_path`.
        region_policy: Of a bucket whose reading from here is known to cost money.

    Raises:
        UsageError: There are no data, or reading them costs money and the policy refuses that.
    """
    guard(data_path, region_policy)
    url = _indexed(data_path, index_dir)
    manifest = read_manifest(open_storage(url))
    if manifest is None:
        raise UsageError(f"{data_path}: no dataset; give one, or an image folder, tars, or a TFDS directory")
    return Data(url, tuple(split.name for split in manifest.splits), len(manifest.classes) or None)


def _indexed(data_path: str, index_dir: str | None) -> str:
    """Where the manifest is."""
    data = open_storage(data_path)
    if index_dir is None and read_manifest(data) is not None:
        return data_path
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dataprep" / "adopted"
    index_url = index_dir or str(cache / hashlib.sha256(data.url.encode()).hexdigest()[:16])
    adoption = adopt(AdoptRequest(url=data_path, index_url=index_url), _Progress())
    if adoption.already:
        _Progress().log(f"{data_path}: the index in {index_url} is used; after a change of the data remove it")
    return adoption.url


class _Progress:
    """Lines on stderr."""

    def step(self, what: str) -> None:
        self.log(f"index: {what}")

    def started(self, shards: int, num_bytes: int) -> None:
        pass

    def shard_done(self, samples: int, num_bytes: int) -> None:
        pass

    def log(self, line: str) -> None:
        print(line, file=sys.stderr)
