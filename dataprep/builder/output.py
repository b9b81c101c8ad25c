"""Looks at a build's output, claims it, and removes the files that `overwrite` may remove.

    read_claim, claim_place   the build under way there; begin or join one
    open_build                that build, for workers
    look, make_way, tidy_up   files that `overwrite` finds and removes; leftovers of a finished build
    take_over, is_over_remains   files of a dataset whose manifest is gone

Files in `<dataset>/_build/` while the build runs:

    plan.json                        created only if there is none; the plan that owns the place, its hash, the id of
                                     this build, the version of this package that began it, and size and CRC32C of
                                     plan.parquet, which may change; the hash does not cover the last three
    <plan hash>/<id>/plan.parquet    references, one row group a shard; a table of URLs has none
    <plan hash>/<id>/receipts/       create-only; 00007.parquet is shard 7's receipt with its index rows
    <plan hash>/<id>/folder/         an image folder on disk before it is renamed into place
    <plan hash>/<id>/tmp/            files being written, and those of fetched shards that wait to be put in place
    source-<split>-<hash>.parquet    an enumeration, kept so that no rerun walks the archives again
    source-<split>-<hash>.json       its size and CRC32C, and the time of the listing
    listing-<hash>                   the files of a local folder at that time (dataprep/builder/enumeration.py)
    unpacked-<hash>                  images of a parquet file, one after the other (dataprep/sources/unpacked.py)
    overwriting                      the names that `overwrite` removes; while it exists no build begins here
    overwritten                      the removal is done; remaining files are not ours, and a build may begin

An id is never reused. So files of a late worker, after `overwrite` has removed its build's folder, cannot become part
of the next build, even if that build has the same plan (docs/decisions/0006-one-plan-holds-the-place.md).

While a finished dataset is changed (`retry-failed`, `remove`), `_change/<id>/` has receipts/ and tmp/ in the same way.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain
from typing import Annotated

from msgspec import Meta

from dataprep import __version__
from dataprep.builder import finished
from dataprep.builder import plan as plans
from dataprep.builder.cards import CODECS_LINE, PLAN_LINE, own_cards, read_card
from dataprep.builder.recipe import Planned, recipe_of
from dataprep.dataset import paths
from dataprep.dataset.documents import JsonObject, convert, decode
from dataprep.dataset.index import events_file, index_names, index_ranges
from dataprep.dataset.manifest import MANIFEST, MANIFEST_ADVICE, MAX_MANIFEST_BYTES, built_as, read_manifest
from dataprep.dataset.records import Manifest
from dataprep.dataset.replicas import REPLICAS
from dataprep.errors import ConflictError, DataprepError, FormatError, StorageError, UsageError
from dataprep.storage import ObjectInfo, Storage, open_storage
from dataprep.storage.base import TooLargeError, read_bounded
from dataprep.storage.checksums import crc32c_of_bytes

MAX_PLAN_BYTES = 64 << 20
"""Maximum size of `plan.json`; the plan of LAION-400M, with 41,408 shards, has 0.5 MB."""
MAX_MARK_BYTES = 1 << 30
"""Maximum size of the marks of `overwrite`: 20 million names. ImageNet's image folder has 1.3 million, 50 MB."""
_EDITED = "it was edited or written by another version: start over with `overwrite`"


# The claim


@dataclass(frozen=True, slots=True)
class Claim:
    """A build that owns its output."""

    plan: plans.Plan = field(compare=False)
    root: str
    """Folder of the build's own files: `_build/<plan hash>/<id>`."""
    pointer: bytes
    """Content of `plan.json`."""
    references: plans.FileDigest | None = None
    """Digest of `plan.parquet`; None for a table of URLs."""


class OvertakenError(ConflictError):
    """Another build owns the output now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A process's entry into a build: it began the build, or joined it."""

    claim: Claim
    has_begun: bool
    """Whether this process began the build; otherwise it joined it."""
    is_fresh: bool
    """Whether it began the build and there was no manifest afterwards, so that no shard can exist yet."""


def claim_place(storage: Storage, planned: Planned) -> Claim:
    """Claim the output for a build of a plan, or join a running build of the same plan. Raises UsageError if another
    build is running there; the error says what differs."""
    return begin_or_join(storage, planned, read_claim(storage)).claim


def begin_or_join(storage: Storage, planned: Planned, owner: Claim | None) -> Entry:
    """Like `claim_place`, given the `owner` as it was read before; None if the output had none."""
    if owner is not None:
        refuse_other_plan(storage, planned.plan, owner.plan)
        return Entry(claim=owner, has_begun=False, is_fresh=False)
    entry = _begin(storage, planned)
    refuse_other_plan(storage, planned.plan, entry.claim.plan)
    return entry


def _begin(storage: Storage, planned: Planned) -> Entry:
    plan, build_id = planned.plan, uuid.uuid4().hex
    root = f"{paths.BUILD}/{plan.plan_hash}/{build_id}"
    references = planned.store(storage, root)  # before plan.json: a process that finds plan.json finds these as well
    claim = _claim(plan, root, plan.document() | {"build": build_id, "version": __version__}, references)
    with storage.alone():
        won = _put_pointer(storage, claim)
        with ThreadPoolExecutor(2) as threads:  # over a network concurrently
            # Both are looked up after plan.json was put: an `overwrite` that begins later writes its mark first and
            # then looks for plan.json, and another build may have finished before.
            overwriting, manifest = threads.map(storage.stat, (paths.OVERWRITING, MANIFEST))
        if overwriting is not None and won:
            _delete_if(storage, paths.PLAN_JSON, claim.pointer)
    if won and overwriting is None:
        return Entry(claim=claim, has_begun=True, is_fresh=manifest is None)
    storage.delete_tree(claim.root)
    theirs = read_claim(storage)
    if overwriting is not None or theirs is None:
        raise UsageError(f"{storage.url}: an `overwrite` is under way there; wait for it, or run this with `overwrite`")
    return Entry(claim=theirs, has_begun=False, is_fresh=False)


def _claim(plan: plans.Plan, root: str, document: JsonObject, references: plans.FileDigest | None) -> Claim:
    if references is not None:
        document = document | {"references": references.document()}
    return Claim(plan, root, json.dumps(document, indent=1, sort_keys=True).encode() + b"\n", references)


def with_references(storage: Storage, claim: Claim, references: plans.FileDigest) -> Claim:
    """Write the digest of references that were stored again to `plan.json`, and return the new claim. Raises
    OvertakenError if another build owns the output now."""
    if references == claim.references:
        return claim
    new = _claim(claim.plan, claim.root, json.loads(claim.pointer), references)
    if not storage.replace(paths.PLAN_JSON, new.pointer, claim.pointer):
        raise OvertakenError(_overtaken(storage, claim))
    return new


def withdraw(storage: Storage, claim: Claim) -> None:
    """Release the claimed output, and remove the build's folder."""
    with storage.alone():
        _delete_if(storage, paths.PLAN_JSON, claim.pointer)
    storage.delete_tree(claim.root)


def withdraw_growth(storage: Storage, claim: Claim, manifest: Manifest, *, is_published: bool) -> None:
    """Withdraw the growth of a dataset: one whose originals have changed since, or that is published.

    Raises:
        UsageError: The claim is another build's.
    """
    if not claim.plan.grows:
        raise UsageError(f"{storage.url}: a build is under way there; finish it with its own options first")
    planned = () if is_published else recipe_of(claim.plan.options.dataset).planned_files(storage, claim)
    names = sorted({*planned} - finished.listed_names(manifest))
    withdraw(storage, claim)
    finished.delete_files(storage, names)


def _put_pointer(storage: Storage, claim: Claim) -> bool:
    try:
        storage.create(paths.PLAN_JSON, claim.pointer)
    except ConflictError:
        return False
    return True


def _delete_if(storage: Storage, name: str, data: bytes) -> None:
    """Remove a small object if its content is exactly `data`."""
    info = storage.stat(name)
    with suppress(FileNotFoundError):
        if info is not None and info.num_bytes == len(data) and storage.read(name) == data:
            storage.delete_exactly(info)


def read_claim(storage: Storage) -> Claim | None:
    """Return the build that owns the output, or None."""
    data = read_bounded(storage, paths.PLAN_JSON, MAX_PLAN_BYTES, advice=_EDITED)
    return None if data is None else claim_in(storage, data)


def claim_in(storage: Storage, data: bytes) -> Claim:
    """Return the build that `plan.json` with this content names. Raises FormatError if it is malformed."""
    where = storage.url_of(paths.PLAN_JSON)
    document = decode(data, JsonObject, where=where, advice=_EDITED)
    pointer = convert(document, _Pointer, where=where, advice=_EDITED)
    try:
        plan = plans.plan_from_document(document, where=where, advice=_EDITED)
    except UsageError as error:
        raise FormatError(f"{where}: {error}; {_EDITED}") from error
    if plan.plan_hash != pointer.plan_hash:
        raise FormatError(f"{where}: its hash does not match its content; {_EDITED}")
    return Claim(plan, f"{paths.BUILD}/{plan.plan_hash}/{pointer.build}", data, pointer.references)


@dataclass(frozen=True, slots=True)
class _Pointer:
    """The part of `plan.json` that names the build, in addition to its plan."""

    plan_hash: str
    build: Annotated[str, Meta(pattern=r"^[0-9A-Za-z]+\Z")]
    """Name of the build's folder; it has no separator, so it cannot lead elsewhere."""
    references: plans.FileDigest | None = None


def refuse_other_plan(storage: Storage, ours: plans.Plan, theirs: plans.Plan) -> None:
    """Raise UsageError, naming what differs, unless both plans are the same."""
    if ours.plan_hash == theirs.plan_hash:
        return
    advice = "Finish it with its own options, choose another `output`, or start over with `overwrite`"
    if (ours.options, ours.codecs) == (theirs.options, theirs.codecs):
        advice = "The originals have changed since: choose another `output`, or begin again with `overwrite`"
    raise UsageError(
        f"{storage.url}: a build with another plan is under way there: {plans.plan_differences(ours, theirs)}. {advice}"
    )


def refuse_overtaken(storage: Storage, claim: Claim) -> None:
    """Raise OvertakenError if another build owns the output now."""
    if not _holds(storage, claim):
        raise OvertakenError(_overtaken(storage, claim))


def _holds(storage: Storage, claim: Claim) -> bool:
    """Return whether plan.json still belongs to this claim; in a bucket its size and CRC32C suffice."""
    if not storage.is_local:
        info = storage.stat(paths.PLAN_JSON)
        expected = len(claim.pointer), crc32c_of_bytes(claim.pointer)
        return info is not None and (info.num_bytes, info.crc32c) == expected
    try:
        return storage.read(paths.PLAN_JSON, len(claim.pointer)) == claim.pointer
    except (FileNotFoundError, TooLargeError):
        return False


def _overtaken(storage: Storage, claim: Claim) -> str:
    ours = claim.plan.plan_hash[:12]
    try:
        found = read_claim(storage)
    except DataprepError:
        found = None
    if found is None:
        whose = "it was removed, or another run has finished it"
    elif found.plan.plan_hash == claim.plan.plan_hash:
        whose = "another run has begun again with the same plan"
    else:
        whose = f"plan {found.plan.plan_hash[:12]} owns the output"
    return (
        f"{storage.url}: the build of plan {ours} was overtaken: {whose}; this run ends here. "
        "To build this one nevertheless, choose another `output` or run it with `overwrite`"
    )


def removed_names(storage: Storage) -> frozenset[str]:
    """Return the names that `overwrite` has removed here since the last complete dataset; none on disk, where a late
    writer cannot bring a removed file back."""
    advice = "remove it, and what is left of the dataset, yourself, or choose another `output`"
    data = read_bounded(storage, paths.OVERWRITTEN, MAX_MARK_BYTES, advice=advice)
    if data is None:
        return frozenset()
    return frozenset(decode(data, list[str], where=storage.url_of(paths.OVERWRITTEN), advice=advice))


# The build under way, for workers


@dataclass(frozen=True, slots=True)
class OpenBuild:
    """A running build that a process has opened."""

    claim: Claim
    storage: Storage
    """Storage of the output; it publishes nothing more once the build was overtaken."""

    @property
    def plan(self) -> plans.Plan:
        return self.claim.plan

    @property
    def root(self) -> str:
        return self.claim.root

    def check(self) -> None:
        refuse_overtaken(self.storage, self.claim)

    def is_published(self) -> bool:
        """Return whether there is a manifest; for a dataset that grows, another one than at the beginning."""
        if not self.plan.grows:
            return self.storage.stat(MANIFEST) is not None
        data = read_bounded(self.storage, MANIFEST, MAX_MANIFEST_BYTES, advice=MANIFEST_ADVICE) or b""
        return hashlib.sha256(data).hexdigest() != self.plan.grows


@lru_cache(maxsize=4)
def open_build(output_url: str, root: str, pointer: bytes | None = None) -> OpenBuild:
    """Open a running build, once in each process. Raises OvertakenError if the build has been overwritten or is
    finished, and UsageError if this process has other codec versions than the plan.

    Args:
        pointer: Content of `plan.json` if another process has read it. An overtaken build is then noticed only when its
            files are read or put in place. None reads it now.
    """
    storage = open_storage(output_url)
    claim = read_claim(storage) if pointer is None else claim_in(storage, pointer)
    if claim is None or claim.root != root:
        raise OvertakenError(
            f"{storage.url_of(paths.PLAN_JSON)}: missing, or from a different build; expected plan "
            f"{root.split('/')[1][:12]}, found {'none' if claim is None else claim.plan.plan_hash[:12]}: the build was "
            "overtaken, and this worker ends"
        )
    plans.refuse_other_codecs(claim.plan.codecs)
    return OpenBuild(claim, storage.staged(claim.root, partial(refuse_overtaken, storage, claim)))


# What `overwrite` removes

_POINTERS = (MANIFEST, paths.PLAN_JSON, paths.CHANGE_JSON)
"""Files without which the others have no meaning; they are removed first, in this order."""
DELETES_IN_FLIGHT = 32
_REMOVE_YOURSELF = "remove what is left yourself, or choose another `output`"


@dataclass(frozen=True, slots=True)
class Existing:
    """Content of the output that `overwrite` finds."""

    manifest: Manifest | None
    claim: Claim | None
    pointers: tuple[ObjectInfo | None, ...]
    mark: ObjectInfo | None

    @property
    def is_empty(self) -> bool:
        return self.mark is None and not any(self.pointers)

    @property
    def is_under_way(self) -> bool:
        """Whether there is only an unfinished build."""
        return self.claim is not None and self.manifest is None and self.mark is None


def look(storage: Storage) -> Existing:
    """Inspect the output. Raises UsageError if the manifest describes adopted files of the user, or cannot be read."""
    from dataprep.dataset.adopted import is_adopted  # NumPy comes with it: half a second of every build's start

    pointers = tuple(storage.stat(name) for name in _POINTERS)
    try:
        manifest = read_manifest(storage)
    except FormatError as error:
        raise UsageError(
            f"{error}. `overwrite` removes what the manifest lists, and cannot know that here: remove {storage.url} "
            "yourself, or choose another `output`"
        ) from error
    if manifest is not None and is_adopted(manifest):
        raise UsageError(
            f"{storage.url}: the files there are your own originals, which dataprep adopt has indexed, and `overwrite` "
            f"does not remove them; choose another `output`, or remove {MANIFEST} and index/ yourself"
        )
    try:
        claim = read_claim(storage)
    except FormatError:  # damaged: only its folder is known to be ours
        claim = None
    return Existing(manifest, claim, pointers, storage.stat(paths.OVERWRITING))


def make_way(storage: Storage, found: Existing) -> None:
    """Remove the existing files. If anything has changed since `look`, remove nothing; the caller looks again."""
    with storage.alone():
        if look(storage) == found:
            _remove(storage, found)


def remove_unfinished(storage: Storage, claim: Claim) -> None:
    """Remove a build that failed, if it still owns the output and is unfinished."""
    found = look(storage)
    if found.claim == claim and found.is_under_way:
        make_way(storage, found)
        if next(leftovers(storage), None) is None:
            storage.delete(paths.OVERWRITTEN)
            storage.prune([paths.BUILD, f"{paths.BUILD}/tmp"])


def _remove(storage: Storage, found: Existing) -> None:
    names = _own_names(storage, found)
    mark = _put_mark(storage, names)
    if mark is None:
        return
    for name, pointer in zip(_POINTERS, found.pointers, strict=True):
        existing = storage.stat(name)
        if existing is not None and (pointer is None or existing.generation != pointer.generation):
            storage.delete_exactly(mark)  # another build was quicker, and has begun again
            return
        if existing is not None:
            storage.delete_exactly(existing)
    if storage.is_local:
        _remove_on_disk(storage, names)
    elif not _remove_in_bucket(storage, names, mark):
        return  # another process has finished the removal, and may have begun again
    _note_removed(storage, names)
    storage.delete_exactly(mark)


def _note_removed(storage: Storage, names: list[str]) -> None:
    """Store that the remaining files are not ours and, in a bucket, which names a late request may bring back."""
    told = [] if storage.is_local else sorted(removed_names(storage).union(names))
    before = read_bounded(storage, paths.OVERWRITTEN, MAX_MARK_BYTES, advice=_REMOVE_YOURSELF)
    # If this replaces nothing, another process that joined the removal has written the same.
    storage.replace(paths.OVERWRITTEN, json.dumps(told).encode(), before)


def _own_names(storage: Storage, found: Existing) -> list[str]:
    """Return every name of the dataset and of the build, the manifest first."""
    names: set[str] = set()
    if found.mark is not None:
        names.update(_marked_names(storage))
    if found.manifest is not None:
        for find in (finished.shape_faults, finished.layout_faults):
            for fault in find(found.manifest):
                where = storage.url_of(MANIFEST)
                raise UsageError(f"{where}: {fault}. `overwrite` removes only what a build writes: {_REMOVE_YOURSELF}")
        names.update(finished.dataset_names(storage, found.manifest))
        if found.pointers[-1] is not None:
            names.update(recipe_of(built_as(found.manifest)).added_files(storage, found.manifest))
            names.update(finished.change_names(found.manifest, finished.read_change(storage, finished.ChangePlan)))
        names.update(own_cards(storage, found.manifest))
    if found.claim is not None:
        names.update(planned_names(storage, found.claim))
    return sorted(names, key=lambda name: (name != MANIFEST, name))


def planned_index(split: plans.PlannedSplit) -> list[str]:
    """Return the names of a split's index and events."""
    return [*index_names(split.name, len(index_ranges(split.shard_samples))), events_file(split.name)]


def planned_names(storage: Storage, claim: Claim) -> Iterator[str]:
    """Yield the names that a build with this plan writes, whether they exist or not."""
    yield MANIFEST
    for split in claim.plan.splits:
        yield from planned_index(split)
    yield from recipe_of(claim.plan.options.dataset).planned_files(storage, claim)


def _marked_names(storage: Storage) -> list[str]:
    data = read_bounded(storage, paths.OVERWRITING, MAX_MARK_BYTES, advice=_REMOVE_YOURSELF, error=UsageError)
    if data is None:
        return []
    try:
        names = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{storage.url_of(paths.OVERWRITING)}: an `overwrite` was interrupted there, and its list of names is "
            f"damaged or edited; {_REMOVE_YOURSELF}"
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
        storage.create(paths.OVERWRITING, data)
    except ConflictError:
        known = set(_marked_names(storage))
        if not known.issuperset(names):
            existing = storage.stat(paths.OVERWRITING)
            expected = storage.read(paths.OVERWRITING, MAX_MARK_BYTES) if existing is not None else None
            if not storage.replace(paths.OVERWRITING, json.dumps(sorted(known.union(names))).encode(), expected):
                raise StorageError(
                    f"{storage.url}: another `overwrite` is running there; run the same command again"
                ) from None
    return storage.stat(paths.OVERWRITING)


def _remove_on_disk(storage: Storage, names: list[str]) -> None:
    # Renamed first: from here on no worker of the build can put a file in place; earlier files are removed below.
    for folder in _own_folders(storage):
        storage.take_away(folder)
    finished.delete_files(storage, names)


def _own_folders(storage: Storage) -> list[str]:
    """Return the folders of builds and retries."""
    names = {info.name for prefix in (paths.BUILD, paths.CHANGE) for info in storage.list(prefix)}
    own = {"/".join(name.split("/")[:2]) for name in names if name.count("/") > 1}
    return sorted((own - {f"{paths.BUILD}/tmp"}) | {paths.CHANGE})  # in tmp/ others may be writing enumerations


def _remove_in_bucket(storage: Storage, names: list[str], mark: ObjectInfo) -> bool:
    """Remove the names in a bucket; return whether the mark still existed after the last listing."""
    own = set(names)

    def is_of_build(name: str) -> bool:
        # Unpacked images are shared by all builds of the same originals, perhaps also the one that overwrites.
        kept = name in (paths.OVERWRITING, paths.OVERWRITTEN) or name.startswith(paths.UNPACKED)
        return name.startswith((f"{paths.BUILD}/", f"{paths.CHANGE}/")) and not kept

    # In this order: once the build's folder is gone nothing more is copied from it, and all copies are listed.
    return _delete_listed(storage, mark, is_of_build) and _delete_listed(storage, mark, own.__contains__)


def _delete_listed(storage: Storage, mark: ObjectInfo, is_own: Callable[[str], bool]) -> bool:
    listed = [info for info in storage.list() if is_own(info.name)]
    existing = storage.stat(paths.OVERWRITING)
    if existing is None or existing.generation != mark.generation:
        return False
    listed.sort(key=lambda info: info.name != MANIFEST)
    _delete_exactly(storage, listed[:1])
    _delete_exactly(storage, listed[1:])
    return True


def _delete_exactly(storage: Storage, infos: list[ObjectInfo]) -> None:
    with ThreadPoolExecutor(DELETES_IN_FLIGHT, thread_name_prefix="dataprep-delete") as threads:
        deque(threads.map(storage.delete_exactly, infos), maxlen=0)


def tidy_up(storage: Storage, claim: Claim | None, plan_hash: str) -> None:
    """Remove the files of a finished build under `_build/`, but none of another build or of an `overwrite`."""
    with storage.alone():
        listed = list(storage.list(f"{paths.BUILD}/"))
        if not listed and not storage.is_local:
            return
        with ThreadPoolExecutor(1) as threads:  # over a network concurrently; both after the listing
            is_ours = threads.submit(_is_ours, storage, claim, plan_hash)
            manifest = read_manifest(storage)
        if manifest is None or manifest.plan_hash != plan_hash:
            return
        # On a disk `alone` waits for a running removal, and a killed one has removed the manifest first: if both a mark
        # and a manifest exist, that removal has removed nothing.
        if not storage.is_local and any(info.name == paths.OVERWRITING for info in listed):
            return
        if not is_ours.result():
            return
        if storage.is_local:
            storage.delete_tree(paths.BUILD)
        else:
            _delete_exactly(storage, listed)


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
        if not info.name.startswith(f"{paths.BUILD}/"):
            yield info.name


# Files of a dataset whose manifest is gone

_NOT_OF_PLAN = frozenset({*paths.CARDS, REPLICAS})
"""Files of a dataset that no plan names, and no build replaces."""


def may_be_left(storage: Storage) -> bool:
    """Return whether files without a manifest may belong to a dataset; `take_over` compares them with a plan."""
    return card_plan(storage) is not None or next(storage.list("index/"), None) is not None


def card_plan(storage: Storage) -> str | None:
    """Return the hash of the plan that the card `README.md` names; None if there is no card of this project."""
    return _card_line(storage, PLAN_LINE)


def card_codecs(storage: Storage) -> dict[str, str]:
    """Return the versions of the codecs that the card `README.md` names; empty if it names none."""
    pairs = (pair.partition(" ") for pair in (_card_line(storage, CODECS_LINE) or "").split(", "))
    return {name: version for name, _, version in pairs if name}


def _card_line(storage: Storage, pattern: str) -> str | None:
    found = re.search(pattern, (read_card(storage, paths.README) or b"").decode(errors="replace"), re.MULTILINE)
    return found[1] if found else None


def _is_named(storage: Storage, plan: plans.Plan) -> bool:
    """Return whether a card names this plan, or the same one with other versions of the codecs."""
    named = card_plan(storage)
    return named is not None and (named == plan.plan_hash or plans.same_but_codecs(plan, card_codecs(storage), named))


def is_over_remains(storage: Storage, plan: plans.Plan) -> bool:
    """Return whether an unfinished build of a plan began next to files of its dataset, which no `overwrite` removed.

    A build writes its cards last, so a card next to an unfinished build belongs to a dataset whose manifest is gone.
    """
    return _is_named(storage, plan) and storage.stat(paths.OVERWRITTEN) is None


def take_over(storage: Storage, planned: Planned, *, overwrite: bool) -> bool:
    """Claim, for a plan, a place with remaining files of its dataset; return whether it was cleared instead. Raises
    UsageError if the files belong to another plan, or some belong to no plan. With `overwrite`, the files of the
    plan are removed first if a card names it."""
    named = refuse_other_remains(storage, planned.plan, overwrite=overwrite)
    claim = claim_place(storage, planned)
    if named is None:
        own = {*chain(planned_names(storage, claim), _NOT_OF_PLAN)}
        foreign = next((name for name in leftovers(storage) if name not in own), None)
        if foreign is not None:
            withdraw(storage, claim)
            raise UsageError(
                f"{storage.url} is not empty and holds no dataset of ours (found {foreign}); choose another `output`"
            )
    elif overwrite:  # claimed before: a plan that owns its place tells which files are its own
        make_way(storage, look(storage))
        return True
    return False


def refuse_other_remains(storage: Storage, plan: plans.Plan, *, overwrite: bool) -> str | None:
    """Return the hash of the plan that the card of files without a manifest names, if any. Raises UsageError if it is
    another plan's, unless only its codecs differ and `overwrite` removes the files."""
    named = card_plan(storage)
    if named is None or named == plan.plan_hash:
        return named
    codecs = card_codecs(storage)
    versions = plans.other_versions(codecs, plan.codecs) if codecs else ""
    left = f"{storage.url}: files of a dataset are left there without its {MANIFEST}, of plan {named[:12]}"
    if not _is_named(storage, plan):
        raise UsageError(
            f"{left}{f', {versions}' if versions else ''}, and this build has plan {plan.plan_hash[:12]}; build with "
            f"the options{' and versions' if versions else ''} of that one, remove them yourself, or choose another "
            "`output`"
        )
    if not overwrite:
        raise UsageError(
            f"{left}, {versions}, and other versions may write other bytes: install those versions to repair it, or "
            "build all of it again with `overwrite`"
        )
    return named
