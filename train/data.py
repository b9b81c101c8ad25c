"""The loader of a training run, over a dataset or over plain data that are indexed first."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from dataprep.adopt import AdoptRequest, adopt
from dataprep.errors import UsageError
from dataprep.manifest import read_manifest
from dataprep.storage import open_storage
from loaders.config import LoaderConfig
from loaders.dataset import open_dataset
from loaders.loader import Loader

TRAIN = "train"
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Of each channel, for values of 0..1, as all published models on ImageNet use them."""


def open_training_loader(data_path: str, *, index_dir: str | None, **settings: Any) -> Loader:
    """A shuffled loader over the split `train`, or over the only one there is.

    Args:
        data_path: A dataset that `dataprep build` made or `dataprep adopt` indexed, or data of other tools: an image
            folder, tars, a TFDS directory. Those are indexed first, which reads their headers once.
        index_dir: Where that index is kept; by default in the user's cache, under a name made of `data_path`.
        settings: Fields of `LoaderConfig`.

    Raises:
        UsageError: There are no data, or several splits and none of them is `train`.
    """
    url = _indexed(data_path, index_dir)
    manifest = read_manifest(open_storage(url))
    splits = [split.name for split in manifest.splits] if manifest is not None else []
    split = splits[0] if len(splits) == 1 else TRAIN
    if split not in splits:
        raise UsageError(f"{data_path}: no split {TRAIN!r} among {', '.join(splits)}; give one by its own folder")
    return Loader(open_dataset(url, split), LoaderConfig(**settings))


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
