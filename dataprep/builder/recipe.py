"""The protocol of every build: the steps from one kind of originals to a dataset, and one shard as a task.

A dataset names its recipe (`Dataset.recipe`); RECIPES maps the name to its place. The code that plans, builds,
assembles, estimates, overwrites or verifies calls the recipe and never looks at a dataset's name. Only `finished.py`
knows two datasets, whose manifests record options that change the dataset itself.

    request ─plan─▶ Plan ─build_shard, once a shard─▶ receipts ─assemble─▶ Manifest

An engine builds a shard any number of times, on any machine that reaches source and output: a task (`BuildJob` and an
index) is idempotent and picklable, and a shard is done when its receipt exists. Beam, Ray and Spark call `build_shard`;
the local pool calls only its first part, `begin_shard`, so that a worker begins the next shard while the last one is
finished.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from dataprep import __version__
from dataprep.dataset.index import PublishingRows
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import DISTRIBUTION, UsageError
from dataprep.sources import BUILT, recorded_class

if TYPE_CHECKING:
    from dataprep.builder.output import Claim, OpenBuild
    from dataprep.builder.plan import BuildRequest, FileDigest, Plan, Progress
    from dataprep.dataset.records import Manifest, SplitManifest
    from dataprep.storage import Storage

RECIPES: Mapping[str, str] = {
    "archives": "dataprep.builder.growth:ARCHIVES",
    "columns": "dataprep.mapping:COLUMNS",
    "converted": "dataprep.builder.archives:CONVERSIONS",
    "web": "dataprep.fetched.recipe:WEB",
}
"""The `module:NAME` of each recipe, by name. Recipes are imported on demand, because some are in higher layers."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, with functions that store and repair the data that workers need in addition."""

    plan: Plan
    store: Callable[[Storage, str], FileDigest | None]
    """Function of storage and build folder: stores the plan's data, returns the digest of any references."""
    repair: Callable[[Storage, Claim, Callable[[str], None]], Claim] | None = None
    """Function that stores absent or damaged references of a continued build again, logs that with its last argument,
    and returns the claim with their digest. None if workers read no references."""
    kept: Callable[[], None] = lambda: None
    """Function that waits until the lists of originals are stored; in a bucket this happens while shards are built."""
    is_of: Callable[[Storage, Claim], bool] = lambda storage, claim: True
    """Function that returns whether the originals have the versions that a build of the same plan listed."""


PAGE_OBJECTS = 1000
"""Objects that one request lists."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests to one bucket, and bytes exchanged with it."""

    inserts: int
    """Number of class A requests: writes and listings."""
    gets: int
    """Number of class B requests: reads."""
    num_bytes: int
    """Bytes written to an output, or read from a source."""


class ShardMaker(ABC):
    """Makes one shard as a task: the part of a recipe that engines call."""

    worker_modules: tuple[str, ...]
    """Modules that a worker imports before its first shard."""

    @abstractmethod
    def build_shard(self, job: BuildJob, index: int) -> ShardReceipt:
        """Build one shard, or find its receipt."""

    @abstractmethod
    def begin_shard(self, job: BuildJob, index: int) -> Future[ShardReceipt]:
        """Build one shard, but return as soon as the next can be begun."""

    @abstractmethod
    def is_over(self, job: BuildJob) -> bool:
        """Return whether another process has published the result, so that receipts may be gone. Raises OvertakenError
        if another build owns the output now."""


class Recipe(ShardMaker):
    """The steps from one kind of originals to a finished dataset, and the checks of such a dataset."""

    output_may_lie_in_source: bool = False
    """Whether a dataset may be in the folder of its originals, because its files are never read as originals."""
    shard_check: str
    """`module:NAME` of the function that verifies a finished shard; see dataprep/verification/run.py."""

    @abstractmethod
    def plan(self, request: BuildRequest, progress: Progress, *, keep: bool, is_empty: bool = False) -> Planned:
        """List the originals, and plan the shards.

        Args:
            keep: Store the list of originals under `_build/`, or use the list of an earlier run. A dry run does
                neither.
            is_empty: The output is known to be empty, so lists of an earlier run are not looked for.

        Raises:
            SourceError: Originals are absent, damaged, or differ from the published ones.
            UsageError: The options do not fit the originals or the format.
        """

    @abstractmethod
    def job(self, request: BuildRequest, root: str, shards: int) -> BuildJob:
        """Return the data that a worker needs in addition to a shard's index.

        Args:
            shards: Number of shards that are left to build.
        """

    def is_over(self, job: BuildJob) -> bool:
        """Return whether the dataset is published; see `ShardMaker.is_over`."""
        from dataprep.builder.output import open_build  # which needs recipes

        build = open_build(job.output_url, job.root, job.pointer)
        if build.is_published():
            return True
        build.check()
        return False

    @abstractmethod
    def assemble(
        self, build: OpenBuild, request: BuildRequest, publishing: PublishingRows, log: Callable[[str], None]
    ) -> tuple[Manifest, Callable[[], None]]:
        """Write all files but the manifest from the receipts, each create-only. Return the manifest, and the function
        that compares the files in place with the receipts (`dataprep.builder.merge.Published.check`). Raises BuildError
        if a receipt is missing, or too many images were rejected, and OvertakenError if another build owns the output
        now.

        Args:
            publishing: Publishes index and events, which may continue after this call.
            log: Called with each line for the user.
        """

    def plan_growth(
        self, request: BuildRequest, progress: Progress, manifest: Manifest, data: bytes, *, keep: bool
    ) -> Planned | None:
        """List the originals, and plan shards for those that a finished dataset lacks; None if it lacks none.

        Args:
            data: Content of `dataset.json`.
            keep: Whether images may be unpacked below the output.

        Raises:
            SourceError: An original differs from the sample of its key.
            UsageError: The options differ from the dataset's, there is a new class, or datasets of this recipe cannot
                grow.
        """
        raise _cannot_grow(request)

    def grow(
        self, build: OpenBuild, request: BuildRequest, manifest: Manifest, data: bytes, log: Callable[[str], None]
    ) -> Manifest:
        """Publish a dataset's revision with the planned shards appended. Raises UsageError as `plan_growth` does."""
        raise _cannot_grow(request)

    # Requests to buckets, and names of the files

    @abstractmethod
    def output_traffic(self, plan: Plan, *, workers: int) -> Traffic:
        """Return the requests and bytes that a build sends to its output, including receipts that it removes."""

    @abstractmethod
    def source_traffic(self, plan: Plan) -> Traffic:
        """Return the requests and bytes for reading a build's originals."""

    @abstractmethod
    def planned_files(self, storage: Storage, claim: Claim) -> Iterator[str]:
        """Yield the names that a build writes, except indexes and manifest, whether they exist or not."""

    def added_files(self, storage: Storage, manifest: Manifest) -> Iterator[str]:
        """Yield the names of files that an unfinished change of a finished dataset may have put in place, and that the
        manifest does not list yet; by default none."""
        return iter(())

    # A finished dataset

    @abstractmethod
    def shard_file(self, manifest: Manifest, split: SplitManifest, number: int) -> str:
        """Return the expected name of the shard at this position in the split."""

    @abstractmethod
    def sidecar_files(self, manifest: Manifest) -> frozenset[str]:
        """Return the names of the shards' sidecars; each belongs to one shard."""

    @abstractmethod
    def metadata_files(self, manifest: Manifest) -> dict[str, bytes]:
        """Return the dataset's own metadata files, name to content, as its manifest implies them. Raises FormatError if
        a class name of the manifest cannot be written to such files."""

    def is_shuffled(self, manifest: Manifest) -> bool:
        """Return whether a build with the manifest's options puts samples into random order."""
        return True

    @abstractmethod
    def shape_faults(self, manifest: Manifest) -> Iterator[str]:
        """Yield a line for each malformed field among those that only this recipe's manifests have."""

    @abstractmethod
    def layout_faults(self, manifest: Manifest) -> Iterator[str]:
        """Yield a line for each file that the manifest lists differently from a build. Expects no shape faults."""

    def option_faults(self, manifest: Manifest) -> Iterator[str]:
        """Yield a line for each option that contradicts the rest of the manifest; by default none, because values that
        are recorded twice are compared for every recipe. Expects no shape faults."""
        return iter(())


def _cannot_grow(request: BuildRequest) -> UsageError:
    return UsageError(
        f"`append`: {request.options.name} cannot grow; build the new samples as a separate dataset, and mix both "
        "with loaders.mixture"
    )


def recipe_of(dataset: str) -> Recipe:
    known = recorded_class(dataset)
    if known is None:
        raise UsageError(f"no dataset is called {dataset!r}; expected one of {', '.join(BUILT)}")
    return cast(Recipe, recipe_named(known.recipe))


@cache
def recipe_named(name: str) -> ShardMaker:
    return cast(ShardMaker, load(RECIPES[name]))


def load(place: str) -> Any:
    """Import a module, and return the object that `module:NAME` names."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


# One shard as a task


@dataclass(frozen=True, slots=True)
class BuildJob:
    """Everything that a worker on any machine needs in addition to a shard's index."""

    output_url: str
    source_url: str
    root: str
    """Folder of the build's own state; its name contains the plan's hash."""
    recipe: str
    links: str = field(default="in root", kw_only=True)
    """Policy for links in the source: a name in `dataprep.dataset.adopted.LINKS`."""
    pointer: bytes | None = field(default=None, kw_only=True)
    """Content of the build's `plan.json`, so that no worker waits for it; None if each reads it itself."""
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
