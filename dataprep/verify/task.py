"""The check of one shard as a task for a pool: idempotent, picklable, and reporting faults as findings, not as
errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dataprep.build.recipe import load, recipe_of
from dataprep.dataset.manifest import built_as
from dataprep.dataset.records import Manifest, SplitManifest
from dataprep.errors import StorageError, UsageError
from dataprep.storage import open_storage
from dataprep.verify.shard import CheckedShard, ShardResult, read_rows

ShardCheck = Callable[[CheckedShard, ShardResult], None]
"""Function that compares a shard with its manifest and its index; each recipe names one in `shard_check`."""


@dataclass(frozen=True, slots=True)
class ShardJob:
    """Everything that a worker needs besides a shard's position among all shards of all splits."""

    url: str
    manifest: Manifest
    indexed: frozenset[str]
    """Splits whose index is the file that the manifest lists, with a row group for each shard."""
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
    """Check one shard; its faults are in the result, whatever its bytes are."""
    split, number = job.locate(index)
    result = ShardResult(index)
    where = split.shards[number]["file"]
    try:
        storage = open_storage(job.url)
        rows = read_rows(storage, split, number, result.findings) if split.name in job.indexed else None
        check: ShardCheck = load(recipe_of(built_as(job.manifest)).shard_check)
        check(CheckedShard(storage, job.manifest, split, number, rows, job.deep), result)
    except (StorageError, UsageError) as error:  # UsageError: a link that leads out of the dataset
        result.findings.add("unread", where, str(error))
    except FileNotFoundError:
        result.findings.add("missing", where, "it was removed meanwhile; another process is changing the dataset")
    return result
