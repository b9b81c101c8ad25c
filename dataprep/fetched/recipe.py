"""The recipe of datasets whose originals are tables of URLs: it downloads the images.

tables ─▶ a shard for each range of rows ─▶ fetch, encode, write ─▶ index, TFDS files, manifest
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import lru_cache

from dataprep.builder.finished import planned_metadata
from dataprep.builder.output import Claim, OpenBuild, remove_unfinished
from dataprep.builder.plan import BuildRequest, Plan, Progress
from dataprep.builder.recipe import BuildJob, Planned
from dataprep.builder.traffic import PAGE_OBJECTS, Traffic
from dataprep.dataset.index import PublishingRows
from dataprep.dataset.records import Manifest, ShardReceipt, SplitManifest
from dataprep.errors import UsageError
from dataprep.fetched.finish import facts_of, finish_tables, nothing_came, tfds_files
from dataprep.fetched.plan import (
    FetchRequest,
    laion_of,
    laion_options,
    names_of,
    option_faults,
    plan_tables,
    sidecar_faults,
    sidecar_names,
)
from dataprep.fetched.retry import retried_files
from dataprep.fetched.shard import built_names
from dataprep.fetched.shards import FetchJob, ShardFetcher
from dataprep.messages import shell_words
from dataprep.sources.tables import TABLE_WINDOW_BYTES
from dataprep.storage import Storage, open_storage

_UNNAMED = (
    "the table's columns are not LAION's: a new dataset is called laion all the same, of unknown origin and licence; "
    "`name` NAME, `origin` and `licence` say what it is"
)
_making = threading.Lock()
_INSERTS_A_SHARD = 8
"""Writes and listings of each shard: three files are written and copied, its receipt is written, its folder is
listed."""
_GETS_A_SHARD = 2
"""Reads for each shard: plan.json before the server copies its files to their names, and its receipt when the index is
written."""
_INSERTS = 14
"""Writes and listings of a build of any size: plan.json and two cards are written; index, events and manifest are
written and copied; the output is listed four times, the files to remove once; further pages of long listings are
extra."""
_WHOLE_LISTINGS = 3
"""Listings of all the output: before files that wait are put in place, before the manifest is put, and afterwards."""
_OBJECTS_A_SHARD = 4
"""Objects of each shard in those listings: three files and its receipt."""
_GETS = 7
"""Reads of a build of any size: a look at plan.json before the index is written, and before index, events and manifest
are copied to their names; at the manifest once it is put; and it and plan.json before the build's own files are
removed. Each metadata file is copied to its name after a look as well."""
_TABLE_GETS, _TABLE_GETS_A_SHARD = 4, 2
"""Reads of a table's size and footer, in addition to its rows: when it is measured, and for every shard."""
ALIVE_SHARE = 0.68
"""Share of LAION-400M's links that answered early in 2024 (img2dataset's issue 400); other tables differ."""
IMAGE_BYTES = 190_000
"""Mean size of a download, from img2dataset's authors: 1,300 images a second over 2 Gbit/s."""


class WebRecipe:
    """Builds datasets from tables of URLs; implements `dataprep.builder.recipe.Recipe`."""

    output_may_lie_in_source = True  # tables are read by their names: a dataset in their folder is none of them
    worker_modules = (
        "dataprep.fetched.recipe", "dataprep.fetched.fetching", "numpy", "pyarrow.parquet",
        "simplejpeg", "cv2",
    )  # fmt: skip
    shard_check = "dataprep.verification.fetched_shard:check_fetched_shard"

    def plan(self, request: BuildRequest, progress: Progress, *, keep: bool, is_empty: bool = False) -> Planned:
        """Measure the tables, and plan a shard for each range of their rows."""
        asked = _fetch_request(request)
        progress.enumerating(request.options.splits[0])
        plan = plan_tables(asked.tables, request.options, progress.reading)
        if request.options.own is None and not laion_of(plan)[0].is_laion:
            progress.log(_UNNAMED)
        return Planned(plan, _mark_begun)

    def job(self, request: BuildRequest, root: str, shards: int) -> FetchJob:
        """Return what a worker needs in addition to a shard's index, including its limits for fetching."""
        tables = _fetch_request(request).tables
        limits = tables.limits.divided(tables.fetching(shards))
        return FetchJob(request.output_url, request.source_url, root, recipe="web", limits=limits)

    def build_shard(self, job: BuildJob, index: int) -> ShardReceipt:
        """Fetch one shard, or return its existing receipt."""
        return _fetcher(_fetch_job(job)).build(index)

    def begin_shard(self, job: BuildJob, index: int) -> Future[ShardReceipt]:
        """Fetch one shard, and return while its late rows are in flight."""
        return _fetcher(_fetch_job(job)).begin(index)

    def assemble(
        self, build: OpenBuild, request: BuildRequest, publishing: PublishingRows, log: Callable[[str], None]
    ) -> tuple[Manifest, Callable[[], None]]:
        """Put waiting files in place, write index and metadata, and return the manifest.

        Raises:
            BuildError: No row became an image. The build is removed, so that a rerun fetches the rows again.
        """
        manifest, check = finish_tables(build, publishing)
        if not any(split.samples for split in manifest.splits):
            publishing.wait()
            remove_unfinished(open_storage(build.storage.url), build.claim)
            raise nothing_came(build.storage.url, manifest.splits[0])
        return manifest, check

    def output_traffic(self, plan: Plan, *, workers: int) -> Traffic:
        """Return the traffic between a build and its output."""
        return fetched_traffic(plan, metadata_files=len(planned_metadata(plan)))

    def source_traffic(self, plan: Plan) -> Traffic:
        """Return the traffic between a build and its tables."""
        return tables_traffic(plan)

    def web_bytes(self, plan: Plan) -> int:
        """Return the bytes of the images that are still there."""
        return web_bytes(plan)

    def planned_files(self, storage: Storage, claim: Claim) -> Iterator[str]:
        """Yield the TFDS files, the three files of every shard, and those that a retry may have added."""
        plan = claim.plan
        yield from planned_metadata(plan)
        for split in plan.splits:
            digits = laion_of(plan)[1].shard_digits
            names = built_names(plan.options.name, plan.options.format, split.name, digits)
            for index in range(len(split.shard_samples)):
                yield from names.files(index)
            yield from retried_files(storage, names)

    def added_files(self, storage: Storage, manifest: Manifest) -> Iterator[str]:
        """Yield the files of the shards that a retry may have added."""
        return retried_files(storage, names_of(manifest))

    def shard_file(self, manifest: Manifest, split: SplitManifest, number: int) -> str:
        """Return the name of the samples file."""
        return names_of(manifest).samples_file(number)

    def sidecar_files(self, manifest: Manifest) -> frozenset[str]:
        """Return the parquet file and the stats of every shard."""
        return sidecar_names(manifest)

    def metadata_files(self, manifest: Manifest) -> dict[str, bytes]:
        """Return TFDS's files for the counts of the manifest."""
        return tfds_files(facts_of(manifest), manifest.format, laion_options(manifest), manifest.splits[0])

    def is_shuffled(self, manifest: Manifest) -> bool:
        """Return False: rows keep the order of their table."""
        return False

    def shape_faults(self, manifest: Manifest) -> Iterator[str]:
        """Yield the faults that keep sources, options or counts from being read."""
        yield from option_faults(manifest)

    def layout_faults(self, manifest: Manifest) -> Iterator[str]:
        """Yield sidecars that are not listed, and files that are not in the order of their names."""
        yield from sidecar_faults(manifest)

    def option_faults(self, manifest: Manifest) -> Iterator[str]:
        """Yield nothing: values that are recorded twice are compared for every recipe."""
        return iter(())


WEB = WebRecipe()


def web_bytes(plan: Plan) -> int:
    """Return the bytes of the images that a build downloads, estimated from its number of rows."""
    rows = sum(sum(split.shard_samples) for split in plan.splits)
    return round(rows * ALIVE_SHARE * IMAGE_BYTES)


def fetched_traffic(plan: Plan, *, metadata_files: int) -> Traffic:
    """Return the traffic between a build and its output; the bytes of images are unknown before they are fetched.

    Args:
        metadata_files: Number of files that the format writes in addition to the manifest.
    """
    pages = _WHOLE_LISTINGS * (_OBJECTS_A_SHARD * plan.num_shards // PAGE_OBJECTS) + plan.num_shards // PAGE_OBJECTS
    inserts = _INSERTS_A_SHARD * plan.num_shards + _INSERTS + 2 * metadata_files + pages
    gets = _GETS_A_SHARD * plan.num_shards + _GETS + metadata_files
    return Traffic(inserts, gets, num_bytes=0)


def tables_traffic(plan: Plan) -> Traffic:
    """Return the traffic between a build and its tables, which are measured, then read once.

    The traffic is higher if a row group holds the rows of several shards.
    """
    tables = [int(source["bytes"]) for split in plan.splits for source in split.sources]
    windows = sum(-(-num_bytes // TABLE_WINDOW_BYTES) for num_bytes in tables)
    gets = _TABLE_GETS * len(tables) + _TABLE_GETS_A_SHARD * plan.num_shards + max(plan.num_shards, windows)
    return Traffic(2 * (len(tables) // PAGE_OBJECTS + 1), gets, sum(tables))


def _fetch_request(request: BuildRequest) -> FetchRequest:
    if not isinstance(request, FetchRequest):
        name = request.options.dataset
        raise UsageError(
            f"{name} is built from a table of URLs, got no table; build it with dataprep build {shell_words(name)}"
        )
    return request


def _fetch_job(job: BuildJob) -> FetchJob:
    if not isinstance(job, FetchJob):
        raise UsageError("a table of URLs is built within limits, got none; build it with dataprep build laion")
    return job


def _fetcher(job: FetchJob) -> ShardFetcher:
    """Return this process's fetcher of a job, which keeps what it learns about hosts from shard to shard. Each thread
    of an engine gets the same one, because limits belong to a process."""
    with _making:
        return _made_fetcher(job)


@lru_cache(maxsize=1)
def _made_fetcher(job: FetchJob) -> ShardFetcher:
    return ShardFetcher(job)


def _mark_begun(storage: Storage, root: str) -> None:
    """Create the build's folder on disk; nothing else creates it, see `Storage.staged`."""
    if storage.is_local:
        storage.create(f"{root}/begun", b"")
