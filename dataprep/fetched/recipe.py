"""The recipe of datasets whose originals are tables of URLs: it downloads the images.

tables ─▶ a shard for each range of rows ─▶ fetch, encode, write ─▶ index, TFDS files, manifest
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import lru_cache
from itertools import count

from dataprep.arrays import pa
from dataprep.builder.finished import planned_metadata, shard_numbers
from dataprep.builder.merge import Published, build_manifest, merge_split
from dataprep.builder.output import Claim, OpenBuild, is_over_remains, remove_unfinished
from dataprep.builder.plan import BuildRequest, Plan, Progress
from dataprep.builder.recipe import PAGE_OBJECTS, BuildJob, Planned, Recipe, Traffic
from dataprep.dataset.index import PublishingRows
from dataprep.dataset.manifest import bytes_entry, source_entry
from dataprep.dataset.records import FileEntry, Manifest, ShardReceipt, SplitManifest
from dataprep.errors import BuildError, ConflictError, StorageError, UsageError
from dataprep.fetched import plan as plans
from dataprep.fetched.shard import ShardNames, built_names
from dataprep.fetched.shards import FetchJob, Places, ShardFetcher, are_lost, entries_of, fetched, files_of, placing
from dataprep.formats.img2dataset import SUCCESS
from dataprep.messages import shell_words
from dataprep.sources.laion import LAION, SPLIT
from dataprep.sources.tables import TABLE_WINDOW_BYTES
from dataprep.storage import Storage, open_storage
from dataprep.storage.checksums import crc32c_number

_UNNAMED = (
    "the table's columns are not LAION's, but a new dataset is still named laion, of unknown origin and licence; "
    "`name` NAME, `origin` and `licence` say what it is"
)
_making = threading.Lock()
_INSERTS_A_SHARD = 8
"""Writes and listings of each shard: three files, written and copied, a receipt, and a listing of its folder."""
_GETS_A_SHARD = 2
"""Reads for each shard: plan.json before its files are copied to their names, and its receipt for the index."""
_INSERTS = 12
"""Writes and listings of a build of any size without cards: plan.json is written; index, events and manifest are
written and copied; the output is listed four times, the files to remove once; further pages of long listings are
extra."""
_WHOLE_LISTINGS = 3
"""Listings of the complete output: before waiting files are put in place, and before and after the manifest is put."""
_OBJECTS_A_SHARD = 4
"""Objects of each shard in those listings: three files and its receipt."""
_GETS = 7
"""Reads of a build of any size: plan.json before the index is written, and before index, events and manifest are copied
to their names; the manifest after it was put; and both before the build's own files are removed. Each metadata file
costs one more read of plan.json."""
_TABLE_GETS, _TABLE_GETS_A_SHARD = 4, 2
"""Reads of a table's size and footer, in addition to its rows: when it is measured, and for every shard."""
TOP_REASONS = 5
_REFUSED = "refused address"


class WebRecipe(Recipe):
    """Builds datasets from tables of URLs."""

    output_may_lie_in_source = True  # tables are read by name, so a dataset in their folder is never read as one
    worker_modules = (
        "dataprep.fetched.recipe", "dataprep.fetched.fetching", "numpy", "pyarrow.parquet",
        "simplejpeg", "cv2",
    )  # fmt: skip
    shard_check = "dataprep.verification.fetched_shard:check_fetched_shard"

    def plan(self, request: BuildRequest, progress: Progress, *, keep: bool, is_empty: bool = False) -> Planned:
        """Measure the tables, and plan a shard for each range of their rows."""
        asked = _fetch_request(request)
        progress.enumerating(request.options.splits[0])
        plan = plans.plan_tables(asked.tables, request.options, progress.reading)
        if request.options.own is None and not plans.laion_of(plan)[0].is_laion:
            progress.log(_UNNAMED)
        return Planned(plan, _mark_begun)

    def job(self, request: BuildRequest, root: str, shards: int) -> FetchJob:
        """Return a worker's job, except the shard's index; it includes the limits for fetching."""
        tables = _fetch_request(request).tables
        limits = tables.limits.divided(tables.fetching(shards))
        return FetchJob(request.output_url, request.source_url, root, recipe="web", limits=limits)

    def build_shard(self, job: BuildJob, index: int) -> ShardReceipt:
        return _fetcher(job).build(index)

    def begin_shard(self, job: BuildJob, index: int) -> Future[ShardReceipt]:
        """Fetch one shard, and return when only late rows are in flight."""
        return _fetcher(job).begin(index)

    def assemble(
        self, build: OpenBuild, request: BuildRequest, publishing: PublishingRows, log: Callable[[str], None]
    ) -> tuple[Manifest, Callable[[], None]]:
        """Put waiting files in place, write index and metadata, and return the manifest. If no row became an image,
        remove the build, so that a rerun fetches the rows again, and raise BuildError."""
        manifest, check = _finished(build, publishing)
        if not any(split.samples for split in manifest.splits):
            publishing.wait()
            remove_unfinished(open_storage(build.storage.url), build.claim)
            raise nothing_came(build.storage.url, manifest.splits[0])
        return manifest, check

    def output_traffic(self, plan: Plan, *, workers: int) -> Traffic:
        """Return the traffic between a build and its output; the bytes of images are not known before the download."""
        shards, metadata_files = plan.num_shards, len(planned_metadata(plan))
        pages = _WHOLE_LISTINGS * (_OBJECTS_A_SHARD * shards // PAGE_OBJECTS) + shards // PAGE_OBJECTS
        cards = 2 + (plan.options.format == "webdataset")
        inserts = _INSERTS_A_SHARD * shards + _INSERTS + cards + 2 * metadata_files + pages
        gets = _GETS_A_SHARD * shards + _GETS + metadata_files
        return Traffic(inserts, gets, num_bytes=0)

    def source_traffic(self, plan: Plan) -> Traffic:
        """Return the traffic between a build and its tables, which are measured, then read once.

        The traffic is higher if a row group holds the rows of several shards.
        """
        tables = [int(source["bytes"]) for split in plan.splits for source in split.sources]
        windows = sum(-(-num_bytes // TABLE_WINDOW_BYTES) for num_bytes in tables)
        gets = _TABLE_GETS * len(tables) + _TABLE_GETS_A_SHARD * plan.num_shards + max(plan.num_shards, windows)
        return Traffic(2 * (len(tables) // PAGE_OBJECTS + 1), gets, sum(tables))

    def planned_files(self, storage: Storage, claim: Claim) -> Iterator[str]:
        """Yield the TFDS files, the three files of every shard, and the files that a retry may have added."""
        plan = claim.plan
        yield from planned_metadata(plan)
        for split in plan.splits:
            digits = plans.laion_of(plan)[1].shard_digits
            names = built_names(plan.options.name, plan.options.format, split.name, digits)
            for index in range(len(split.shard_samples)):
                yield from names.files(index)
            yield from _retried_files(storage, names)

    def added_files(self, storage: Storage, manifest: Manifest) -> Iterator[str]:
        return _retried_files(storage, plans.names_of(manifest))

    def shard_file(self, manifest: Manifest, split: SplitManifest, number: int) -> str:
        return plans.names_of(manifest).samples_file(number)

    def sidecar_files(self, manifest: Manifest) -> frozenset[str]:
        names, numbers = plans.names_of(manifest), shard_numbers(manifest, manifest.splits[0])
        return frozenset(name for number in numbers for name in names.files(number)[1:])

    def metadata_files(self, manifest: Manifest) -> dict[str, bytes]:
        return plans.tfds_files(manifest)

    def is_shuffled(self, manifest: Manifest) -> bool:
        """Return False: rows keep the order of their table."""
        return False

    def shape_faults(self, manifest: Manifest) -> Iterator[str]:
        return plans.shape_faults(manifest)

    def layout_faults(self, manifest: Manifest) -> Iterator[str]:
        """Yield a line for unlisted sidecars, and one for files that are not sorted by name."""
        listed = [entry["file"] for entry in manifest.files]
        missing = sorted(self.sidecar_files(manifest) - set(listed))
        if missing:
            yield f"files: {len(missing):,} are not listed, the first is {missing[0]}"
        if listed != sorted(set(listed)):
            yield "files are not sorted by name, or one occurs twice"


WEB = WebRecipe()


def _finished(build: OpenBuild, publishing: PublishingRows) -> tuple[Manifest, Callable[[], None]]:
    """Put waiting files in place, and write everything except the manifest; see `Recipe.assemble`. Raises FormatError
    if a receipt names files of another shard."""
    build.check()
    storage, plan = build.storage, build.plan
    tables, options = plans.laion_of(plan)
    dataset = tables.facts(plan.options.own)
    names = built_names(dataset.name, plan.options.format, SPLIT, options.shard_digits)
    replaces = is_over_remains(storage, plan)
    places = Places(root=build.root, names=names, replaces=replaces)
    place, indexes = placing(storage, replaces=replaces), count()
    publishing.replaces = replaces
    published = Published(build, planned_metadata(plan), placed_late=True)
    sidecars: list[FileEntry] = []
    networks: set[str] = set()
    consents: set[str] = set()
    statuses: Counter[str] = Counter()
    reasons: Counter[str] = Counter()

    def seen(receipt: ShardReceipt, rows: pa.Table) -> None:
        checked = places.checked(storage, next(indexes), receipt)
        try:
            place(checked)
        except StorageError:
            if not are_lost(storage, checked):  # otherwise the comparison below makes the build fetch the shard again
                raise
        files = ((info.name, info.num_bytes, crc32c_number(str(info.crc32c))) for info in files_of(receipt))
        published.expect(receipt.index, files)
        sidecars.extend(entries_of(receipt))
        what = fetched(receipt)
        networks.update(what.allow_networks)
        consents.update(what.consents)
        statuses.update(what.statuses)
        reasons.update(what.reasons)

    merged = merge_split(build, plan.splits[0], publishing, check=_check_rows, seen=seen)
    split = replace(merged, statuses=dict(statuses), reasons=dict(sorted(reasons.items())))
    stated = {} if plan.options.own is None else {"own": plan.options.document()["own"]}
    manifest = replace(
        build_manifest(plan, dataset, [split]),
        options={
            "dataset": LAION.name,
            "format": plan.options.format,
            "splits": [SPLIT],
            LAION.name: options.document(),
            "allow_networks": sorted(networks),
            "consents": sorted(consents),
            **stated,
        },
        sources=tuple(source_entry(SPLIT, source) for source in plan.splits[0].sources),
        shuffled=False,
        checked="decode",
    )
    written = plans.tfds_files(manifest)
    if written:
        publishing.wait()
    for name, data in written.items():
        _create(storage, name, data, replaces=replaces)
        sidecars.append(bytes_entry(name, data))
    files = sorted(sidecars, key=lambda entry: entry["file"])
    return replace(manifest, files=tuple(files)), published.check


def nothing_came(url: str, split: SplitManifest) -> BuildError:
    """Return the error for a build without a single image."""
    advice = "check the table, the filters and the network, and run the same command again"
    if max(split.reasons, key=lambda reason: split.reasons[reason], default="") == _REFUSED:
        advice = (
            "refused addresses are not public: if they belong to your own network, name it with "
            "`allow_network` CIDR, else check the table, and run the command again"
        )
    return BuildError(
        f"{url}: none of {sum(split.statuses.values()):,} rows became an image ({top_reasons(split.reasons)}), and "
        f"nothing is kept; {advice}"
    )


def top_reasons(reasons: Mapping[str, int]) -> str:
    """Return the most frequent failures for a message: `http 404 12, timeout 3`."""
    failures = Counter({reason: count for reason, count in reasons.items() if reason != "success"})
    return ", ".join(f"{reason} {count:,}" for reason, count in failures.most_common(TOP_REASONS))


def _create(storage: Storage, name: str, data: bytes, *, replaces: bool) -> None:
    try:
        storage.create(name, data)
    except ConflictError:
        if not replaces or not storage.replace(name, data, storage.read(name)):
            raise


def _check_rows(index: int, receipt: ShardReceipt, rows: pa.Table) -> tuple[int, bool]:
    """Return the number of a receipt's rows, and whether the index has exactly the successful ones."""
    statuses = fetched(receipt).statuses
    return sum(statuses.values()), statuses.get(SUCCESS, 0) == rows.num_rows


def _retried_files(storage: Storage, names: ShardNames) -> Iterator[str]:
    from dataprep.fetched.retry import retried_files  # builds of new rows do not need it

    return retried_files(storage, names)


def _fetch_request(request: BuildRequest) -> plans.FetchRequest:
    if not isinstance(request, plans.FetchRequest):
        name = request.options.dataset
        raise UsageError(
            f"{name} is built from a table of URLs, got no table; build it with dataprep build {shell_words(name)}"
        )
    return request


def _fetcher(job: BuildJob) -> ShardFetcher:
    """Return this process's fetcher of a job, which remembers hosts from shard to shard. All threads of an engine get
    the same one, because limits belong to a process."""
    if not isinstance(job, FetchJob):
        raise UsageError("a table of URLs needs limits, got none; build it with dataprep build laion")
    with _making:
        return _made_fetcher(job)


_made_fetcher = lru_cache(maxsize=1)(ShardFetcher)


def _mark_begun(storage: Storage, root: str) -> None:
    """Create the build's folder on disk; nothing else creates it, see `Storage.staged`."""
    if storage.is_local:
        storage.create(f"{root}/begun", b"")
