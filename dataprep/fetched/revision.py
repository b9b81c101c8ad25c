"""The next revision of a finished dataset, with new shards after the last one.

Three files are replaced, each atomically and only if it has not changed since it was read: the index, which begins with
all row groups of the old one; dataset_info.json, which lists shards that are published already; and last dataset.json,
which lists all of them. Readers see a whole dataset between any two of these steps, and the steps can be repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dataprep.builder.receipts import read_receipts
from dataprep.dataset.index import grown_entry, index_files, index_schema, open_index, spool_row_groups
from dataprep.dataset.manifest import MANIFEST, bytes_entry, manifest_bytes, schema_version, shard_entry
from dataprep.dataset.records import IndexEntry, Manifest, ShardReceipt, SplitManifest
from dataprep.errors import ConflictError
from dataprep.fetched.commit import entries_of, fetched, placing
from dataprep.fetched.existing import FetchedDataset
from dataprep.storage import ObjectInfo, Storage
from dataprep.storage.checksums import digests_of

if TYPE_CHECKING:
    import pyarrow as pa


def publish_revision(dataset: FetchedDataset, root: str, new: Sequence[ShardReceipt]) -> Manifest:
    """Publish the revision of a dataset that has these additional shards.

    Args:
        dataset: The dataset, as it was read.
        root: Folder of the receipts.
        new: Receipts of the shards; shards that are not published yet are published now.

    Returns:
        The manifest of the new revision.

    Raises:
        ConflictError: Another process has changed the dataset meanwhile.
    """
    storage, manifest = dataset.storage, dataset.manifest
    place = placing(storage)
    for receipt in new:
        place(receipt)
    split = _grown(manifest.splits[0], new, _replace_index(storage, root, len(new), manifest.splits[0]))
    described = dataset.layout.described(split)
    files = {entry["file"]: entry for entry in manifest.files}
    files |= {entry["file"]: entry for receipt in new for entry in entries_of(receipt)}
    files |= {name: bytes_entry(name, content.after) for name, content in described.items()}
    networks = set(manifest.options.get("allow_networks", ()))
    networks |= {network for receipt in new for network in fetched(receipt).allow_networks}
    grown = replace(
        manifest,
        schema_version=schema_version(manifest.splits),
        revision=manifest.revision + 1,
        options=manifest.options | {"allow_networks": sorted(networks)},
        splits=(split,),
        files=tuple(files[name] for name in sorted(files)),
    )
    for name, content in described.items():
        _replace(storage, name, content.after, content.before)
    _replace(storage, MANIFEST, manifest_bytes(grown), dataset.data)
    return grown


def _grown(split: SplitManifest, new: Sequence[ShardReceipt], index: IndexEntry) -> SplitManifest:
    """Return a split with its new shards; every row is counted by its newest status."""
    statuses, reasons = Counter(split.statuses), Counter(split.reasons)
    for receipt in new:
        what = fetched(receipt)
        for counts, now, had in (
            (statuses, what.statuses, what.before["statuses"]),
            (reasons, what.reasons, what.before["reasons"]),
        ):
            counts.update(now)
            counts.subtract(had)
    return replace(
        split,
        samples=split.samples + sum(receipt.samples for receipt in new),
        num_bytes=split.num_bytes + sum(receipt.num_bytes for receipt in new),
        shards=(*split.shards, *(shard_entry(receipt) for receipt in new)),
        index=index,
        statuses=dict(statuses),
        reasons={reason: count for reason, count in sorted(reasons.items()) if count},
    )


def _replace_index(storage: Storage, root: str, new_shards: int, split: SplitManifest) -> IndexEntry:
    """Replace the index, or its last part, by one with the old row groups, unchanged, and then one for each new
    shard."""
    last = index_files(split)[-1]
    name, first = last["file"], sum(part["shards"] for part in split.index.get("parts", [])[:-1])
    with storage.open(name) as stream:
        existing = digests_of(stream)
    table = open_index(storage, split)

    def groups() -> Iterator[pa.Table]:
        for number in range(first, len(split.shards)):
            yield table.read_group(number)
        for found in read_receipts(storage, range(new_shards), root):
            if found is None:
                raise ConflictError(changed(storage))
            yield found[1]

    spool, digests = spool_row_groups(storage, name, groups(), index_schema())
    expected = ObjectInfo(name, existing.num_bytes, existing.crc32c)
    ours = existing.sha256 in (last["sha256"], digests.sha256)
    if not ours or not storage.replace_file(spool, name, digests.crc32c, expected):
        spool.unlink(missing_ok=True)
        raise ConflictError(changed(storage))
    return grown_entry(split, {"file": name, "bytes": digests.num_bytes, "sha256": digests.sha256}, new_shards)


def _replace(storage: Storage, name: str, data: bytes, before: bytes) -> None:
    if data != before and not storage.replace(name, data, before) and storage.read(name) != data:
        raise ConflictError(changed(storage))


def changed(storage: Storage) -> str:
    """Return the text of the error for a dataset that another process has changed."""
    return f"{storage.url}: another process has changed the dataset meanwhile; run the same command again"
