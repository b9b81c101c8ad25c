"""The files of an index: one, or parts of a large split, so that a reader opens only what it needs.

    index/train.parquet                                          up to MAX_ROWS_IN_ONE rows
    index/train-00000-of-00395.parquet  …                        more: about PART_ROWS rows in each part

Every part holds the row groups of consecutive shards. How many parts there are depends on the shards' samples alone.
The manifest lists the parts, and describes all of them together as it does a single file: the pattern of their names,
the sum of their sizes, and a digest of their digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from dataprep.dataset.documents import json_text
from dataprep.dataset.records import FileEntry, IndexEntry, IndexPart, SplitManifest

MAX_ROWS_IN_ONE = 1 << 24
"""Maximum number of rows of an index that is one file; all of ImageNet-21k has 14 million."""
PART_ROWS = 1 << 20
"""Approximate number of rows of a part; its file has some 60 MB, and the footer of 100 shards takes 3 ms to read."""
MAX_PARTS = 99_999


def index_ranges(shard_samples: Sequence[int]) -> list[range]:
    """Return the shards in each file of an index: one range for a single file.

    Args:
        shard_samples: Number of samples of each shard as planned, or of adopted data as found.
    """
    rows, shards = sum(shard_samples), len(shard_samples)
    parts = 1 if rows <= MAX_ROWS_IN_ONE else max(1, min(-(-rows // PART_ROWS), shards, MAX_PARTS))
    return [range(number * shards // parts, (number + 1) * shards // parts) for number in range(parts)]


def index_names(split: str, parts: int) -> list[str]:
    """Return the names of the files of an index."""
    if parts == 1:
        return [f"index/{split}.parquet"]
    return [f"index/{split}-{number:05d}-of-{parts:05d}.parquet" for number in range(parts)]


def publish_index(split: str, shard_samples: Sequence[int], put: Callable[[str, range], FileEntry]) -> IndexEntry:
    """Publish the files of an index, and return its entry for the manifest.

    Args:
        split: Name of the split.
        shard_samples: Number of samples of each shard, which decides about parts; see `index_ranges`.
        put: Publishes one file, given its name and its shards.
    """
    ranges = index_ranges(shard_samples)
    names = index_names(split, len(ranges))
    entries = [(put(name, shards), shards) for name, shards in zip(names, ranges, strict=True)]
    if len(entries) == 1:
        return cast(IndexEntry, {**entries[0][0]})
    return joined_entry(split, [{**entry, "shards": len(shards)} for entry, shards in entries])


def joined_entry(split: str, parts: Sequence[IndexPart]) -> IndexEntry:
    """Return the manifest's entry for an index of several parts."""
    return {
        "file": f"index/{split}-*-of-{len(parts):05d}.parquet",
        "bytes": sum(part["bytes"] for part in parts),
        "sha256": hashlib.sha256("".join(part["sha256"] for part in parts).encode()).hexdigest(),
        "parts": list(parts),
    }


def grown_entry(split: SplitManifest, last: FileEntry, new_shards: int) -> IndexEntry:
    """Return the entry of an index whose only or last file was replaced by one that has more shards.

    Args:
        split: The split before.
        last: The new file.
        new_shards: Number of the shards that were added.
    """
    if "parts" not in split.index:
        return cast(IndexEntry, {**last})
    *parts, before = split.index["parts"]
    return joined_entry(split.name, [*parts, {**last, "shards": before["shards"] + new_shards}])


def index_files(split: SplitManifest) -> tuple[FileEntry, ...]:
    """Return the files of a split's index, with their sizes and digests."""
    return tuple(split.index["parts"]) if "parts" in split.index else (split.index,)


def index_faults(split: SplitManifest) -> Iterator[str]:
    """Yield what is wrong with the manifest's entry for the index of a split: names of files that no build gives, parts
    of other shards than the split's."""
    if "parts" not in split.index:
        yield from _name_faults(split.index, f"index/{split.name}.parquet", "file")
        return
    parts = split.index["parts"]
    if not 1 < len(parts) <= MAX_PARTS:
        yield f"parts: expected 2 to {MAX_PARTS:,}, got {len(parts):,}"
        return
    for number, (part, due) in enumerate(zip(parts, index_names(split.name, len(parts)), strict=True)):
        yield from _name_faults(part, due, f"parts[{number}].file")
    shards = sum(part["shards"] for part in parts)
    if shards != len(split.shards) or not all(part["shards"] for part in parts):
        yield f"parts: {shards:,} shards, expected those of the split, {len(split.shards):,}, and one or more in each"
    found: dict[str, object] = {**split.index}
    for name, joined in joined_entry(split.name, parts).items():
        if name != "parts" and found[name] != joined:
            yield f"{name}: expected {joined}, which its parts have, got {json_text(found[name])}"


def _name_faults(entry: FileEntry, due: str, where: str) -> Iterator[str]:
    if entry["file"] != due:
        yield f"{where}: expected {due}, got {json_text(entry['file'])}"
