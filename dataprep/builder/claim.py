"""The claim of a build on its output, and the files in `<dataset>/_build/` while the build runs.

    plan.json                        created only where there is none; the plan that owns the place, its hash, the id of
                                     this build, the version of this package that began it, and size and CRC32C of
                                     plan.parquet, for which it may be replaced; the hash covers none of the last three
    <plan hash>/<id>/plan.parquet    references, one row group a shard; a table of URLs has none
    <plan hash>/<id>/receipts/       create-only; 00007.parquet is shard 7's receipt with its index rows
    <plan hash>/<id>/folder/         an image folder on disk before it is renamed into place
    <plan hash>/<id>/tmp/            files being written, and those of fetched shards that wait to be put in place
    source-<split>-<hash>.parquet    an enumeration, kept so that no rerun walks the archives again
    source-<split>-<hash>.json       size and CRC32C of it, and when it was listed
    listing-<hash>                   the files of a local folder at that time (dataprep/builder/source_listing.py)
    unpacked-<hash>                  images of a parquet file, one after the other (dataprep/sources/unpacked.py)
    overwriting                      the names that --overwrite removes; while it exists no build begins here
    overwritten                      the removal is done; files that are left are not ours, and a build may begin

An id is never used again. So whatever a late worker does after `--overwrite` has removed its build's folder, it cannot
become a part of the next build, even if that has the same plan (docs/decisions/0006-one-plan-holds-the-place.md).

While failed rows of a finished dataset are tried again, `_retry/<id>/` has receipts/ and tmp/ in the same way.
"""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from dataprep import __version__
from dataprep.builder.differing import plan_differences
from dataprep.builder.digest import FileDigest
from dataprep.builder.plan import Plan, plan_from_document
from dataprep.builder.recipe import Planned, recipe_of
from dataprep.dataset.documents import JsonObject, convert, decode
from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.paths import BUILD, OVERWRITING, OVERWRITTEN, PLAN_JSON
from dataprep.errors import ConflictError, DataprepError, FormatError, UsageError
from dataprep.storage import Storage
from dataprep.storage.base import TooLargeError, read_bounded
from dataprep.storage.checksums import crc32c_of, crc32c_text

MAX_PLAN_BYTES = 64 << 20
"""Maximum size of `plan.json`; that of the 41,408 shards of LAION-400M has 0.5 MB."""
MAX_MARK_BYTES = 1 << 30
"""Maximum size of the marks of --overwrite: 20 million names. ImageNet's image folder has 1.3 million, 50 MB."""
_EDITED = "it was edited or written by another version: start over with --overwrite"
_PLAN_BEGUN_BEFORE = "a build with this plan was begun there by dataprep 0.1.0"


@dataclass(frozen=True, slots=True)
class Claim:
    """A build that owns its output."""

    plan: Plan = field(compare=False)
    root: str
    """Folder of the build's own files: `_build/<plan hash>/<id>`; `_build` for a build that dataprep 0.1.0 began."""
    pointer: bytes
    """Content of `plan.json`."""
    references: FileDigest | None = None
    """Digest of `plan.parquet`; None for a table of URLs, and in a build that an earlier version began."""

    @property
    def pointer_crc32c(self) -> str:
        """CRC32C of `plan.json` while this build owns the output."""
        return crc32c_text(crc32c_of(self.pointer))

    @property
    def begun_before_claims(self) -> bool:
        """Whether dataprep 0.1.0 began the build, which gave it no folder of its own."""
        return self.root == BUILD


class OvertakenError(ConflictError):
    """Another build owns the output now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """How a process has come to a build."""

    claim: Claim
    has_begun: bool
    """Whether this process has begun the build; otherwise it has joined it."""
    is_fresh: bool
    """Whether it has begun it, and there was no manifest afterwards: nothing can be built yet."""


def claim_place(storage: Storage, planned: Planned) -> Claim:
    """Make a build of a plan the owner of the output, or join a running build of the same plan.

    Raises:
        UsageError: Another build is running there; the error says what differs.
    """
    return begin_or_join(storage, planned, read_claim(storage)).claim


def begin_or_join(storage: Storage, planned: Planned, owner: Claim | None) -> Entry:
    """Do what `claim_place` does. `owner` was read before; None if the output had no owner then."""
    if owner is not None:
        refuse_unlike(storage, planned.plan, owner)
        if not owner.begun_before_claims:
            return Entry(claim=owner, has_begun=False, is_fresh=False)
    entry = _begin(storage, planned, owner)
    refuse_unlike(storage, planned.plan, entry.claim)
    return entry


def goes_on(plan: Plan, claim: Claim) -> bool:
    """Return whether the build of a claim can continue with the same plan; some builds of dataprep 0.1.0 cannot."""
    return not claim.begun_before_claims or recipe_of(plan.options.dataset).joins_unnamed_builds


def _begin(storage: Storage, planned: Planned, before: Claim | None) -> Entry:
    plan, build_id = planned.plan, uuid.uuid4().hex
    root = f"{BUILD}/{plan.plan_hash}/{build_id}"
    references = planned.store(storage, root)  # before plan.json: a process that finds plan.json finds these as well
    claim = _claim(plan, root, plan.document() | {"build": build_id, "version": __version__}, references)
    with storage.alone():
        won = _put_pointer(storage, claim, before)
        with ThreadPoolExecutor(2) as threads:  # over a network concurrently
            # Looked for last: an --overwrite that begins later writes its mark first, and then looks for plan.json;
            # and another build may have finished before plan.json was put.
            overwriting, manifest = threads.map(storage.stat, (OVERWRITING, MANIFEST))
        if overwriting is not None and won:
            _delete_if(storage, PLAN_JSON, claim.pointer)
    if won and overwriting is None:
        return Entry(claim=claim, has_begun=True, is_fresh=manifest is None)
    storage.delete_tree(claim.root)
    theirs = read_claim(storage)
    if overwriting is not None or theirs is None:
        raise UsageError(f"{storage.url}: an --overwrite is under way there; wait for it, or run this with --overwrite")
    return Entry(claim=theirs, has_begun=False, is_fresh=False)


def _claim(plan: Plan, root: str, document: JsonObject, references: FileDigest | None) -> Claim:
    if references is not None:
        document = document | {"references": references.document()}
    return Claim(plan, root, json.dumps(document, indent=1, sort_keys=True).encode() + b"\n", references)


def with_references(storage: Storage, claim: Claim, references: FileDigest) -> Claim:
    """Note in `plan.json` the digest of references that were stored again, and return the claim that names it.

    Raises:
        OvertakenError: Another build owns the output now.
    """
    if references == claim.references:
        return claim
    new = _claim(claim.plan, claim.root, json.loads(claim.pointer), references)
    if not storage.replace(PLAN_JSON, new.pointer, claim.pointer):
        raise OvertakenError(_overtaken(storage, claim))
    return new


def withdraw(storage: Storage, claim: Claim) -> None:
    """Give up the output that was claimed, and remove the build's folder."""
    with storage.alone():
        _delete_if(storage, PLAN_JSON, claim.pointer)
    storage.delete_tree(claim.root)


def _put_pointer(storage: Storage, claim: Claim, before: Claim | None) -> bool:
    """Put `plan.json`; return whether the claim owns the output. A build of the same plan that dataprep 0.1.0 began
    continues as this one."""
    if before is not None:
        return storage.replace(PLAN_JSON, claim.pointer, before.pointer)
    try:
        storage.create(PLAN_JSON, claim.pointer)
    except ConflictError:
        return False
    return True


def refuse_unlike(storage: Storage, plan: Plan, found: Claim) -> None:
    """Raise UsageError unless a build of this plan can continue the one that owns the output."""
    refuse_other_plan(storage, plan, found.plan)
    if not goes_on(plan, found):
        raise UsageError(
            f"{storage.url}: {_PLAN_BEGUN_BEFORE}, and only that version can finish it; use it, choose another "
            "--output, or start over with --overwrite"
        )


def _delete_if(storage: Storage, name: str, data: bytes) -> None:
    """Remove a small object if its content is exactly `data`."""
    info = storage.stat(name)
    with suppress(FileNotFoundError):
        if info is not None and info.num_bytes == len(data) and storage.read(name) == data:
            storage.delete_exactly(info)


def read_claim(storage: Storage) -> Claim | None:
    """Return the build that owns the output, or None."""
    data = read_bounded(storage, PLAN_JSON, MAX_PLAN_BYTES, advice=_EDITED)
    return None if data is None else claim_in(storage, data)


def claim_in(storage: Storage, data: bytes) -> Claim:
    """Return the build that this content of `plan.json` names. Raises FormatError if it is malformed."""
    where = storage.url_of(PLAN_JSON)
    document = decode(data, JsonObject, where=where, advice=_EDITED)
    pointer = convert(document, _Pointer, where=where, advice=_EDITED)
    try:
        plan = plan_from_document(document, where=where, advice=_EDITED)
    except UsageError as error:
        raise FormatError(f"{where}: {error}; {_EDITED}") from error
    if plan.plan_hash != pointer.plan_hash:
        raise FormatError(f"{where}: its hash does not match its content; {_EDITED}")
    root = BUILD if pointer.build is None else f"{BUILD}/{plan.plan_hash}/{pointer.build}"
    return Claim(plan, root, data, pointer.references)


@dataclass(frozen=True, slots=True)
class _Pointer:
    """The part of `plan.json` that names the build, besides its plan."""

    plan_hash: str
    build: Annotated[str, Meta(pattern=r"^[0-9A-Za-z]+\Z")] | None = None
    """Name of the build's folder; it has no separator, so it cannot lead elsewhere."""
    references: FileDigest | None = None


def refuse_other_plan(storage: Storage, ours: Plan, theirs: Plan) -> None:
    """Raise UsageError, naming what differs, unless both plans are the same."""
    if ours.plan_hash == theirs.plan_hash:
        return
    advice = "Finish it with its own options, choose another --output, or start over with --overwrite"
    if (ours.options, ours.codecs) == (theirs.options, theirs.codecs):
        advice = "The originals have changed since: choose another --output, or begin again with --overwrite"
    raise UsageError(
        f"{storage.url}: a build with another plan is under way there: {plan_differences(ours, theirs)}. {advice}"
    )


def refuse_overtaken(storage: Storage, claim: Claim) -> None:
    """Raise OvertakenError if another build owns the output now."""
    if not _holds(storage, claim):
        raise OvertakenError(_overtaken(storage, claim))


def _holds(storage: Storage, claim: Claim) -> bool:
    """Return whether plan.json still belongs to this claim; in a bucket its size and CRC32C suffice."""
    if not storage.is_local:
        info = storage.stat(PLAN_JSON)
        return info is not None and (info.num_bytes, info.crc32c) == (len(claim.pointer), claim.pointer_crc32c)
    try:
        return storage.read(PLAN_JSON, len(claim.pointer)) == claim.pointer
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
        whose = "another run has begun anew with the same plan"
    else:
        whose = f"plan {found.plan.plan_hash[:12]} owns the output"
    return (
        f"{storage.url}: the build of plan {ours} was overtaken: {whose}; this run ends here. "
        "To build this one nevertheless, choose another --output or run it with --overwrite"
    )


def removed_names(storage: Storage) -> frozenset[str]:
    """Return the names that `--overwrite` has removed here since the last whole dataset; none on disk, where a late
    writer cannot bring a removed file back."""
    advice = "remove it, and what is left of the dataset, yourself, or choose another --output"
    data = read_bounded(storage, OVERWRITTEN, MAX_MARK_BYTES, advice=advice)
    if data is None:
        return frozenset()
    return frozenset(decode(data, list[str], where=storage.url_of(OVERWRITTEN), advice=advice))
