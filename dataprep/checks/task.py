"""The check of one shard as a task for a pool: idempotent, picklable, and without errors of its own."""

from __future__ import annotations

from dataclasses import dataclass

from dataprep.checks.folder import check_folder_shard
from dataprep.checks.laion import is_laion
from dataprep.checks.laion_shard import check_laion_shard
from dataprep.checks.shard import ShardResult, check_shard_file, read_rows
from dataprep.errors import StorageError, UsageError
from dataprep.formats import FORMATS
from dataprep.records import Manifest, SplitManifest
from dataprep.sources import DATASETS
from dataprep.storage import Storage, open_storage


@dataclass(frozen=True, slots=True)
class ShardJob:
    """All that a worker needs besides a shard's position among all shards of all splits."""

    url: str
    manifest: Manifest
    indexed: frozenset[str]
    """Splits of which the index is the very file that the manifest names, with a row group a shard."""
    deep: bool

    def locate(self, index: int) -> tuple[SplitManifest, int]:
        """The split of a shard, and its position there."""
        for split in self.manifest.splits:
            if index < len(split.shards):
                return split, index
            index -= len(split.shards)
        raise UsageError(f"shard {index} past the end")


def check_shard(job: ShardJob, index: int) -> ShardResult:
    """Check one shard; whatever its bytes are, what is wrong with it is in the result."""
    split, number = job.locate(index)
    result = ShardResult(index)
    where = split.shards[number]["file"]
    try:
        _check(job, open_storage(job.url), split, number, result)
    except (StorageError, UsageError) as error:  # UsageError: a link that leads out of the dataset
        result.findings.add("unread", where, str(error))
    except FileNotFoundError:
        result.findings.add("missing", where, "it was there and is gone; another process is changing the dataset")
    return result


def _check(job: ShardJob, storage: Storage, split: SplitManifest, number: int, result: ShardResult) -> None:
    manifest, shard = job.manifest, split.shards[number]
    rows = read_rows(storage, split, number, result.findings) if split.name in job.indexed else None
    shard_format = FORMATS[manifest.format]
    if is_laion(manifest):
        check_laion_shard(storage, manifest, number, rows, deep=job.deep, result=result)
    elif shard_format is not None:
        check_shard_file(storage, manifest, shard_format, shard, rows, deep=job.deep, result=result)
    elif rows is not None:
        dataset = DATASETS[manifest.name]
        check_folder_shard(storage, manifest, dataset, split, shard, rows, deep=job.deep, result=result)
