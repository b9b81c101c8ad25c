"""How a fetched shard comes to stand: the receipt decides, because the web gives other bytes the second time.

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

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.errors import ConflictError, StorageError
from dataprep.records import Fetched, ShardReceipt
from dataprep.storage import ObjectInfo, Storage, open_storage
from dataprep.storage.copies import check_same, copy_object
from dataprep.workspace import read_receipt, write_receipt

if TYPE_CHECKING:
    import pyarrow as pa


def decide(storage: Storage, root: str, receipt: ShardReceipt, rows: pa.Table) -> ShardReceipt:
    """Have an attempt, or one that was decided before it, stand as the shard.

    Args:
        storage: Of the dataset.
        root: Folder of the receipts: `_build` or `_retry`.
        receipt: Of the attempt, whose files are all in its folder.
        rows: The shard's rows of the index.

    Returns:
        The receipt that counts.

    Raises:
        ConflictError: Another run has finished, and cleaned up, or something else stands in the shard's place.
        StorageError: The files could not be put in place; the receipt stands, and a rerun goes on.
    """
    try:
        write_receipt(storage, receipt, rows, root)
    except ConflictError:
        storage.delete_tree(fetched(receipt).attempt)
        winner = read_receipt(storage, receipt.index, root)
        if winner is None:
            raise
        receipt = winner[0]
    put_in_place(storage, receipt)
    return receipt


def put_in_place(storage: Storage, receipt: ShardReceipt) -> None:
    """Put the files that a receipt names in their places, where they do not stand there already.

    Raises:
        ConflictError: Something else stands there.
        StorageError: A file is neither there nor where the receipt says.
    """
    attempt = fetched(receipt).attempt
    for info in files_of(receipt):
        _put(storage, attempt, info)
    storage.delete_tree(attempt)


def placing(storage: Storage) -> Callable[[ShardReceipt], None]:
    """`put_in_place` for many receipts, after one listing: only what is missing costs anything."""
    standing = {info.name: info.num_bytes for info in storage.list()}

    def place(receipt: ShardReceipt) -> None:
        if any(standing.get(info.name) != info.num_bytes for info in files_of(receipt)):
            put_in_place(storage, receipt)

    return place


def files_of(receipt: ShardReceipt) -> Iterator[ObjectInfo]:
    """The samples' file of a shard, and those beside it."""
    yield ObjectInfo(receipt.file, receipt.num_bytes, receipt.crc32c)
    for entry in fetched(receipt).files:
        yield ObjectInfo(entry["file"], entry["bytes"], entry["crc32c"])


def entries_of(receipt: ShardReceipt) -> Iterator[dict[str, Any]]:
    """`{file, bytes, sha256}` of the files beside the samples, as the manifest lists them."""
    for entry in fetched(receipt).files:
        yield {name: entry[name] for name in ("file", "bytes", "sha256")}


def fetched(receipt: ShardReceipt) -> Fetched:
    """What a receipt of a fetched shard says besides. Raises StorageError for one of another kind."""
    if receipt.fetched is None:
        raise StorageError(f"shard {receipt.index}: its receipt is not of a fetched shard; start over with --overwrite")
    return receipt.fetched


def _put(storage: Storage, attempt: str, info: ObjectInfo) -> None:
    standing = storage.stat(info.name)
    if standing is not None:
        check_same(storage, info, standing)
        return
    waiting = f"{attempt}/{info.name}"
    try:
        if storage.is_local:
            storage.publish(Path(storage.url_of(waiting)), info.name, str(info.crc32c))
        else:
            copy_object(open_storage(storage.url_of(attempt)), storage, info, lambda num_bytes: None)
    except (StorageError, FileNotFoundError) as error:
        standing = storage.stat(info.name)  # another process may have been quicker, and removed what waited
        if standing is None:
            raise StorageError(f"{storage.url_of(info.name)}: not put in place from {waiting} ({error})") from error
        check_same(storage, info, standing)
