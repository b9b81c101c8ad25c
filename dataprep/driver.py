"""One build from end to end: enumerate, plan, run an engine, assemble. Resumable at any point.

    manifest there with our plan's hash?  -> done
    originals -> enumeration (kept) -> plan (create-only) -> engine: shards, receipts -> index -> metadata -> manifest

Every step is create-only and gives the same bytes whoever takes it, so a second build at the same place, or a rerun
after any crash, joins in instead of doing harm.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dataprep.build import BuildJob
from dataprep.errors import DataprepError, UsageError
from dataprep.formats import FORMATS
from dataprep.formats.base import DatasetInfo
from dataprep.formats.imagefolder import repeat_links
from dataprep.manifest import (
    MANIFEST,
    build_manifest,
    bytes_entry,
    manifest_bytes,
    merge_split,
    read_manifest,
    refuse_rejections,
)
from dataprep.plan import (
    BuildOptions,
    Plan,
    PlannedSplit,
    codec_versions,
    enumeration_sha256,
    order_split,
    physical_key,
)
from dataprep.records import Enumeration, Manifest, SampleRef, ShardReceipt, SplitManifest
from dataprep.sources import BUILT, sized_dataset
from dataprep.storage import open_originals, open_storage
from dataprep.storage.base import Storage
from dataprep.workspace import (
    BUILD,
    FOLDER,
    PLAN_JSON,
    RETRY,
    finished_shards,
    load_enumeration,
    read_plan,
    refs_table,
    store_enumeration,
    store_plan,
)

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from dataprep.laion.plan import LaionRequest
    from dataprep.sources.base import Dataset

_OVERWRITING = f"{BUILD}/overwriting"
_ROOT_FILES = ("features.json", "*.labels.txt", "replicas.json", "*.tfrecord-*")
"""What a dataset may have in its root beside dataset.json and dataset_info.json; anything else is somebody else's."""

Engine = Callable[[BuildJob, list[int]], Iterator[ShardReceipt]]
"""Builds the shards of these indexes, in any order, and yields their receipts as they come."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildRequest:
    """What to build, from where, to where, and within which limits."""

    options: BuildOptions
    source_url: str
    output_url: str
    max_reject_ratio: float
    overwrite: bool = False
    laion: LaionRequest | None = None
    """Where the originals are tables of URLs; they have no limit on rejections."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A whole dataset, and what this run did for it."""

    manifest: Manifest
    shards_built: int
    """By this run; the others stood already."""


class Progress(Protocol):
    """What a build tells whoever watches."""

    def enumerating(self, split: str) -> None:
        """The originals of a split are being listed."""

    def reading(self, name: str, done_bytes: int, total_bytes: int) -> None:
        """This much of an original archive was walked or hashed."""

    def planned(self, plan: Plan, done: set[int]) -> None:
        """The plan stands; these shards are there from an earlier run."""

    def shard_done(self, receipt: ShardReceipt) -> None:
        """One more shard stands."""

    def assembling(self) -> None:
        """All shards stand; index and manifest are being written."""


def prepare(request: BuildRequest, progress: Progress, *, keep: bool) -> tuple[Plan, Iterator[pa.Table] | None]:
    """Enumerate the originals and plan the shards.

    Args:
        keep: Store enumerations under `_build/`, and use those stored by an earlier run. A dry run does neither.

    Returns:
        The plan, and its references: one table a shard, in the order of their indexes; None for a table of URLs.
    """
    import numpy as np

    options = request.options
    if request.laion is not None:
        from dataprep.laion.plan import plan_tables

        progress.enumerating(options.splits[0])
        return plan_tables(request.laion, options, progress.reading), None
    dataset = sized_dataset(options.dataset, options.fake_images)
    source, output = open_originals(request.source_url), open_storage(request.output_url)
    splits: list[PlannedSplit] = []
    ordered: list[tuple[list[SampleRef], list[NDArray[np.int64]], int]] = []
    classes: tuple[str, ...] | None = None
    for name in options.splits:
        progress.enumerating(name)
        enumeration = _enumerate(dataset, source, output if keep else None, name, options, classes, progress)
        classes = enumeration.classes
        refs = enumeration.refs
        num_bytes = np.fromiter((ref.num_bytes for ref in refs), np.int64, len(refs))
        stored = dataset.repeats(name) if options.repeat == "physical" else 1
        written = stored if FORMATS[options.format] is not None else 1  # an image folder repeats by links
        order = order_split(num_bytes, options, name, written)
        ordered.append((refs, order, written))
        splits.append(_planned_split(dataset, name, enumeration, order, stored, int(num_bytes.sum())))
    plan = Plan(options=options, codecs=codec_versions(), classes=classes or (), splits=tuple(splits))
    return plan, _shard_tables(ordered)


def run_build(request: BuildRequest, engine: Engine, progress: Progress) -> BuildResult:
    """Build a dataset, or what is missing of it.

    Raises:
        DataprepError: The build is not finished; what was done stays, and the same command goes on from there.
    """
    storage = open_storage(request.output_url)
    _refuse_foreign(storage, request)
    storage.remove_stale_spools()
    if request.overwrite:
        _make_way(storage, request, progress)
    plan, tables = prepare(request, progress, keep=True)
    manifest = _finished(storage, plan)
    built = 0
    if manifest is None:
        try:
            built = _build_missing(storage, plan, tables, request, engine, progress)
            manifest = _assemble(storage, plan, request, progress)
        except (DataprepError, OSError):
            # Another build may have finished, and cleaned up, under our feet.
            manifest = _finished(storage, plan)
            if manifest is None:
                raise
    storage.delete_tree(BUILD)
    return BuildResult(manifest, built)


def _enumerate(
    dataset: Dataset,
    source: Storage,
    keep_in: Storage | None,
    split: str,
    options: BuildOptions,
    classes: tuple[str, ...] | None,
    progress: Progress,
) -> Enumeration:
    if keep_in is not None:
        kept = load_enumeration(keep_in, source, split, allow_partial=options.allow_partial)
        if kept is not None:
            return kept
    enumeration = dataset.enumerate(
        source, split, allow_partial=options.allow_partial, classes=classes, progress=progress.reading
    )
    if keep_in is not None and _worth_keeping(keep_in):
        store_enumeration(keep_in, split, enumeration, allow_partial=options.allow_partial)
    return enumeration


def _worth_keeping(output: Storage) -> bool:
    """A finished dataset is only compared with the plan: nothing is left lying beside it."""
    return output.stat(MANIFEST) is None


def _planned_split(
    dataset: Dataset, name: str, found: Enumeration, order: list[NDArray[np.int64]], stored: int, source_bytes: int
) -> PlannedSplit:
    return PlannedSplit(
        name=name,
        shard_samples=tuple(len(positions) for positions in order),
        repeat_count=dataset.repeats(name),
        repeat_stored=stored,
        sources=tuple({"name": file.name, "bytes": file.num_bytes} for file in found.sources),
        enumeration_sha256=enumeration_sha256(found.refs),
        source_bytes=source_bytes,
    )


def _shard_tables(ordered: list[tuple[list[SampleRef], list[NDArray[np.int64]], int]]) -> Iterator[pa.Table]:
    for refs, order, written in ordered:
        shards_a_pass = len(order) // written
        for index, positions in enumerate(order):
            chosen = [refs[position] for position in positions.tolist()]
            if written > 1:
                chosen = [replace(ref, key=physical_key(ref.key, index // shards_a_pass)) for ref in chosen]
            yield refs_table(chosen)


def _finished(storage: Storage, plan: Plan) -> Manifest | None:
    """The manifest of this very plan; None when there is none. Raises UsageError when another dataset stands there."""
    manifest = read_manifest(storage)
    if manifest is None or manifest.plan_hash == plan.plan_hash:
        return manifest
    raise UsageError(
        f"{storage.url}: another dataset stands there ({manifest.name}, {manifest.format}, plan "
        f"{manifest.plan_hash[:12]}, asked for {plan.plan_hash[:12]}); choose another --output or --overwrite it"
    )


def _build_missing(
    storage: Storage,
    plan: Plan,
    tables: Iterator[pa.Table] | None,
    request: BuildRequest,
    engine: Engine,
    progress: Progress,
) -> int:
    store_plan(storage, plan, tables)
    done = finished_shards(storage)
    progress.planned(plan, done)
    missing = [index for index in range(plan.num_shards) if index not in done]
    limits = None if request.laion is None else request.laion.limits
    job = BuildJob(request.output_url, request.source_url, plan.plan_hash, limits)
    if missing:
        for receipt in engine(job, missing):
            progress.shard_done(receipt)
    return len(missing)


def _assemble(storage: Storage, plan: Plan, request: BuildRequest, progress: Progress) -> Manifest:
    """Index, metadata, manifest: in this order, each create-only."""
    progress.assembling()
    if request.laion is not None:
        return _assemble_laion(storage, plan)
    dataset = sized_dataset(plan.options.dataset, plan.options.fake_images)
    splits: list[SplitManifest] = []
    first_index = 0
    for split in plan.splits:
        splits.append(merge_split(storage, plan, split, first_index))
        first_index += len(split.shard_samples)
    refuse_rejections(storage, plan, request.max_reject_ratio, splits)
    files = _metadata_files(plan, dataset, splits)
    for name, data in files.items():
        storage.create(name, data)
    if FORMATS[plan.options.format] is None and storage.is_local:
        _place_folder(Path(storage.url), plan)
    manifest = build_manifest(plan, dataset, splits, [bytes_entry(name, data) for name, data in files.items()])
    storage.create(MANIFEST, manifest_bytes(manifest))
    return manifest


def _assemble_laion(storage: Storage, plan: Plan) -> Manifest:
    from dataprep.laion.finish import finish_laion, nothing_came

    manifest = finish_laion(storage, plan)
    if not any(split.samples for split in manifest.splits):
        _remove_dataset(storage)  # or the failures would stand for ever
        raise nothing_came(storage.url, manifest.splits[0])
    storage.create(MANIFEST, manifest_bytes(manifest))
    return manifest


def _metadata_files(plan: Plan, dataset: Dataset, splits: list[SplitManifest]) -> dict[str, bytes]:
    shard_format = FORMATS[plan.options.format]
    if shard_format is None:
        return {}
    info = DatasetInfo(
        name=dataset.name,
        description=dataset.description,
        citation=dataset.citation,
        licence=dataset.licence,
        classes=plan.classes,
        shard_samples={split.name: tuple(shard["samples"] for shard in split.shards) for split in splits},
        split_bytes={split.name: split.num_bytes for split in splits},
    )
    return dict(sorted(shard_format.metadata_files(info).items()))


def _place_folder(root: Path, plan: Plan) -> None:
    """Rename an image folder into place, directory by directory; whoever comes second finds it done."""
    aside = root / FOLDER
    for split in plan.splits:
        if split.repeat_stored > 1 and (aside / "images").is_dir():
            folders = sorted(path.name for path in (aside / "images").iterdir())
            (aside / split.name).mkdir(exist_ok=True)
            for link, target in repeat_links(folders, split.repeat_count):
                if not (aside / link).is_symlink():
                    (aside / link).symlink_to(target)
    for directory in sorted(aside.iterdir()) if aside.is_dir() else []:
        place = root / directory.name
        if not place.exists():
            directory.rename(place)
    descriptor = os.open(root, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_foreign(storage: Storage, request: BuildRequest) -> None:
    """Never mix a dataset into files that are not its own."""
    if storage.url == open_originals(request.source_url).url:
        raise UsageError(f"{storage.url}: --source and --output are the same; choose another --output")
    with ThreadPoolExecutor(3) as threads:  # over a network side by side
        overwriting, *ours = threads.map(storage.stat, (_OVERWRITING, MANIFEST, PLAN_JSON))
    if overwriting is not None:
        if request.overwrite:
            return
        raise UsageError(f"{storage.url}: an --overwrite was interrupted there; run it again with --overwrite")
    if any(ours):
        return
    for info in storage.list():
        if not info.name.startswith(f"{BUILD}/"):
            raise UsageError(
                f"{storage.url} is not empty and holds no dataset of ours (found {info.name}); choose another --output"
            )


def _make_way(storage: Storage, request: BuildRequest, progress: Progress) -> None:
    """Remove the dataset that stands there, the manifest first; a build of our own plan under way is kept."""
    manifest_there = storage.stat(MANIFEST) is not None
    under_way = None if manifest_there or storage.stat(_OVERWRITING) is not None else _readable_plan(storage)
    if under_way is not None:
        plan, _ = prepare(request, progress, keep=False)
        if plan.plan_hash == under_way.plan_hash:
            return
    if not manifest_there and storage.stat(_OVERWRITING) is None and storage.stat(PLAN_JSON) is None:
        return
    _remove_dataset(storage)


def _remove_dataset(storage: Storage) -> None:
    """The manifest first; until all is gone a mark says that nothing else may begin here."""
    storage.create(_OVERWRITING, b"")
    storage.delete(MANIFEST)
    storage.delete("dataset_info.json")
    for name in {split for dataset in BUILT.values() for split in dataset.splits} | {"images", "index", RETRY}:
        storage.delete_tree(name)
    for info in list(storage.list()):
        if any(fnmatch(info.name, pattern) for pattern in _ROOT_FILES):
            storage.delete(info.name)
    for info in list(storage.list(f"{BUILD}/")):
        if info.name != _OVERWRITING:
            storage.delete(info.name)
    storage.delete_tree(BUILD)


def _readable_plan(storage: Storage) -> Plan | None:
    try:
        return read_plan(storage)
    except DataprepError:
        return None
