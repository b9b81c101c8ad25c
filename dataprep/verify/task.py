"""The check of one shard as a task for a pool: idempotent, picklable, and without errors of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dataprep.build.recipe import load, recipe_of
from dataprep.dataset.records import Manifest, SplitManifest
from dataprep.errors import StorageError, UsageError
from dataprep.storage import open_storage
from dataprep.verify.shard import CheckedShard, ShardResult, read_rows

ShardCheck = Callable[[CheckedShard, ShardResult], None]
"""Compares a shard with its manifest, its index and with itself; a recipe names its own in `shard_check`."""


@dataclass(frozen=True, slots=True)
class ShardJob:
    """All that a worker needs besides a shard's position among all shards of all splits."""

    url: str
    manifest: Manifest
    indexed: frozenset[str]
    """Splits whose index is the very file that the manifest names, with a row group for each shard."""
    deep: bool

    def locate(self, index: int) -> tuple[SplitManifest, int]:
        """Return the split of a shard, and its position there."""
        number = index
        for split in self.manifest.splits:
            if number < len(split.shards):
                return split, number
            number -= len(split.shards)
        raise UsageError(f"shard {index} past the end")


def check_shard(job: ShardJob, index: int) -> ShardResult:
    """Check one shard; whatever its bytes are, what is wrong with it is in the result."""
    split, number = job.locate(index)
    result = ShardResult(index)
    where = split.shards[number]["file"]
    try:
        storage = open_storage(job.url)
        rows = read_rows(storage, split, number, result.findings) if split.name in job.indexed else None
        check: ShardCheck = load(recipe_of(job.manifest.name).shard_check)
        check(CheckedShard(storage, job.manifest, split, number, rows, job.deep), result)
    except (StorageError, UsageError) as error:  # UsageError: a link that leads out of the dataset
        result.findings.add("unread", where, str(error))
    except FileNotFoundError:
        result.findings.add("missing", where, "it was there and is gone; another process is changing the dataset")
    return result
