"""Receipts of the shards of a build or a retry: a shard with a receipt is done.

A receipt is a parquet file of the shard's index rows, with the `ShardReceipt` in its footer. Names sort like indexes:
`00000` to `99999`, then `a100000` and so on, with a letter for each further digit. So the receipts from a given index
on are one range of a listing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial

from dataprep.arrays import np, pa, pq
from dataprep.dataset.documents import decode
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import FormatError
from dataprep.messages import one_line
from dataprep.storage import ObjectInfo, Storage
from dataprep.storage.base import read_ahead, read_bounded
from dataprep.storage.parquet import footer_metadata, table_in

MAX_RECEIPT_BYTES = 512 << 20
"""Maximum size of a receipt; one shard with all 1.3 million images of ImageNet would need 100 MB."""
POLL_S = 0.5
"""Minimum time between two listings of receipts, in seconds."""
LISTING_SHARE = 0.02
"""Maximum share of the time that is spent on listing receipts."""
PAGE_RECEIPTS = 1000
"""Receipts that one request lists."""
MAX_ALONE = 64
"""Maximum number of receipts that are looked up one by one instead of with a longer listing."""
_DIGITS = 5
_LETTERS = "abcdefghijklm"
_SUFFIX = ".parquet"


def receipt_file(index: int, root: str) -> str:
    """Return the name of a shard's receipt below the folder of its build or retry."""
    digits = f"{index:0{_DIGITS}d}"
    letter = _LETTERS[len(digits) - _DIGITS - 1] if len(digits) > _DIGITS else ""
    return f"{_folder(root)}{letter}{digits}{_SUFFIX}"


def _folder(root: str) -> str:
    return f"{root}/receipts/"


def _index_of(name: str, root: str) -> int | None:
    """Return the index of the shard whose receipt has this name; None if it is not a receipt's name."""
    digits = name.removeprefix(_folder(root)).removesuffix(_SUFFIX).lstrip(_LETTERS)
    if not digits.isdecimal() or len(digits) > _DIGITS + len(_LETTERS):
        return None
    return int(digits) if receipt_file(int(digits), root) == name else None


def write_receipt(
    storage: Storage, receipt: ShardReceipt, rows: pa.Table, root: str, before: Callable[[], None] | None = None
) -> None:
    """Store a shard's receipt and index rows, create-only: from here on the shard is done. Raises ConflictError if
    another receipt exists. `before` is called when its bytes are written, before it gets its name
    (`Storage.create_last`)."""
    metadata = {b"receipt": json.dumps(asdict(receipt), sort_keys=True).encode(), b"of": root.encode()}
    sink = pa.BufferOutputStream()
    pq.write_table(rows.replace_schema_metadata(metadata), sink)
    name, data = receipt_file(receipt.index, root), sink.getvalue().to_pybytes()
    if before is None:
        storage.create(name, data)
    else:
        storage.create_last(name, data, before)


def read_receipt(storage: Storage, index: int, root: str) -> tuple[ShardReceipt, pa.Table] | None:
    """Read a shard's receipt and its index rows; None while the shard is not done. Raises FormatError if the receipt is
    malformed or belongs to another build."""
    data = read_bounded(storage, receipt_file(index, root), MAX_RECEIPT_BYTES, advice=_advice(root))
    if data is None:
        return None
    table = table_in(data)
    return _receipt_in(table.schema.metadata or {}, storage, index, root), table.replace_schema_metadata(None)


def read_summary(storage: Storage, info: ObjectInfo, index: int, root: str) -> ShardReceipt | None:
    """Read a shard's receipt without its index rows: one request for the end of its file; None if it is gone. Raises
    FormatError if the receipt is malformed or belongs to another build."""
    try:
        metadata = footer_metadata(storage, info, MAX_RECEIPT_BYTES)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise FormatError(f"{storage.url_of(info.name)}: not a receipt ({one_line(error)}); {_advice(root)}") from error
    return _receipt_in(metadata, storage, index, root)


def _receipt_in(metadata: Mapping[bytes, bytes], storage: Storage, index: int, root: str) -> ShardReceipt:
    where, written_for = storage.url_of(receipt_file(index, root)), metadata.get(b"of", b"").decode()
    if written_for != root:
        whose = written_for or "no build"
        raise FormatError(f"{where}: a receipt of {whose}, expected one of {root}; start over with `overwrite`")
    return decode(metadata.get(b"receipt", b""), ShardReceipt, where=where, advice=_advice(root))


def _advice(root: str) -> str:
    return f"dataprep did not write it: remove {root}/ and run the same command again"


def read_receipts(
    storage: Storage, indexes: Iterable[int], root: str
) -> Iterator[tuple[ShardReceipt, pa.Table] | None]:
    """Yield the result of `read_receipt` for each index, in order; over a network many are read at a time."""
    yield from read_ahead(partial(read_receipt, storage, root=root), indexes, storage.reads_in_flight)


def finished_shards(storage: Storage, root: str) -> set[int]:
    return set(listed_receipts(storage, root))


def listed_receipts(storage: Storage, root: str, first: str = "") -> dict[int, ObjectInfo]:
    """Return the receipts, by shard index, starting with the name `first`."""
    listed = ((_index_of(info.name, root), info) for info in storage.list(_folder(root), first))
    return {index: info for index, info in listed if index is not None}


class ReceiptWatch:
    """Finds the receipts of a build as they appear, in at most LISTING_SHARE of the time.

    A look lists the receipts from a missing shard on, so that a long build does not list known receipts again. A few
    earlier shards that take longer than others are looked up one by one. After a slow look, the next one comes later.

    Args:
        indexes: Indexes of the shards to wait for; all others are finished.
    """

    def __init__(
        self, storage: Storage, root: str, indexes: Iterable[int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._storage, self._root, self._clock = storage, root, clock
        self.missing = set(indexes)
        """Indexes of the shards without a receipt, as of the last look."""
        self._missing = np.array(sorted(self.missing), np.int64)
        """The same indexes, ascending."""
        self._last = max(self.missing, default=0)
        """The largest known index."""
        self._due_s = clock()

    @property
    def wait_s(self) -> float:
        """Seconds until the next look is due; 0 if it is."""
        return max(0.0, self._due_s - self._clock())

    def look(self) -> dict[int, ObjectInfo]:
        """Look now, and return the receipts that are new, by shard in ascending order."""
        started_s = self._clock()
        listed = self._looked_up()
        new = {index: listed[index] for index in sorted(listed.keys() & self.missing)}
        if new:
            self.missing -= new.keys()
            self._missing = self._missing[[index not in new for index in self._missing.tolist()]]
            self._last = max(self._last, *listed)
        ended_s = self._clock()
        self._due_s = ended_s + max(POLL_S, (ended_s - started_s) / LISTING_SHARE)
        return new

    def receipts(self, *, now: bool = False) -> Iterator[ShardReceipt]:
        """Yield the new receipts, without their index rows; nothing if no look is due, unless `now` forces one."""
        if self.wait_s and not now:
            return
        new = self.look()
        storage, root = self._storage, self._root
        found = read_ahead(lambda n: read_summary(storage, new[n], n, root), new, storage.reads_in_flight)
        yield from filter(None, found)

    def _looked_up(self) -> dict[int, ObjectInfo]:
        """Return the receipts of the lowest missing shards, and all from a missing shard on."""
        if not self.missing:
            return {}
        alone = self._num_alone()
        names = {index: receipt_file(index, self._root) for index in self._missing[: alone + 1].tolist()}
        *others, first = names
        listed = listed_receipts(self._storage, self._root, names[first])
        found = read_ahead(lambda index: self._storage.stat(names[index]), others, self._storage.reads_in_flight)
        return listed | {index: info for index, info in zip(others, found, strict=True) if info is not None}

    def _num_alone(self) -> int:
        """Return how many of the lowest missing shards to look up one by one, for the fewest requests in total."""
        lowest = self._missing[: MAX_ALONE + 1]
        alone = np.arange(len(lowest))
        seen_above = (self._last - lowest) - (len(self._missing) - 1 - alone)
        return int(np.argmin(alone + seen_above // PAGE_RECEIPTS))
