"""The commit of a fetched shard: its receipt decides, because the web gives other bytes the second time.

    nothing ──fetch──▶ attempt ──receipt──▶ decided ──put in place──▶ done

nothing    There is no receipt. What a killed worker was writing is a spool file without an owner; the next run removes
           it.
attempt    The three files of the shard lie whole and durable in a folder of their own, `tmp/<shard>-<uuid>/`, under the
           names that they will have. Nobody knows of it: after a kill here the shard is fetched again, and the folder
           goes with `_build/` at the end.
decided    The create-only receipt names the folder, and size and digests of all three. From here on nothing is fetched
           again, whoever comes. Of two attempts one has its receipt written; who loses drops its own folder and goes on
           with the winner's.
done       All three stand in their places, create-only: by hard links on disk, by the server's own copies in a bucket.
           Any number of processes may do this at once. What stands is left as it is, what still waits is removed.

A worker puts its shard in place itself. Where it was killed, whoever finds the receipt does: the worker of a rerun, or
the merge of all receipts. A rerun after the manifest stands finds that first and only cleans up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.build.receipts import read_receipt, receipt_file, write_receipt
from dataprep.dataset.records import Fetched, FileEntry, ShardReceipt
from dataprep.errors import ConflictError, FormatError, StorageError
from dataprep.fetched.names import ShardNames
from dataprep.sources.laion import SPLIT
from dataprep.storage import ObjectInfo, Storage, open_storage
from dataprep.storage.copies import check_same, copy_object

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """The places in which the shards of one build or retry wait and are published; its receipts must name the same.

    A receipt lies in the dataset, which may be a stranger's: it is compared with this before anything is moved or
    removed because of it.
    """

    root: str
    """Folder of the receipts, below `_build` or `_retry`."""
    names: ShardNames
    first_shard: int = 0
    """Position in the split of the shard with the first receipt."""

    def attempt(self, index: int, uuid_hex: str) -> str:
        """Return the folder in which the files of one attempt at a shard wait."""
        return f"{self.root}/tmp/{index:05d}-{uuid_hex}"

    def checked(self, storage: Storage, index: int, receipt: ShardReceipt) -> ShardReceipt:
        """Return the receipt, once it was compared with these places.

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
    """Make one attempt the shard: this one, or one that was decided before it.

    Args:
        storage: Where the dataset lies.
        places: Places of the build or retry.
        receipt: Receipt of the attempt, whose files all lie in its folder.
        rows: The shard's rows of the index.

    Returns:
        The receipt that counts.

    Raises:
        ConflictError: Another run has finished, and cleaned up, or something else stands in the shard's place.
        StorageError: The files could not be put in place; the receipt stands, and a rerun goes on.
    """
    try:
        write_receipt(storage, receipt, rows, places.root)
    except ConflictError:
        storage.delete_tree(fetched(receipt).attempt)
        winner = read_receipt(storage, receipt.index, places.root)
        if winner is None:
            raise
        receipt = places.checked(storage, receipt.index, winner[0])
    put_in_place(storage, receipt)
    return receipt


def put_in_place(storage: Storage, receipt: ShardReceipt) -> None:
    """Publish the files that a receipt names, where they are not published already.

    Raises:
        ConflictError: Something else stands there.
        StorageError: A file is neither there nor where the receipt says.
    """
    attempt = fetched(receipt).attempt
    for info in files_of(receipt):
        _put(storage, attempt, info)
    storage.delete_tree(attempt)


def placing(storage: Storage) -> Callable[[ShardReceipt], None]:
    """Return a function that does `put_in_place` for many receipts after one listing, so that only missing files cost
    anything."""
    existing = {info.name: info.num_bytes for info in storage.list()}

    def place(receipt: ShardReceipt) -> None:
        if any(existing.get(info.name) != info.num_bytes for info in files_of(receipt)):
            put_in_place(storage, receipt)

    return place


def files_of(receipt: ShardReceipt) -> Iterator[ObjectInfo]:
    """Yield the samples' file of a shard, and its sidecars."""
    yield ObjectInfo(receipt.file, receipt.num_bytes, receipt.crc32c)
    for entry in fetched(receipt).files:
        yield ObjectInfo(entry["file"], entry["bytes"], entry["crc32c"])


def entries_of(receipt: ShardReceipt) -> Iterator[FileEntry]:
    """Yield `{file, bytes, sha256}` of the sidecars, as the manifest lists them."""
    for entry in fetched(receipt).files:
        yield {"file": entry["file"], "bytes": entry["bytes"], "sha256": entry["sha256"]}


def fetched(receipt: ShardReceipt) -> Fetched:
    """Return what only receipts of fetched shards say. Raises StorageError for a receipt of another kind."""
    if receipt.fetched is None:
        raise StorageError(f"shard {receipt.index}: its receipt is not of a fetched shard; start over with --overwrite")
    return receipt.fetched


def _put(storage: Storage, attempt: str, info: ObjectInfo) -> None:
    existing = storage.stat(info.name)
    if existing is not None:
        check_same(storage, info, existing)
        return
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
