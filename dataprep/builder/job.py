"""One shard of a build as a task: idempotent and picklable, for any engine on any machine.

An engine builds a shard any number of times, on any machine that reaches source and output. A shard is done when its
receipt exists. Beam, Ray and Spark call `build_shard`; the local pool calls only its first part, `begin_shard`, so that
a worker begins the next shard while the last one is being finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from dataprep import __version__
from dataprep.builder.recipe import recipe_named
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import DISTRIBUTION, UsageError


@dataclass(frozen=True, slots=True)
class BuildJob:
    """Everything that a worker on any machine needs besides a shard's index."""

    output_url: str
    source_url: str
    root: str
    """Folder of the build's own state; its name contains the plan's hash."""
    recipe: str
    """Name of the recipe, one of `dataprep.builder.recipe.RECIPES`."""
    links: str = field(default="in root", kw_only=True)
    """How links in the source are followed: a name in `dataprep.dataset.adopted.LINKS`."""
    pointer: bytes | None = field(default=None, kw_only=True)
    """Content of the build's `plan.json`, so that no worker waits for it; None where each reads it itself."""
    version: str = field(default=__version__, kw_only=True)
    """Version of this package in the process that made the job; every worker must have the same."""


Engine = Callable[[BuildJob, list[int]], Iterator[ShardReceipt]]
"""Function that builds the shards of some indexes, in any order, and yields each receipt when it exists. One that
shares the work with other builds yields the receipts of the shards that it built itself, and returns when all exist."""


def build_shard(job: BuildJob, index: int) -> ShardReceipt:
    """Build one shard, or find its existing receipt.

    Raises:
        SourceError: An original ends early or is gone.
        ImageError: An image is bad and `on_bad` is `fail`.
        StorageError: The shard could not be published: either nothing of it is visible, or a rerun finishes it.
        OvertakenError: Another build owns the output now, and nothing was written there.
        UsageError: This process has other codec versions than the plan, or another version of this package than the
            driver, and would write other bytes.
    """
    refuse_other_version(job)
    return recipe_named(job.recipe).build_shard(job, index)


def begin_shard(job: BuildJob, index: int) -> Future[ShardReceipt]:
    """Build one shard, but return when only its last step is left: publishing it, or waiting for late downloads.

    To be called by one thread of a process: the next call reads ahead until the shard before is done or has failed.

    Raises:
        UsageError: See `build_shard`.
    """
    refuse_other_version(job)
    return recipe_named(job.recipe).begin_shard(job, index)


def refuse_other_version(job: BuildJob) -> None:
    """Raise UsageError if this process has another version of this package than the process that made the job."""
    if job.version != __version__:
        raise UsageError(
            f"this worker has {DISTRIBUTION} {__version__}, the build was planned with {job.version}: another version "
            "may write other bytes; give every worker the driver's version, from the same wheel or image"
        )
