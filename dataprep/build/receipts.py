"""Receipts of the shards of a build or a retry: a shard with a receipt is done."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from dataprep.dataset.documents import decode
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import FormatError
from dataprep.storage import Storage
from dataprep.storage.base import read_bounded
from dataprep.storage.parquet import table_in

if TYPE_CHECKING:
    import pyarrow as pa


MAX_RECEIPT_BYTES = 512 << 20
"""Maximum size of a receipt; that of one shard of all 1.3 million images of ImageNet would have 100 MB."""


def receipt_file(index: int, root: str) -> str:
    """Return the name of a shard's receipt below the folder of its build or retry."""
    return f"{root}/receipts/{index:05d}.parquet"


def write_receipt(storage: Storage, receipt: ShardReceipt, rows: pa.Table, root: str) -> None:
    """Store a shard's receipt and index rows, create-only: from here on the shard is done.

    Args:
        storage: Where the dataset lies.
        receipt: The receipt.
        rows: The shard's rows of the index.
        root: Folder of the build or retry, which the receipt names.

    Raises:
        ConflictError: Another receipt exists.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = {b"receipt": json.dumps(asdict(receipt), sort_keys=True).encode(), b"of": root.encode()}
    sink = pa.BufferOutputStream()
    pq.write_table(rows.replace_schema_metadata(metadata), sink)
    storage.create(receipt_file(receipt.index, root), sink.getvalue().to_pybytes())


def read_receipt(storage: Storage, index: int, root: str) -> tuple[ShardReceipt, pa.Table] | None:
    """Read a shard's receipt and its index rows; None while the shard is not done.

    Raises:
        FormatError: The receipt belongs to another build, and the text names both; or it is malformed.
    """
    advice = f"dataprep did not write it: remove {root}/ and run the same command again"
    data = read_bounded(storage, receipt_file(index, root), MAX_RECEIPT_BYTES, advice=advice)
    if data is None:
        return None
    table = table_in(data)
    metadata, where = table.schema.metadata or {}, storage.url_of(receipt_file(index, root))
    written_for = metadata.get(b"of", b"").decode()
    if written_for != root:
        whose = written_for or "dataprep 0.1.0"
        raise FormatError(f"{where}: a receipt of {whose}, expected one of {root}; start over with --overwrite")
    receipt = decode(metadata.get(b"receipt", b""), ShardReceipt, where=where, advice=advice)
    return receipt, table.replace_schema_metadata(None)


def read_receipts(
    storage: Storage, indexes: Iterable[int], root: str
) -> Iterator[tuple[ShardReceipt, pa.Table] | None]:
    """Yield what `read_receipt` returns for each index, in order; over a network many are read at a time."""
    read = partial(read_receipt, storage, root=root)
    if storage.reads_in_flight == 1:
        yield from map(read, indexes)
        return
    with ThreadPoolExecutor(storage.reads_in_flight, thread_name_prefix="dataprep-receipts") as threads:
        waiting = iter(indexes)
        ahead: deque[Future[tuple[ShardReceipt, pa.Table] | None]] = deque()
        for index in islice(waiting, storage.reads_in_flight):
            ahead.append(threads.submit(read, index))
        while ahead:
            found = ahead.popleft().result()
            for index in islice(waiting, 1):
                ahead.append(threads.submit(read, index))
            yield found


def finished_shards(storage: Storage, root: str) -> set[int]:
    """Return the indexes of the shards that have a receipt."""
    names = (info.name.rpartition("/")[2] for info in storage.list(f"{root}/receipts/"))
    return {int(name.removesuffix(".parquet")) for name in names}
