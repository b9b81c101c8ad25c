"""Finds the rows of a finished dataset that failed last: the last shard whose parquet file has a row's key tells.

Only one bit is held for each row that was tried again; all else streams by, a shard at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from dataprep.errors import FormatError, UsageError
from dataprep.fetched.layout import Layout
from dataprep.formats.img2dataset import FAILED_TO_DOWNLOAD, FAILED_TO_RESIZE
from dataprep.storage import Storage
from dataprep.storage.parquet import read_columns

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Bits = NDArray[np.uint8]

MAY_PASS = frozenset(
    {"timeout", "connect", "dns", "host busy", "host down", "incomplete", "no answer", "http 408", "http 429"}
)
"""Reasons for which a later attempt may succeed; answers of 500 and more are such reasons, too."""
FAILED = frozenset({FAILED_TO_DOWNLOAD, FAILED_TO_RESIZE})
_COLUMNS = ("key", "status", "error_message")


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which failed rows are tried again: by default those whose reason may pass."""

    reasons: tuple[str, ...] = ()
    """Reasons, in the words of the parquet files, of the rows that are tried again."""
    everything: bool = False
    """Whether every row is tried again that failed to download or to be resized."""

    def __post_init__(self) -> None:
        if self.reasons and self.everything:
            raise UsageError("--all takes every reason, --reason some; give one of them")

    def takes(self, status: str, reason: str) -> bool:
        """Whether a row with this status and reason is tried again."""
        if status not in FAILED:
            return False
        if self.everything or self.reasons:
            return self.everything or reason in self.reasons
        return status == FAILED_TO_DOWNLOAD and may_pass(reason)


class Place(NamedTuple):
    """Place of a row's newest status."""

    shard: int
    row: int
    """Position of the row in that shard's parquet file."""
    reason: str


def may_pass(reason: str) -> bool:
    """Whether a later attempt may succeed at a download that failed for this reason."""
    return reason in MAY_PASS or reason.startswith("http 5")


def rows_to_try(storage: Storage, layout: Layout, choice: Choice) -> Iterator[Place]:
    """Yield the rows that a choice takes, in the order of the shards in which they were tried last.

    Raises:
        FormatError: A parquet file beside a shard is missing or damaged.
    """
    total = len(layout.parquet_files)
    newer = _Newer(layout.key_digits, storage.url)
    retries = _see_retries(storage, layout, newer)
    for place, table in zip(range(total), _tables(storage, layout, range(total)), strict=True):
        after = total - 1 - place
        retried = newer.in_retry(after) if after < retries else None
        columns = (table.column(name).to_pylist() for name in _COLUMNS)
        for row, (key, status, message) in enumerate(zip(*columns, strict=True)):
            if status not in FAILED:
                continue
            reason = layout.reason_of(message or "")
            if choice.takes(status, reason) and not (newer.has(key) if retried is None else retried[row]):
                yield Place(place, row, reason)


def _see_retries(storage: Storage, layout: Layout, newer: _Newer) -> int:
    """Show `newer` the shards of retries, the last one first, until there is one of another kind; return how many there
    are."""
    retries, back = 0, range(len(layout.parquet_files) - 1, -1, -1)
    with closing(_tables(storage, layout, back)) as tables:
        for place, table in zip(back, tables, strict=True):
            if not newer.see(layout.numbers[place], table.column("key").to_pylist()):
                break
            retries += 1
    return retries


class _Newer:
    """Knows which rows have a newer status elsewhere. It is shown the shards of retries, from the last one back.

    Args:
        key_digits: Digits of a row's number, with which a key ends; a shard's number stands before it.
        url: URL of the dataset, for errors.
    """

    def __init__(self, key_digits: int, url: str) -> None:
        self._digits, self._url = key_digits, url
        self._tried: dict[int, Bits] = {}
        self._retries: list[Bits] = []

    def see(self, number: int, keys: Sequence[str]) -> bool:
        """Note the rows of a shard of a retry; return False, and note nothing, for a shard whose keys are its own."""
        import numpy as np

        if not keys or self._split(keys[0])[0] == number:
            return False
        newer = np.zeros(len(keys), np.bool_)
        for position, key in enumerate(keys):
            shard, row = self._split(key)
            packed = self._tried.setdefault(shard, np.zeros(-(-(10**self._digits) // 8), np.uint8))
            byte, bit = row >> 3, np.uint8(1 << (row & 7))
            newer[position] = bool(packed[byte] & bit)
            packed[byte] |= bit
        self._retries.append(np.packbits(newer, bitorder="little"))
        return True

    def has(self, key: str) -> bool:
        """Whether a row of a first attempt was tried again."""
        shard, row = self._split(key)
        packed = self._tried.get(shard)
        return packed is not None and bool(packed[row >> 3] >> (row & 7) & 1)

    def in_retry(self, seen: int) -> Bits:
        """Return, for each row of a retry's shard, whether it was tried once more; `seen` counts the shards seen before
        it."""
        import numpy as np

        return np.unpackbits(self._retries[seen], bitorder="little")

    def _split(self, key: str | None) -> tuple[int, int]:
        """Return the numbers of shard and row in a key."""
        if key is None or not key.isdecimal() or len(key) <= self._digits:
            raise FormatError(
                f"{self._url}: key {str(key)[:40]!r}, expected numbers of shard and row; restore the files"
            )
        cut = len(key) - self._digits
        return int(key[:cut]), int(key[cut:] or 0)


class RowPlaces:
    """Cuts places into new shards, as tables of `rows.parquet`."""

    def __init__(self, rows_per_shard: int) -> None:
        self._rows_per_shard = rows_per_shard
        self.shard_rows: list[int] = []
        """Rows of each table that was made."""

    @staticmethod
    def schema() -> pa.Schema:
        import pyarrow as pa

        return pa.schema([("shard", pa.int32()), ("row", pa.int32())])

    def tables(self, places: Iterator[Place]) -> Iterator[pa.Table]:
        """Yield a table for each new shard."""
        held: list[Place] = []
        for place in places:
            held.append(place)
            if len(held) == self._rows_per_shard:
                yield self._table(held)
                held = []
        if held:
            yield self._table(held)

    def _table(self, held: Sequence[Place]) -> pa.Table:
        from dataprep.dataset.columns import table_of

        self.shard_rows.append(len(held))
        return table_of([[place.shard for place in held], [place.row for place in held]], self.schema())


def _tables(storage: Storage, layout: Layout, places: range) -> Generator[pa.Table]:
    """Yield the columns that are needed of many sidecars, in their order; over a network several are read at a time."""
    read = partial(read_columns, storage, columns=_COLUMNS)
    at_once = max(1, min(storage.reads_in_flight, 16))
    with ThreadPoolExecutor(at_once, thread_name_prefix="dataprep-rows") as threads:
        for start in range(0, len(places), at_once):
            yield from threads.map(read, (layout.parquet_files[place] for place in places[start : start + at_once]))
