"""The commit of a fetched shard: its receipt decides, because a second download may give other bytes.

    nothing ──fetch──▶ attempt ──receipt──▶ decided ──put in place──▶ done

nothing    There is no receipt. A file that a killed worker was writing is a spool file without an owner, which the next
           run removes.
attempt    The three files of the shard are complete and durable in their own folder, `tmp/<shard>-<uuid>/`, under their
           final names. Nothing refers to the folder: after a kill here the shard is fetched again, and the folder is
           removed with `_build/` at the end.
decided    The create-only receipt names the folder, and the sizes and digests of the three files. From here on no
           process fetches the shard again. Of two attempts only one can write the receipt; the other removes its own
           folder and continues with the winner's.
done       The three files are published under their final names, create-only: by hard links on disk, by the server's
           copies in a bucket. Any number of processes may do this at once. Published files are left as they are, files
           that still wait are removed.

A worker publishes its shard itself. If it was killed, the process that finds the receipt does: the worker of a rerun,
or the merge of all receipts. A rerun that finds the manifest only cleans up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.builder.receipts import read_receipt, receipt_file, write_receipt
from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.records import Fetched, FileEntry, ShardReceipt
from dataprep.errors import AccessError, BuildError, ConflictError, FormatError, StorageError
from dataprep.fetched.shard import ShardNames
from dataprep.sources.laion import SPLIT
from dataprep.storage import ObjectInfo, Storage, open_storage
from dataprep.storage.copies import check_same, copy_object

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """The names under which the shards of one build or retry wait and are published; its receipts must have the same.

    A receipt is a file of the dataset, which may be a stranger's: it is compared with these names before any file that
    it names is moved or removed.
    """

    root: str
    """Folder of the receipts, below `_build` or `_retry`."""
    names: ShardNames
    first_shard: int = 0
    """Position in the split of the shard with the first receipt."""
    replaces: bool = False
    """Whether the names may be those of files of a dataset whose manifest is gone, which give way to the shards."""

    def attempt(self, index: int, uuid_hex: str) -> str:
        """Return the folder in which the files of one attempt at a shard wait for publication."""
        return f"{self.root}/tmp/{index:05d}-{uuid_hex}"

    def checked(self, storage: Storage, index: int, receipt: ShardReceipt) -> ShardReceipt:
        """Compare a receipt with these names, and return it.

        Raises:
            FormatError: The receipt names other files than this shard's.
        """
        what, shard = fetched(receipt), self.first_shard + index
        pairs = {
            "index": (receipt.index, index),
            "split": (receipt.split, SPLIT),
            "split_index": (receipt.split_index, shard),
            "file": (receipt.file, self.names.samples_file(shard)),
            "files": (
                sorted(str(entry.get("file")) for entry in what.files),
                sorted((self.names.parquet_file(shard), self.names.stats_file(shard))),
            ),
        }
        wrong = next(((name, *pair) for name, pair in pairs.items() if pair[0] != pair[1]), None)
        attempt = self.attempt(index, "")
        if wrong is None and not re.fullmatch(rf"{re.escape(attempt)}[0-9a-f]{{32}}", str(what.attempt)):
            wrong = "attempt", what.attempt, f"{attempt}<32 hexadecimal digits>"
        if wrong is not None:
            name, got, expected = wrong
            raise FormatError(
                f"{storage.url_of(receipt_file(index, self.root))}: its {name} is {str(got)[:200]!r}, expected "
                f"{expected!r}; dataprep did not write it: remove {self.root}/ and run the same command again"
            )
        return receipt


def decide(storage: Storage, places: Places, receipt: ShardReceipt, rows: pa.Table) -> ShardReceipt:
    """Decide which attempt becomes the shard, this one or an earlier one, and publish it.

    Args:
        receipt: Receipt of the attempt, whose folder has all its files.

    Returns:
        The valid receipt.

    Raises:
        ConflictError: Another run has finished and cleaned up, or another object has the shard's name.
        StorageError: The files could not be put in place; the receipt is stored, and a rerun continues.
    """
    try:
        write_receipt(storage, receipt, rows, places.root)
    except ConflictError:
        storage.delete_tree(fetched(receipt).attempt)
        winner = read_receipt(storage, receipt.index, places.root)
        if winner is None:
            raise
        receipt = places.checked(storage, receipt.index, winner[0])
    put_in_place(storage, receipt, replaces=places.replaces)
    return receipt


def put_in_place(storage: Storage, receipt: ShardReceipt, *, replaces: bool = False) -> None:
    """Publish the files that a receipt names, unless they are published already; see `Places.replaces`.

    Raises:
        ConflictError: Another object has the name.
        StorageError: A file is neither published nor in the folder that the receipt names.
    """
    attempt = fetched(receipt).attempt
    for info in files_of(receipt):
        _put(storage, attempt, info, replaces=replaces)
    with suppress(AccessError):  # in a bucket in which nothing can be deleted
        storage.delete_tree(attempt)


def placing(storage: Storage, *, replaces: bool = False) -> Callable[[ShardReceipt], None]:
    """List the storage once, and return a function like `put_in_place` that spends requests and reads only on shards
    that are not in place.

    A bucket's listing has the digests. On a disk the attempt's folder tells without a read of the shard: it has files
    until all three were put in place, and each was compared with one that had its name already.
    """
    existing = {info.name: info for info in storage.list()}

    def is_in_place(info: ObjectInfo, attempt: str) -> bool:
        found = existing.get(info.name)
        if found is None or found.num_bytes != info.num_bytes:
            return False
        return found.crc32c == info.crc32c if found.crc32c else f"{attempt}/{info.name}" not in existing

    def place(receipt: ShardReceipt) -> None:
        attempt = fetched(receipt).attempt
        if not all(is_in_place(info, attempt) for info in files_of(receipt)):
            put_in_place(storage, receipt, replaces=replaces)

    return place


def are_lost(storage: Storage, receipt: ShardReceipt) -> bool:
    """Return whether a file that a receipt names is neither in place, with its bytes, nor waiting to be put there."""
    attempt = fetched(receipt).attempt
    for info in files_of(receipt):
        existing = storage.stat(info.name)
        try:
            if existing is not None:
                check_same(storage, info, existing)
                continue
        except ConflictError:
            pass
        if storage.stat(f"{attempt}/{info.name}") is None:
            return True
    return False


def refuse_added(storage: Storage, names: ShardNames, shards: int) -> None:
    """Raise BuildError if there is a shard after those of a build: only the manifest that is gone has listed it."""
    name = names.samples_file(shards)
    if storage.stat(name) is not None:
        raise BuildError(
            f"{storage.url_of(name)}: a shard that retry-failed has added, and the {MANIFEST} that lists it is gone: "
            "put that file back, or remove this shard and those after it, with their .parquet and _stats.json; run "
            "the same command again, and then retry-failed, which fetches their rows again"
        )


def files_of(receipt: ShardReceipt) -> Iterator[ObjectInfo]:
    """Yield name, size and CRC32C of a shard's samples file and of its sidecars."""
    yield ObjectInfo(receipt.file, receipt.num_bytes, receipt.crc32c)
    for entry in fetched(receipt).files:
        yield ObjectInfo(entry["file"], entry["bytes"], entry["crc32c"])


def entries_of(receipt: ShardReceipt) -> Iterator[FileEntry]:
    """Yield `{file, bytes, sha256}` of the sidecars, as the manifest lists them."""
    for entry in fetched(receipt).files:
        yield {"file": entry["file"], "bytes": entry["bytes"], "sha256": entry["sha256"]}


def fetched(receipt: ShardReceipt) -> Fetched:
    """Return the part of a receipt that only fetched shards have. Raises StorageError for other receipts."""
    if receipt.fetched is None:
        raise StorageError(f"shard {receipt.index}: its receipt is not of a fetched shard; start over with `overwrite`")
    return receipt.fetched


def _put(storage: Storage, attempt: str, info: ObjectInfo, *, replaces: bool) -> None:
    existing = storage.stat(info.name)
    if existing is not None:
        try:
            check_same(storage, info, existing)
            return
        except ConflictError:
            if not replaces:
                raise
        _remove_other(storage, info)
    waiting = f"{attempt}/{info.name}"
    try:
        if storage.is_local:
            storage.publish(Path(storage.url_of(waiting)), info.name, str(info.crc32c))
        else:
            copy_object(open_storage(storage.url_of(attempt)), storage, info, lambda num_bytes: None)
    except (StorageError, FileNotFoundError) as error:
        existing = storage.stat(info.name)  # another process may have been quicker, and removed the waiting files
        if existing is None:
            raise StorageError(f"{storage.url_of(info.name)}: not put in place from {waiting} ({error})") from error
        check_same(storage, info, existing)


def _remove_other(storage: Storage, info: ObjectInfo) -> None:
    """Remove the object of this name, unless another process has put the expected one there meanwhile."""
    with storage.alone():
        existing = storage.stat(info.name)
        if existing is None:
            return
        try:
            check_same(storage, info, existing)
        except ConflictError:
            storage.delete_exactly(existing)
