"""Revisions of a finished dataset: the shards and samples that they added or removed, and new places of samples.

    dataset.json                       `changes`: one for each revision and split that changed
    removed/<revision>-<split>.parquet the samples that a revision removed: their places in the revision before it, and
                                       the SHA-256 of their keys; its metadata says when. No key and no URL is kept.

A shard keeps its position forever, even if all its samples are removed; added shards follow the last one. So a sample's
place in a later revision follows from the removed numbers of its shard alone (`moved`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from dataprep.arrays import NDArray, np, pa
from dataprep.dataset.columns import binaries, from_numpy, to_numpy
from dataprep.dataset.documents import json_text
from dataprep.dataset.index import ParquetTable
from dataprep.dataset.records import Change, FileEntry, Manifest, SplitManifest
from dataprep.errors import FormatError
from dataprep.storage import Storage

REMOVED = "removed"
"""Folder of the lists of removed samples."""
MAX_REMOVED = 1 << 22
"""Maximum number of samples of a split that one revision removes; their list has 180 MB."""
_MAX_BYTES = 2**28
_ADVICE = "restore the dataset's files"

Removed = Mapping[int, "NDArray[np.int64]"]
"""Numbers of removed samples by shard, ascending, as in the revision before; shards without any are left out."""


def changes_after(manifest: Manifest, revision: int, split: str) -> tuple[Change, ...] | None:
    """Return the changes of a split that lead from a revision to the manifest's, the earliest first.

    None if the manifest's revision is older, or one of the revisions between them does not say what it changed.
    """
    known = {change.revision for change in manifest.changes}
    if revision > manifest.revision or not known.issuperset(range(revision + 1, manifest.revision + 1)):
        return None
    return tuple(change for change in manifest.changes if change.revision > revision and change.split == split)


def first_shards(manifest: Manifest, split: str, shards: int) -> int:
    """Return the number of shards with which a split was built; `shards` is its number now."""
    return next((change.shards for change in manifest.changes if change.split == split), shards)


def moved(removed: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers, shape (samples,), that samples of a shard have after a removal, -1 for the removed ones, from
    their numbers before in any order; `removed` are ascending."""
    if not len(removed):
        return numbers
    at = np.searchsorted(removed, numbers)
    gone = removed[np.minimum(at, len(removed) - 1)] == numbers
    return np.where(gone, -1, numbers - at)


def kept_numbers(removed: NDArray[np.int64], samples: int) -> NDArray[np.int64]:
    """Return the numbers, before a removal, of the samples that a shard of this many kept, ascending."""
    return np.delete(np.arange(samples), removed)


def samples_before(change: Change, removed: Removed, samples: Sequence[int]) -> tuple[int, ...]:
    """Return the samples of each shard before a change, which removed some or none, from those after it."""
    return tuple(count + len(removed.get(number, ())) for number, count in enumerate(samples[: change.shards]))


def removed_file(revision: int, split: str) -> str:
    """Return the name of the list of samples that a revision removed from a split."""
    return f"{REMOVED}/{revision}-{split}.parquet"


def removed_schema() -> pa.Schema:
    """Return the columns of such a list: a sample's place in the revision before, and the SHA-256 of its key."""
    return pa.schema([("shard", pa.int32()), ("sample", pa.int64()), ("key_sha256", pa.binary())])


def removed_table(removed: Removed, keys: Sequence[str], when: str) -> pa.Table:
    """Return a list of removed samples with these keys, in the order of `removed`, whose shards are ascending; `when`
    is the time of the removal, ISO 8601."""
    counts = np.array([len(numbers) for numbers in removed.values()], np.int64)
    shards = np.repeat(np.array(list(removed), np.int32), counts)
    samples = np.concatenate([np.empty(0, np.int64), *removed.values()])
    digests = binaries([hashlib.sha256(key.encode()).digest() for key in keys])
    table = pa.Table.from_arrays([from_numpy(shards), from_numpy(samples), digests], schema=removed_schema())
    return table.replace_schema_metadata({"removed": when})


def steps_back(
    storage: Storage, split: SplitManifest, changes: Sequence[Change]
) -> Iterator[tuple[Change, Removed, tuple[int, ...]]]:
    """Yield the last changes of a split, which are given in their order (`changes_after`), the latest first, each with
    what it removed and the samples of each shard before it. Raises FormatError if a list of removed samples is missing
    or damaged, or not the one that the manifest lists."""
    samples = tuple(shard["samples"] for shard in split.shards)
    for change in reversed(changes):
        removed = _read_removed(storage, change, samples)
        samples = samples_before(change, removed, samples)
        yield change, removed, samples


def removed_keys(storage: Storage, manifest: Manifest, split: str) -> frozenset[bytes]:
    """Return the SHA-256 of the keys of all samples that were removed from a split. Raises FormatError."""
    entries = [each.removed for each in manifest.changes if each.split == split and each.removed is not None]
    tables = (_open_removed(storage, entry) for entry in entries)
    return frozenset(
        digest
        for table in tables
        for group in range(len(table.group_rows))
        for digest in table.read_group(group, ["key_sha256"]).column(0).to_pylist()
    )


def _open_removed(storage: Storage, entry: FileEntry) -> ParquetTable:
    where = storage.url_of(entry["file"])
    try:
        data = storage.read(entry["file"], entry["bytes"])
    except FileNotFoundError as error:
        raise FormatError(f"{where}: missing, but the manifest lists it; {_ADVICE}") from error
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise FormatError(f"{where}: not the file that the manifest lists; {_ADVICE}")
    source = pa.BufferReader(data)
    return ParquetTable(storage, entry["file"], removed_schema(), source=source, max_rows=MAX_REMOVED)


def _read_removed(storage: Storage, change: Change, samples: Sequence[int]) -> Removed:
    """Read the samples that a change removed; `samples` has the number of samples of each shard after it."""
    if change.removed is None:
        return {}
    table, where = _open_removed(storage, change.removed), storage.url_of(change.removed["file"])
    rows = [table.read_group(group, ["shard", "sample"]) for group in range(len(table.group_rows))]
    shards, numbers = (
        np.concatenate([np.empty(0, np.int64), *(to_numpy(each.column(name)) for each in rows)])
        for name in ("shard", "sample")
    )
    cuts = np.flatnonzero(np.diff(shards)) + 1
    groups = zip(np.split(shards, cuts), np.split(numbers, cuts), strict=True)
    found = {int(group[0]): part for group, part in groups if len(group)}
    inside = all(
        0 <= shard < len(samples)
        and part[0] >= 0
        and (np.diff(part) > 0).all()
        and part[-1] < samples[shard] + len(part)
        for shard, part in found.items()
    )
    if not inside or (np.diff(shards) < 0).any() or sum(samples) + len(numbers) != change.samples:
        raise FormatError(
            f"{where}: expected the places of {change.samples - sum(samples):,} samples, shard by shard, got "
            f"{len(numbers):,} other rows; {_ADVICE}"
        )
    return found


def removed_entries(manifest: Manifest) -> Iterator[FileEntry]:
    """Yield the lists of removed samples, with their sizes and digests."""
    for change in manifest.changes:
        if change.removed is not None:
            yield change.removed


def change_faults(manifest: Manifest) -> Iterator[str]:
    """Yield changes that contradict each other or the splits; names and counts are safe to use if there are none."""
    splits = {split.name: split for split in manifest.splits}
    places = [(change.revision, change.split) for change in manifest.changes]
    if len(set(places)) < len(places) or any(after[0] < place[0] for place, after in pairwise(places)):
        yield f"expected one for each revision and split, the earliest first, got {json_text(places)}"
        return
    for number, change in enumerate(manifest.changes):
        if change.split not in splits or not 2 <= change.revision <= manifest.revision:
            expected = f"a revision from 2 to {manifest.revision} and a split"
            yield f"[{number}]: expected {expected}, got {json_text(places[number])}"
            return
        removed, due = change.removed, removed_file(change.revision, change.split)
        if (removed is not None) != (change.kind == "removed"):
            yield f"[{number}].removed: {'absent' if removed is None else 'there'}, but the kind is {change.kind}"
        elif removed is not None and (removed["file"] != due or removed["bytes"] > _MAX_BYTES):
            yield f"[{number}].removed: expected {due} of at most {_MAX_BYTES:,} bytes, got {json_text(removed)}"
    for name, split in splits.items():
        found = [change for change in manifest.changes if change.split == name]
        yield from _count_faults(split, found) if found else ()


def _count_faults(split: SplitManifest, changes: Sequence[Change]) -> Iterator[str]:
    """Yield changes of a split whose counts contradict the next change or the split itself."""
    afterwards = [*((change.shards, change.samples) for change in changes[1:]), (len(split.shards), split.samples)]
    for change, (shards, samples) in zip(changes, afterwards, strict=True):
        more = shards > change.shards and samples >= change.samples
        less = shards == change.shards and samples <= change.samples  # also only rows of a table without an image
        if not (more if change.kind == "added" else less):
            yield (
                f"revision {change.revision} of {split.name}: {change.kind}, from {change.samples:,} samples in "
                f"{change.shards:,} shards to {samples:,} in {shards:,}"
            )
