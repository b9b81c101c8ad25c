"""One build from end to end: plan, run an engine, assemble. Resumable at any point.

    manifest there with our plan's hash?  -> done, if its files have the right sizes
    originals -> plan (create-only) -> engine: shards, receipts -> index -> metadata -> manifest

Every step is create-only and gives the same bytes in any process. So a second build of the same output, or a rerun
after a crash, safely joins in.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import chain
from typing import NoReturn

from dataprep.builder import output as outputs
from dataprep.builder.finished import image_root, indexed_images, listed_names, readable_manifest, refuse_other_change
from dataprep.builder.merge import LostError
from dataprep.builder.plan import BuildRequest, Plan, Progress, dataset_differences, other_versions, same_but_codecs
from dataprep.builder.receipts import finished_shards
from dataprep.builder.recipe import Engine, Planned, recipe_of
from dataprep.builder.references import original_names
from dataprep.dataset.index import PublishingRows, index_files, is_changing
from dataprep.dataset.manifest import (
    MANIFEST,
    MANIFEST_ADVICE,
    MAX_MANIFEST_BYTES,
    MAX_SHARDS,
    first_faults,
    manifest_bytes,
    read_manifest,
    size_faults,
)
from dataprep.dataset.paths import BUILD, OVERWRITING, OVERWRITTEN, PLAN_JSON
from dataprep.dataset.records import Manifest, ShardReceipt, SplitManifest
from dataprep.errors import BuildError, DataprepError, UsageError, VerificationError
from dataprep.formats import FORMATS
from dataprep.messages import counted, printable
from dataprep.storage import ObjectInfo, Storage, open_originals, open_storage
from dataprep.storage.base import read_bounded
from dataprep.storage.local import LocalStorage


def refuse_damaged(storage: Storage, manifest: Manifest) -> None:
    """Raise VerificationError, naming files, if some are missing or have another size than the manifest says.

    Nothing is compared while `dataprep retry-failed` runs, or after it was interrupted, because files are then newer
    than the manifest.
    """
    damage = _damage(storage, manifest)
    if not damage or is_changing(storage):
        return
    raise VerificationError(
        f"{damage}. Do one of these. To rebuild everything: use `overwrite`. To rebuild only the damage: delete the "
        f"damaged files and {MANIFEST}, then run this command again. To restore from a copy: delete only the damaged "
        f"files, replicate the copy to {storage.url}, then verify"
    )


def refuse_other_versions(storage: Storage, manifest: Manifest, versions: str) -> NoReturn:
    """Raise an error about a dataset that was made with other codec versions than this build's. Raises
    VerificationError if files are missing or have another size, and UsageError if all files are there. `versions` are
    the words of `other_versions`."""
    advice = "or build all of it again with `overwrite`"
    if damage := _damage(storage, manifest):
        raise VerificationError(
            f"{damage}. It was {versions}; other versions may write other bytes: install those versions to repair "
            f"it, replicate another copy to {storage.url}, {advice}"
        )
    raise UsageError(f"{storage.url}: the dataset is there already, {versions}; choose another `output`, {advice}")


def _damage(storage: Storage, manifest: Manifest) -> str:
    damaged = list(damaged_files(storage, manifest))
    if not damaged:
        return ""
    return f"{storage.url}: the dataset is damaged, {counted(len(damaged), 'file')} of it: {first_faults(damaged)}"


def damaged_files(storage: Storage, manifest: Manifest) -> Iterator[str]:
    """Yield a clause for each file of a dataset that is missing or has another size: `x.tar has 3 bytes, expected 9`.

    On disk each file is looked at; a bucket of shards is listed once. Images that are separate files are listed.
    """
    due = {entry["file"]: entry["bytes"] for entry in manifest.files}
    single = FORMATS[manifest.format].one_file_per_image
    for split in manifest.splits:
        shards = () if single else split.shards
        due |= {entry["file"]: entry["bytes"] for entry in chain(index_files(split), [split.events], shards)}
    damaged = list(size_faults(due.items(), _sizes(storage, due, single=single)))
    yield from damaged
    if single and not damaged:  # otherwise the index, which names the images, may be missing
        for split in manifest.splits:
            yield from _damaged_images(storage, manifest, split, set(due))


def _sizes(storage: Storage, names: Collection[str], *, single: bool) -> Mapping[str, int]:
    """Return the sizes of files that exist, in bytes; a bucket is listed unless every image is a separate file."""
    if isinstance(storage, LocalStorage):
        return storage.sizes(names)
    infos = map(storage.stat, names) if single else storage.list()
    return {info.name: info.num_bytes for info in infos if info is not None}


def _damaged_images(storage: Storage, manifest: Manifest, split: SplitManifest, others: set[str]) -> Iterator[str]:
    """Yield the clauses for one split of an image folder; its index is read only if number or bytes of its files, all
    but the `others`, differ."""
    root = f"{image_root(manifest, split)}/"
    sizes = [info.num_bytes for info in storage.list(root) if info.name not in others]
    if (len(sizes), sum(sizes)) != (split.samples, split.num_bytes):
        found = {info.name: info.num_bytes for info in storage.list(root)}
        yield from size_faults(indexed_images(storage, manifest, split), found)


REPAIRS = 2
"""Maximum number of times that a build makes shards again after their files were removed or changed by others."""
MAX_SENT_POINTER_BYTES = 1 << 16
"""Maximum size of a `plan.json` that is sent to the workers. They read a larger one themselves, because it would make
the graphs of engines large. ImageNet's has 20 kB."""


class _Output(Enum):
    """State of the output before a build."""

    EMPTY = auto()
    """Empty, according to one listing of a bucket; not used for disks."""
    LEFT = auto()
    """Files of a dataset whose manifest is gone, and no build is under way."""
    OTHER = auto()
    """A dataset, a build, or the marks of a removal; on a disk perhaps nothing."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A complete dataset, and this run's work on it."""

    manifest: Manifest
    shards_built: int
    """Number of shards that this run built; the others were done before."""
    assembled: bool
    """Whether this run wrote the manifest."""
    others: int = 0
    """Number of shards that other processes built during this run."""


def prepare(request: BuildRequest, progress: Progress, *, keep: bool, is_empty: bool = False) -> Planned:
    """List the originals and plan the shards, with the recipe of the dataset; see `Recipe.plan`. Raises UsageError if
    there are more shards than a manifest can hold, so the dataset could not be read."""
    planned = recipe_of(request.options.dataset).plan(request, progress, keep=keep, is_empty=is_empty)
    if planned.plan.num_shards > MAX_SHARDS:
        raise UsageError(
            f"the plan has {planned.plan.num_shards:,} shards, a dataset can have {MAX_SHARDS:,}; ask for larger shards"
        )
    return planned


def run_build(
    request: BuildRequest,
    engine: Engine,
    progress: Progress,
    finished: Callable[[BuildResult], None] = lambda result: None,
) -> BuildResult:
    """Build a dataset, or its missing part.

    Args:
        finished: Called when the dataset is complete; in a bucket while the build's own files are removed.

    Raises:
        DataprepError: The build is not finished; finished parts stay, and the same command continues from there.
        VerificationError: The dataset was finished before, and files of it are missing or have another size.
        OvertakenError: Another build owns the output now; no file of this one was left there.
    """
    if request.append:
        result = _grow(request, engine, progress)
        finished(result)
        return result
    storage = open_storage(request.output_url)
    refuse_nested(storage, request)
    output = _refuse_foreign(storage, overwrite=request.overwrite)
    found = outputs.look(storage) if request.overwrite else None
    storage.remove_stale_spools()
    planned = prepare(request, progress, keep=True, is_empty=output is _Output.EMPTY)
    plan = planned.plan
    if output is _Output.LEFT or found is not None:
        planned.kept()
    if output is _Output.LEFT:
        if outputs.take_over(storage, planned, overwrite=request.overwrite):
            # Its references are stored only once, and the notes about the originals were shown before.
            planned = prepare(request, _ToldProgress(progress), keep=True)
    elif found is not None and not found.is_empty and not _is_of(storage, found, planned):
        outputs.make_way(storage, found)
    owner, manifest = (None, None) if output is _Output.EMPTY else _owner_and_manifest(storage, plan, request)
    if manifest is None:
        claim, result = _claim_and_build(storage, planned, owner, request, engine, progress)
    else:
        refuse_damaged(storage, manifest)
        claim, result = None, BuildResult(manifest, 0, assembled=False)
    planned.kept()
    with ThreadPoolExecutor(1) as threads:  # over a network concurrently
        tidied = threads.submit(outputs.tidy_up, storage, claim, plan.plan_hash)
        if storage.is_local:
            wait([tidied])
        finished(result)
    if (error := tidied.exception()) is not None:
        if not isinstance(error, DataprepError):
            raise error
        progress.log(f"the dataset is complete, but files of the build stay in {BUILD}/: {error}")
    return result


@dataclass(frozen=True, slots=True)
class Growth:
    """A finished dataset, and the shards to add to it."""

    storage: Storage
    manifest: Manifest
    data: bytes
    """Content of `dataset.json`."""
    planned: Planned | None
    """None if there is nothing to add."""


def plan_growth(request: BuildRequest, progress: Progress, *, keep: bool) -> Growth:
    """List the originals, and plan what a finished dataset lacks; see `Recipe.plan_growth`. Raises UsageError if there
    is no dataset that can grow."""
    storage = open_storage(request.output_url)
    refuse_nested(storage, request)
    data = read_bounded(storage, MANIFEST, MAX_MANIFEST_BYTES, advice=MANIFEST_ADVICE)
    if data is None:
        raise UsageError(f"{storage.url}: no dataset there to append to; leave out `append`")
    manifest = readable_manifest(storage)
    refuse_other_change(storage, "append")
    refuse_damaged(storage, manifest)
    planned = recipe_of(request.options.dataset).plan_growth(request, progress, manifest, data, keep=keep)
    shards = sum(len(split.shards) for split in manifest.splits)
    if planned is not None and shards + planned.plan.num_shards > MAX_SHARDS:
        raise UsageError(
            f"{storage.url}: would have more than {MAX_SHARDS:,} shards; build the new samples as a separate dataset"
        )
    return Growth(storage, manifest, data, planned)


def _grow(request: BuildRequest, engine: Engine, progress: Progress) -> BuildResult:
    """Append new originals to a finished dataset as further shards, and publish the next revision. Until then the
    dataset stays as it was; the same command continues an interrupted growth."""
    growth = plan_growth(request, progress, keep=True)
    storage, manifest, planned = growth.storage, growth.manifest, growth.planned
    storage.remove_stale_spools()
    owner = outputs.read_claim(storage)
    if owner is not None and (planned is None or owner.plan.plan_hash != planned.plan.plan_hash):
        is_published = owner.plan.grows != hashlib.sha256(growth.data).hexdigest()
        outputs.withdraw_growth(storage, owner, manifest, is_published=is_published)
        owner = None
    if owner is None:
        _remove_old_index(storage, manifest)
    if planned is None:
        outputs.tidy_up(storage, None, manifest.plan_hash)  # of a growth that was killed at its end
        return BuildResult(manifest, 0, assembled=False)
    planned.kept()
    claim, recipe = None, recipe_of(request.options.dataset)
    try:
        entry = outputs.begin_or_join(storage, planned, owner)
        claim = entry.claim
        if planned.repair is not None and not entry.has_begun:
            claim = planned.repair(storage, claim, progress.log)
        build = outputs.open_build(storage.url, claim.root, claim.pointer)
        done = finished_shards(build.storage, claim.root)
        _, built = _build_missing(build, done, request, engine, progress)
        progress.assembling()
        made = recipe.grow(build, request, manifest, growth.data, progress.log)
    except (DataprepError, OSError):
        found = read_manifest(storage)  # another process may have finished it meanwhile
        added = [] if found is None else [each for each in found.changes if each.revision == manifest.revision + 1]
        if found is None or not added or found.revision != manifest.revision + 1:
            raise
        made, built = found, 0
    outputs.tidy_up(storage, claim, manifest.plan_hash)
    _remove_old_index(storage, made)
    return BuildResult(made, built, assembled=True)


def _remove_old_index(storage: Storage, manifest: Manifest) -> None:
    """Remove files of the index that only an earlier revision lists."""
    listed = listed_names(manifest)
    for info in list(storage.list("index/")):
        if info.name not in listed:
            storage.delete(info.name)


class _ToldProgress:
    """Progress of listing originals again; its lines are hidden because the user has seen them."""

    def __init__(self, progress: Progress) -> None:
        self.enumerating, self.reading, self.planned = progress.enumerating, progress.reading, progress.planned
        self.shard_done, self.assembling = progress.shard_done, progress.assembling

    def log(self, line: str) -> None:
        """Ignore the line."""


def refuse_output(request: BuildRequest, plan: Plan) -> None:
    """Raise the error that `run_build` would raise about the output before the first shard, without writing. Raises
    UsageError if another dataset, another build or other files are there, and VerificationError if the dataset is there
    and damaged."""
    storage = open_storage(request.output_url)
    refuse_nested(storage, request)
    if _refuse_foreign(storage, overwrite=request.overwrite) is _Output.LEFT:
        outputs.refuse_other_remains(storage, plan, overwrite=request.overwrite)
    elif request.overwrite:
        outputs.look(storage)
    elif manifest := _finished(storage, plan, request):
        refuse_damaged(storage, manifest)
    elif claim := outputs.read_claim(storage):
        outputs.refuse_other_plan(storage, plan, claim.plan)


def _claim_and_build(
    storage: Storage,
    planned: Planned,
    owner: outputs.Claim | None,
    request: BuildRequest,
    engine: Engine,
    progress: Progress,
) -> tuple[outputs.Claim | None, BuildResult]:
    """Build the missing part, or join another build of the same plan."""
    plan, claim = planned.plan, None
    try:
        entry = outputs.begin_or_join(storage, planned, owner)
        claim = entry.claim
        if planned.repair is not None and not entry.has_begun:
            claim = planned.repair(storage, claim, progress.log)
        result = _build(storage, claim, request, engine, progress, is_fresh=entry.is_fresh)
    except (DataprepError, OSError) as error:
        # Another build may have finished and cleaned up meanwhile.
        if claim is not None and isinstance(error, outputs.OvertakenError):
            storage.delete_tree(claim.root)
        manifest = _finished(storage, plan, request)
        if manifest is None:
            if claim is not None and isinstance(error, FileNotFoundError):
                outputs.refuse_overtaken(storage, claim)  # the build that overwrote this one removed the file
            raise
        result = BuildResult(manifest, 0, assembled=False)
    return claim, result


def _is_of(storage: Storage, found: outputs.Existing, planned: Planned) -> bool:
    """Return whether the output holds only an unfinished build of this plan and originals, which can continue."""
    claim, plan = found.claim, planned.plan
    if claim is None or not found.is_under_way or claim.plan.plan_hash != plan.plan_hash:
        return False
    return not outputs.is_over_remains(storage, plan) and planned.is_of(storage, claim)


def _build(
    storage: Storage, claim: outputs.Claim, request: BuildRequest, engine: Engine, progress: Progress, *, is_fresh: bool
) -> BuildResult:
    """Build the missing part, which is everything for a fresh build."""
    done: set[int] = set()
    if not is_fresh:
        with ThreadPoolExecutor(1) as threads:  # over a network concurrently
            listed = threads.submit(finished_shards, storage, claim.root)
            try:
                # Another build may have finished between the look for a manifest and the claim.
                manifest = _finished(storage, claim.plan, request)
            except UsageError:
                outputs.withdraw(storage, claim)
                raise
        if manifest is not None:
            return BuildResult(manifest, 0, assembled=False)
        done = listed.result()
    build = outputs.open_build(storage.url, claim.root, claim.pointer)
    build.storage.remove_stale_spools()
    all_built = attempt = others = 0
    while True:
        attempt += 1
        missing, built = _build_missing(build, done, request, engine, progress, joins=not is_fresh)
        all_built += built
        others += missing - built
        manifest = _finished(storage, claim.plan, request) if built < missing else None  # others have built the rest
        if manifest is not None:
            return BuildResult(manifest, all_built, assembled=False, others=others)
        try:
            manifest, assembled = _assemble(build, request, progress)
        except LostError as error:
            if attempt > REPAIRS:
                raise
            progress.log(f"warning: {error.what}; they are built again")
            done = finished_shards(build.storage, claim.root)
        else:
            return BuildResult(manifest, all_built, assembled=assembled, others=others)


def _owner_and_manifest(
    storage: Storage, plan: Plan, request: BuildRequest
) -> tuple[outputs.Claim | None, Manifest | None]:
    """Return the build that owns the output, and the result of `_finished`."""
    with ThreadPoolExecutor(1) as threads:  # over a network concurrently
        owner = threads.submit(outputs.read_claim, storage)
        manifest = _finished(storage, plan, request)
    return owner.result() if manifest is None else None, manifest


def _finished(storage: Storage, plan: Plan, request: BuildRequest) -> Manifest | None:
    """Return the manifest of exactly this plan, or None. Raises UsageError if another dataset exists, or this one was
    made with other codec versions; VerificationError if in that case it is damaged as well."""
    manifest = read_manifest(storage)
    if manifest is None or manifest.plan_hash == plan.plan_hash:
        return manifest
    if same_but_codecs(plan, manifest.codecs, manifest.plan_hash):
        refuse_other_versions(storage, manifest, other_versions(manifest.codecs, plan.codecs))
    advice = "choose another `output` or `overwrite` it"
    if request.overwrite:
        advice = "another build has finished it meanwhile: choose another `output`, or run this again to remove it"
    raise UsageError(
        f"{storage.url}: another dataset exists there already ({manifest.name}, {manifest.format}, plan "
        f"{manifest.plan_hash[:12]}, expected {plan.plan_hash[:12]}): {dataset_differences(plan, manifest)}; {advice}"
    )


def _build_missing(
    build: outputs.OpenBuild,
    done: set[int],
    request: BuildRequest,
    engine: Engine,
    progress: Progress,
    *,
    joins: bool = False,
) -> tuple[int, int]:
    """Build the shards not in `done`; return the numbers of missing shards and of shards that this run built.

    With `joins` begin in the middle, because another process may be building from the first missing shard on.
    """
    plan, built = build.plan, 0
    progress.planned(plan, done)
    missing = [index for index in range(plan.num_shards) if index not in done]
    if joins:
        missing = [*missing[len(missing) // 2 :], *missing[: len(missing) // 2]]
    job = recipe_of(plan.options.dataset).job(request, build.root, len(missing))
    if len(build.claim.pointer) <= MAX_SENT_POINTER_BYTES:
        job = replace(job, pointer=build.claim.pointer)
    if missing:
        rejected: Counter[str] = Counter()
        for receipt in engine(job, missing):
            progress.shard_done(receipt)
            built += 1
            if line := _rejection_line(build, request, receipt, rejected):
                progress.log(line)
    if built < len(missing):
        progress.log(f"another process built {counted(len(missing) - built, 'shard')} meanwhile")
    return len(missing), built


def _rejection_line(
    build: outputs.OpenBuild, request: BuildRequest, receipt: ShardReceipt, rejected: Counter[str]
) -> str | None:
    """Return a warning when a split's rejected images exceed the number that the request allows; else None. The
    receipt's are added to the number of each split in `rejected`."""
    events = [event for event in receipt.events if event.kind == "rejected"]
    split, _ = build.plan.locate(receipt.index)
    allowed, before = request.max_reject_ratio * sum(split.shard_samples), rejected[split.name]
    rejected[split.name] += len(events)
    if not before <= allowed < rejected[split.name]:
        return None
    event = events[int(allowed) - before]
    name = original_names(build, [receipt.index], [event.key]).get(event.key, event.key)
    return (
        f"warning: {printable(name)} is rejected ({event.reason}: {printable(event.detail)}), and `max_reject_ratio` "
        f"{request.max_reject_ratio:g} does not allow that: the build will end without a dataset; run it again with a "
        "higher ratio to finish it then"
    )


def _assemble(build: outputs.OpenBuild, request: BuildRequest, progress: Progress) -> tuple[Manifest, bool]:
    """Write index, metadata, manifest: in this order, each create-only, and only while this build owns the output.

    All files in place are compared with the receipts before the manifest is put and afterwards, so that changes by
    others in between are noticed. Return the manifest, and whether this run wrote it.
    """
    progress.assembling()
    storage = build.storage
    with PublishingRows(storage) as publishing:
        manifest, check = recipe_of(build.plan.options.dataset).assemble(build, request, publishing, progress.log)
        check()
        if storage.is_local:  # a bucket's storage compares between the upload and the server's copy
            publishing.wait()
            build.check()
        created = storage.create_last(MANIFEST, manifest_bytes(manifest), publishing.wait)
    put = storage.stat(MANIFEST)
    try:
        check()
    except BuildError:
        if put is not None:
            storage.delete_exactly(put)
        raise
    return manifest, created


def refuse_nested(storage: Storage, request: BuildRequest) -> None:
    """Raise UsageError if the dataset would be inside the originals' folder, or the other way round."""
    source = open_originals(request.source_url)
    if source.is_local != storage.is_local:
        return
    ours, theirs = f"{storage.url}/", f"{source.url}/"
    word = "`source`" if request.options.converted is None else "`url`"
    if ours == theirs:
        raise UsageError(f"{storage.url}: {word} and `output` are the same; choose another `output`")
    own = request.options.own
    only_one_file = own is not None and bool(own.archive)
    inside = ours.startswith(theirs) and not recipe_of(request.options.dataset).output_may_lie_in_source
    inside &= not only_one_file
    if theirs.startswith(ours) or inside:
        raise UsageError(
            f"{storage.url}: {word} {source.url} and `output` are inside one another; choose another `output`"
        )


def _refuse_foreign(storage: Storage, *, overwrite: bool) -> _Output:
    """Return the state of the output. Raises UsageError for other files: a dataset is never mixed with them."""
    with ThreadPoolExecutor(1) as threads:
        # In a bucket, one concurrent request shows whether it is empty.
        listed = None if storage.is_local else threads.submit(lambda: next(storage.list(), None))
        overwriting, manifest, *ours = _marks(storage)
    if overwriting is not None and manifest is None and not overwrite:
        raise UsageError(f"{storage.url}: an `overwrite` was interrupted there; run it again with `overwrite`")
    if any((overwriting, manifest, *ours)):
        return _Output.OTHER
    if listed is not None and listed.result() is None:
        return _Output.EMPTY
    foreign = next(outputs.leftovers(storage), None)
    if foreign is None or any(_marks(storage)):  # another build may have begun meanwhile
        return _Output.OTHER
    if outputs.may_be_left(storage):
        return _Output.LEFT
    raise UsageError(
        f"{storage.url} is not empty and holds no dataset of ours (found {foreign}); choose another `output`"
    )


def _marks(storage: Storage) -> list[ObjectInfo | None]:
    with ThreadPoolExecutor(4) as threads:  # over a network concurrently
        return list(threads.map(storage.stat, (OVERWRITING, MANIFEST, PLAN_JSON, OVERWRITTEN)))
