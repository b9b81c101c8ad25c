"""The protocol behind every build: what a kind of originals must know and do to become a dataset.

A dataset names its recipe (`Dataset.recipe`); RECIPES says where it is. The code that plans, builds, assembles,
estimates, overwrites or verifies asks the recipe, and contains no dataset's name.

    request ─plan─▶ Plan ─build_shard, once a shard─▶ receipts ─assemble─▶ Manifest
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from dataprep.errors import UsageError
from dataprep.sources import BUILT

if TYPE_CHECKING:
    from dataprep.build.claim import Claim
    from dataprep.build.job import BuildJob
    from dataprep.build.open_build import OpenBuild
    from dataprep.build.plan import Plan
    from dataprep.build.request import BuildRequest, Progress
    from dataprep.build.traffic import Traffic
    from dataprep.dataset.records import Manifest, ShardReceipt, SplitManifest
    from dataprep.storage import Storage

RECIPES: Mapping[str, str] = {
    "archives": "dataprep.build.archives:ARCHIVES",
    "web": "dataprep.fetched.recipe:WEB",
}
"""By name, the `module:NAME` of each recipe; imported when it is asked for, for some stand above this room."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and what must be stored with it before a worker can read it."""

    plan: Plan
    store: Callable[[Storage, str], None]
    """Stores, below the folder of a build, what its workers read besides the plan."""


class Recipe(Protocol):
    """The way from one kind of originals to a finished dataset, and what such a dataset must look like."""

    shuffled: bool
    """Whether samples are stored in another order than the originals have."""
    output_may_lie_in_source: bool
    """Whether a dataset may be written into the folder of its originals: nothing there is taken for one of them."""
    joins_unnamed_builds: bool
    """Whether a build goes on that dataprep 0.1.0 began, whose folder has no name of its own."""
    worker_modules: tuple[str, ...]
    """Modules that a worker imports before its first shard."""
    shard_check: str
    """`module:NAME` of the function that verifies a finished shard: see dataprep/verify/task.py."""

    def plan(self, request: BuildRequest, progress: Progress, *, keep: bool) -> Planned:
        """Find out what the originals hold, and plan the shards.

        Args:
            request: What to build.
            progress: Told of what is read.
            keep: Store what was found under `_build/`, and use what an earlier run stored. A dry run does neither.

        Raises:
            SourceError: Originals are absent, damaged, or other than published.
            UsageError: The options ask for what the originals or the format do not have.
        """

    def job(self, request: BuildRequest, root: str) -> BuildJob:
        """Return what a worker needs besides a shard's index; `root` is the build's own folder."""

    def build_shard(self, job: BuildJob, index: int) -> ShardReceipt:
        """Build one shard, or find its receipt: see `dataprep.build.job.build_shard`."""

    def begin_shard(self, job: BuildJob, index: int) -> Future[ShardReceipt]:
        """Build one shard, but return as soon as the next can be begun: see `dataprep.build.job.begin_shard`."""

    def assemble(self, build: OpenBuild, request: BuildRequest) -> Manifest:
        """Write all but the manifest from the receipts, each create-only, and return the manifest.

        Raises:
            BuildError: A receipt is missing, or what was built is not to be kept.
        """

    # What a build asks of its buckets, and which names it writes

    def output_traffic(self, plan: Plan, *, workers: int) -> Traffic:
        """Return the requests and bytes that a build asks of its output, receipts included, which go in the end."""

    def source_traffic(self, plan: Plan) -> Traffic:
        """Return the requests and bytes that a build asks of its originals."""

    def planned_files(self, storage: Storage, claim: Claim) -> Iterator[str]:
        """Yield the names that a build writes, but for indexes and manifest, whether they are there or not."""

    # A finished dataset

    def shard_file(self, manifest: Manifest, split: SplitManifest, number: int) -> str:
        """Return the name that the shard of this position in the split must have."""

    def sidecar_files(self, manifest: Manifest) -> frozenset[str]:
        """Return the names of the shards' sidecars, each of which belongs to one shard."""

    def metadata_files(self, manifest: Manifest) -> dict[str, bytes]:
        """Return the dataset's own metadata files as its manifest has them, name to content.

        Raises:
            FormatError: The manifest has no class names that such files can hold.
        """

    def shape_faults(self, manifest: Manifest) -> Iterator[str]:
        """Yield a line for each field that this recipe's manifests have and that cannot be read."""

    def layout_faults(self, manifest: Manifest) -> Iterator[str]:
        """Yield a line for each file that is listed otherwise than a build lists it. Expects no shape faults."""

    def option_faults(self, manifest: Manifest) -> Iterator[str]:
        """Yield a line for each option that contradicts the rest of the manifest. Expects no shape faults."""


def recipe_of(dataset: str) -> Recipe:
    """Return the recipe of a dataset.

    Raises:
        UsageError: There is no dataset of that name.
    """
    known = BUILT.get(dataset)
    if known is None:
        raise UsageError(f"no dataset is called {dataset!r}; expected one of {', '.join(BUILT)}")
    return recipe_named(known.recipe)


@cache
def recipe_named(name: str) -> Recipe:
    """Return the recipe of that name in RECIPES."""
    return cast(Recipe, load(RECIPES[name]))


def load(place: str) -> Any:
    """Import what `module:NAME` says."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
