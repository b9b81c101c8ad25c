"""One shard of a build as a task: idempotent and picklable, for any engine on any machine.

Every engine runs `build_shard`, any number of times, on any machine that reaches source and output. The receipt is what
makes a shard count as done. The local pool runs only the first part, `begin_shard`, so that a worker begins the next
shard while the last one is being finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from dataprep.build.recipe import recipe_named
from dataprep.dataset.records import ShardReceipt


@dataclass(frozen=True, slots=True)
class BuildJob:
    """Everything that a worker on any machine needs besides a shard's index."""

    output_url: str
    source_url: str
    root: str
    """Folder of the build's own state, whose name holds the plan's hash."""
    recipe: str
    """Name of the recipe, one of `dataprep.build.recipe.RECIPES`."""


Engine = Callable[[BuildJob, list[int]], Iterator[ShardReceipt]]
"""Builds the shards of these indexes, in any order, and yields their receipts as they come."""


def build_shard(job: BuildJob, index: int) -> ShardReceipt:
    """Build one shard, or find its receipt.

    Raises:
        SourceError: An original ends early or is gone.
        ImageError: An image is bad and `--on-bad fail` was given.
        StorageError: The shard could not be published; nothing of it is visible then, or a rerun finishes it.
        OvertakenError: The place is another build's by now, and nothing was put there.
        UsageError: This process has other codecs than the plan says, and would write other bytes.
    """
    return recipe_named(job.recipe).build_shard(job, index)


def begin_shard(job: BuildJob, index: int) -> Future[ShardReceipt]:
    """Build one shard, but return when only its end is left: publishing it, or late rows of one that is fetched.

    For one thread of a process: the next call reads ahead until the last shard is done or has failed.
    """
    return recipe_named(job.recipe).begin_shard(job, index)
