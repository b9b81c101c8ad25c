"""Splits and manifests of shards that do not exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dataprep.dataset.records import FileEntry, IndexEntry, Manifest, ShardEntry, SplitManifest


def split_of(samples: Sequence[int], index: IndexEntry | None = None) -> SplitManifest:
    """The split `train` with shards of these samples."""
    shards: list[ShardEntry] = [
        {"file": f"{shard}.tar", "samples": count, "bytes": 9, "sha256": f"{shard:064x}", "crc32c": ""}
        for shard, count in enumerate(samples)
    ]
    index = index or {"file": "index/train.parquet", "bytes": 0, "sha256": ""}
    events: FileEntry = {"file": "index/train-events.parquet", "bytes": 0, "sha256": ""}
    repeats = {"count": 1, "stored": 1}
    return SplitManifest("train", sum(samples), 0, tuple(shards), (), repeats, {}, {}, index, events)


def manifest_of(split: SplitManifest, **fields: Any) -> Manifest:
    """The manifest of a dataset of one split."""
    return Manifest(
        "folder", "1.1", fields.pop("revision", 1), "webdataset", "plan", 1, {}, (), {}, "", "", (), shuffled=True,
        checked="decode", partial=False, splits=(split,), **fields,
    )  # fmt: skip
