"""Removes, for `--overwrite`, the files of a dataset or of a build of one, and nothing else.

    existing files -> the names that belong to it -> a mark that lists them -> manifest, plan.json
    -> the build's folder -> those names -> folders that are empty now -> the mark

The names are all that any stored intent has: the manifest, the plan of a build, the plan of a retry. Nothing is placed
under a name before one of these has it.

The mark lists every name, so the same command can finish an interrupted removal. On a disk the removal excludes other
processes (`Storage.alone`). In a bucket several processes may remove at once: each deletes only the exact objects that
it listed while the mark existed, so a late process cannot delete anything that was built since.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePosixPath

from dataprep.builder.cards import own_cards
from dataprep.builder.claim import MAX_MARK_BYTES, Claim, read_claim, removed_names
from dataprep.builder.finished import dataset_names, layout_faults, shape_faults
from dataprep.builder.recipe import recipe_of
from dataprep.dataset.index import index_names, index_ranges
from dataprep.dataset.manifest import MANIFEST, built_as, read_manifest
from dataprep.dataset.paths import BUILD, OVERWRITING, OVERWRITTEN, PLAN_JSON, RETRY, RETRY_JSON, UNPACKED
from dataprep.dataset.records import Manifest
from dataprep.errors import ConflictError, DataprepError, FormatError, StorageError, UsageError
from dataprep.storage import ObjectInfo, Storage
from dataprep.storage.base import read_bounded

_POINTERS = (MANIFEST, PLAN_JSON, RETRY_JSON)
"""Files without which the others have no meaning; they are removed first, in this order."""
DELETES_IN_FLIGHT = 32
_REMOVE_YOURSELF = "remove what is left yourself, or choose another --output"


@dataclass(frozen=True, slots=True)
class Existing:
    """What `--overwrite` finds in the output."""

    manifest: Manifest | None
    claim: Claim | None
    pointers: tuple[ObjectInfo | None, ...]
    mark: ObjectInfo | None

    @property
    def is_empty(self) -> bool:
        """Whether neither a dataset nor a build exists."""
        return self.mark is None and not any(self.pointers)

    @property
    def is_under_way(self) -> bool:
        """Whether there is only an unfinished build."""
        return self.claim is not None and self.manifest is None and self.mark is None


def look(storage: Storage) -> Existing:
    """Find out what is in the output.

    Raises:
        UsageError: The manifest describes adopted files of the user, or cannot be read.
    """
    from dataprep.dataset.adopted import is_adopted  # NumPy comes with it: half a second of every build's start

    pointers = tuple(storage.stat(name) for name in _POINTERS)
    try:
        manifest = read_manifest(storage)
    except FormatError as error:
        raise UsageError(
            f"{error}. --overwrite removes what the manifest lists, and cannot know that here: remove {storage.url} "
            "yourself, or choose another --output"
        ) from error
    if manifest is not None and is_adopted(manifest):
        raise UsageError(
            f"{storage.url}: the files there are your own originals, which dataprep adopt has indexed, and --overwrite "
            f"does not remove them; choose another --output, or remove {MANIFEST} and index/ yourself"
        )
    try:
        claim = read_claim(storage)
    except FormatError:  # damaged: only its folder is known to be ours
        claim = None
    return Existing(manifest, claim, pointers, storage.stat(OVERWRITING))


def make_way(storage: Storage, found: Existing) -> None:
    """Remove what was found. If anything has changed since, nothing is removed, and the caller looks again."""
    with storage.alone():
        if look(storage) == found:
            _remove(storage, found)


def remove_unfinished(storage: Storage, claim: Claim) -> None:
    """Remove a build that failed, if it still owns the output and is unfinished."""
    found = look(storage)
    if found.claim == claim and found.is_under_way:
        make_way(storage, found)
        if next(leftovers(storage), None) is None:
            storage.delete(OVERWRITTEN)
            storage.prune([BUILD, f"{BUILD}/tmp"])


def _remove(storage: Storage, found: Existing) -> None:
    names = _own_names(storage, found)
    mark = _put_mark(storage, names)
    if mark is None:
        return
    for name, pointer in zip(_POINTERS, found.pointers, strict=True):
        existing = storage.stat(name)
        if existing is not None and not _is_same(existing, pointer):
            storage.delete_exactly(mark)  # another build was quicker, and has begun anew
            return
        if existing is not None:
            storage.delete_exactly(existing)
    if storage.is_local:
        _remove_on_disk(storage, names)
    elif not _remove_in_bucket(storage, names, mark):
        return  # another process has finished the removal, and may have begun anew
    _note_removed(storage, names)
    storage.delete_exactly(mark)


def _note_removed(storage: Storage, names: list[str]) -> None:
    """Store that the remaining files are not ours and, in a bucket, which names a late request may bring back."""
    told = [] if storage.is_local else sorted(removed_names(storage).union(names))
    before = read_bounded(storage, OVERWRITTEN, MAX_MARK_BYTES, advice=_REMOVE_YOURSELF)
    # If this replaces nothing, another process that joined the removal has written the same.
    storage.replace(OVERWRITTEN, json.dumps(told).encode(), before)


def _is_same(existing: ObjectInfo, found: ObjectInfo | None) -> bool:
    return found is not None and existing.generation == found.generation


def _own_names(storage: Storage, found: Existing) -> list[str]:
    """Return every name of the dataset and of the build, the manifest first."""
    names: set[str] = set()
    if found.mark is not None:
        names.update(_marked_names(storage))
    if found.manifest is not None:
        for fault in chain.from_iterable(find(found.manifest) for find in (shape_faults, layout_faults)):
            raise UsageError(
                f"{storage.url_of(MANIFEST)}: {fault}. --overwrite removes only what a build writes: {_REMOVE_YOURSELF}"
            )
        names.update(dataset_names(storage, found.manifest))
        if found.pointers[-1] is not None:
            names.update(recipe_of(built_as(found.manifest)).added_files(storage, found.manifest))
        names.update(own_cards(storage, found.manifest))
    if found.claim is not None:
        names.update(planned_names(storage, found.claim))
    return sorted(names, key=lambda name: (name != MANIFEST, name))


def planned_names(storage: Storage, claim: Claim) -> Iterator[str]:
    """Yield the names that a build with this plan writes, whether they exist or not."""
    yield MANIFEST
    for split in claim.plan.splits:
        yield from index_names(split.name, len(index_ranges(split.shard_samples)))
        yield f"index/{split.name}-events.parquet"
    yield from recipe_of(claim.plan.options.dataset).planned_files(storage, claim)


def _marked_names(storage: Storage) -> list[str]:
    data = read_bounded(storage, OVERWRITING, MAX_MARK_BYTES, advice=_REMOVE_YOURSELF, error=UsageError)
    if data is None:
        return []
    try:
        names = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{storage.url_of(OVERWRITING)}: an --overwrite was interrupted there that does not say what it removes "
            f"(dataprep 0.1.0 did not); {_REMOVE_YOURSELF}"
        ) from error
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _put_mark(storage: Storage, names: list[str]) -> ObjectInfo | None:
    """Put the mark of this removal, or find the mark of the removal that it joins; None if that is gone again."""
    data = json.dumps(names).encode()
    if len(data) > MAX_MARK_BYTES:
        raise UsageError(
            f"{storage.url}: {len(names):,} names to remove, {len(data):,} bytes of them, expected at most "
            f"{MAX_MARK_BYTES:,}; {_REMOVE_YOURSELF}"
        )
    try:
        storage.create(OVERWRITING, data)
    except ConflictError:
        known = set(_marked_names(storage))
        if not known.issuperset(names):
            existing = storage.stat(OVERWRITING)
            expected = storage.read(OVERWRITING, MAX_MARK_BYTES) if existing is not None else None
            if not storage.replace(OVERWRITING, json.dumps(sorted(known.union(names))).encode(), expected):
                raise StorageError(
                    f"{storage.url}: another --overwrite is running there; run the same command again"
                ) from None
    return storage.stat(OVERWRITING)


def _remove_on_disk(storage: Storage, names: list[str]) -> None:
    # Renamed first: from here on no worker of the build can put a file in place; earlier files are removed below.
    for folder in _own_folders(storage):
        storage.take_away(folder)
    for name in names:
        storage.delete(name)
    parents = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    storage.prune(parents - {"."})


def _own_folders(storage: Storage) -> list[str]:
    """Return the folders of builds and retries."""
    names = {info.name for prefix in (BUILD, RETRY) for info in storage.list(prefix)}
    own = {"/".join(name.split("/")[:2]) for name in names if name.count("/") > 1}
    return sorted((own - {f"{BUILD}/tmp"}) | {RETRY})  # in tmp/ others may be writing enumerations


def _remove_in_bucket(storage: Storage, names: list[str], mark: ObjectInfo) -> bool:
    """Remove the names in a bucket; return whether the mark still existed after the last listing."""
    own = set(names)

    def is_of_build(name: str) -> bool:
        # Unpacked images are those of any build of the same originals, and perhaps of the one that overwrites.
        kept = name in (OVERWRITING, OVERWRITTEN) or name.startswith(UNPACKED)
        return name.startswith((f"{BUILD}/", f"{RETRY}/")) and not kept

    # In this order: once the build's folder is gone nothing more is copied from it, and all copies are listed.
    return _delete_listed(storage, mark, is_of_build) and _delete_listed(storage, mark, own.__contains__)


def _delete_listed(storage: Storage, mark: ObjectInfo, is_own: Callable[[str], bool]) -> bool:
    listed = [info for info in storage.list() if is_own(info.name)]
    existing = storage.stat(OVERWRITING)
    if existing is None or existing.generation != mark.generation:
        return False
    listed.sort(key=lambda info: info.name != MANIFEST)
    for info in listed[:1]:
        storage.delete_exactly(info)
    with ThreadPoolExecutor(DELETES_IN_FLIGHT, thread_name_prefix="dataprep-delete") as threads:
        deque(threads.map(storage.delete_exactly, listed[1:]), maxlen=0)
    return True


def tidy_up(storage: Storage, claim: Claim | None, plan_hash: str) -> None:
    """Remove the files of a finished build under `_build/`, but none of another build or of an --overwrite."""
    with storage.alone():
        listed = list(storage.list(f"{BUILD}/"))
        if not listed and not storage.is_local:
            return
        with ThreadPoolExecutor(1) as threads:  # over a network concurrently; both after the listing
            is_ours = threads.submit(_is_ours, storage, claim, plan_hash)
            manifest = read_manifest(storage)
        if manifest is None or manifest.plan_hash != plan_hash:
            return
        # On a disk `alone` waits for a running removal, and a killed one has removed the manifest first: if both a mark
        # and a manifest exist, that removal has removed nothing.
        if not storage.is_local and any(info.name == OVERWRITING for info in listed):
            return
        if not is_ours.result():
            return
        if storage.is_local:
            storage.delete_tree(BUILD)
            return
        with ThreadPoolExecutor(DELETES_IN_FLIGHT, thread_name_prefix="dataprep-delete") as threads:
            deque(threads.map(storage.delete_exactly, listed), maxlen=0)


def _is_ours(storage: Storage, claim: Claim | None, plan_hash: str) -> bool:
    try:
        found = read_claim(storage)
    except DataprepError:
        return False
    if found is None:
        return True
    return found == claim or (claim is None and found.plan.plan_hash == plan_hash)


def leftovers(storage: Storage) -> Iterator[str]:
    """Yield the names of files that belong neither to a build nor to an interrupted removal."""
    for info in storage.list():
        if not info.name.startswith(f"{BUILD}/"):
            yield info.name
