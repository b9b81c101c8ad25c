"""Which rows of a finished dataset failed last: the last shard whose parquet file has a row's key tells.

Of the rows themselves one bit each is held, for those that were tried again; all else streams by, a shard at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from dataprep.checks.laion import files_beside, laion_options
from dataprep.errors import FormatError, UsageError
from dataprep.laion.collect import FAILED_TO_DOWNLOAD, FAILED_TO_RESIZE
from dataprep.records import Manifest
from dataprep.storage import Storage
from dataprep.workspace import RangeFile

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Bits = NDArray[np.uint8]

MAY_PASS = frozenset(
    {"timeout", "connect", "dns", "host busy", "host down", "incomplete", "no answer", "http 408", "http 429"}
)
"""Reasons for which it may come another time, besides answers of 500 and more."""
_COLUMNS = ("key", "status", "error_message")


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which failed rows are tried again; by default those of reasons that may pass."""

    reasons: tuple[str, ...] = ()
    """Rows of these reasons, in the words of the parquet files."""
    everything: bool = False
    """Every row that failed to download or to be resized."""

    def __post_init__(self) -> None:
        if self.reasons and self.everything:
            raise UsageError("--all takes every reason, --reason some; give one of them")

    def takes(self, status: str, reason: str) -> bool:
        """Whether a row that ended so is tried again."""
        if status not in (FAILED_TO_DOWNLOAD, FAILED_TO_RESIZE):
            return False
        if self.everything or self.reasons:
            return self.everything or reason in self.reasons
        return status == FAILED_TO_DOWNLOAD and may_pass(reason)


class Place(NamedTuple):
    """Where a row's newest status is."""

    shard: int
    row: int
    """Position in the parquet file beside that shard."""
    reason: str


def may_pass(reason: str) -> bool:
    """Whether a download may succeed another time that failed for this reason."""
    return reason in MAY_PASS or reason.startswith("http 5")


def rows_to_try(storage: Storage, manifest: Manifest, choice: Choice) -> Iterator[Place]:
    """The rows that a choice takes, in the order of the shards in which they were tried last.

    Raises:
        FormatError: A parquet file beside a shard is missing or damaged.
    """
    options, total = laion_options(manifest), len(manifest.splits[0].shards)
    base = sum(-(-source["rows"] // options.rows_per_shard) for source in manifest.sources)
    older = _Older(options.rows_per_shard)
    for table in _tables(storage, manifest, range(total - 1, base - 1, -1)):
        try:
            older.see(table.column("key").to_pylist())
        except (ValueError, TypeError, IndexError) as error:
            raise FormatError(
                f"{storage.url}: keys that are no numbers of rows ({error}); run dataprep verify"
            ) from error
    for number, table in zip(range(total), _tables(storage, manifest, range(total)), strict=True):
        statuses, reasons = (table.column(name).to_pylist() for name in ("status", "error_message"))
        passed_over = older.in_first_try(number) if number < base else older.in_retry(total - 1 - number)
        for row, (status, reason) in enumerate(zip(statuses, reasons, strict=True)):
            if choice.takes(status, reason or "") and not (row < len(passed_over) and passed_over[row]):
                yield Place(number, row, reason)


class _Older:
    """Which rows have a newer status elsewhere. Shards of retries are seen from the last one back."""

    def __init__(self, rows_per_shard: int) -> None:
        self._rows = rows_per_shard
        self._digits = math.ceil(math.log10(rows_per_shard))
        self._tried: dict[int, Bits] = {}
        self._retries: list[Bits] = []

    def see(self, keys: Sequence[str]) -> None:
        import numpy as np

        older = np.zeros(len(keys), np.bool_)
        for position, key in enumerate(keys):
            shard, row = int(key[: len(key) - self._digits]), int(key[len(key) - self._digits :] or 0)
            packed = self._tried.setdefault(shard, np.zeros(-(-self._rows // 8), np.uint8))
            byte, bit = row >> 3, np.uint8(1 << (row & 7))
            older[position] = bool(packed[byte] & bit)
            packed[byte] |= bit
        self._retries.append(np.packbits(older, bitorder="little"))

    def in_first_try(self, shard: int) -> Bits:
        return self._unpacked(self._tried.get(shard))

    def in_retry(self, seen: int) -> Bits:
        return self._unpacked(self._retries[seen])

    def _unpacked(self, packed: Bits | None) -> Bits:
        import numpy as np

        return np.zeros(0, np.uint8) if packed is None else np.unpackbits(packed, bitorder="little")


class RowPlaces:
    """Places cut into new shards, as the tables of `rows.parquet`."""

    def __init__(self, rows_per_shard: int) -> None:
        self._rows_per_shard = rows_per_shard
        self.shard_rows: list[int] = []
        """Of the tables that were made."""

    @staticmethod
    def schema() -> pa.Schema:
        import pyarrow as pa

        return pa.schema([("shard", pa.int32()), ("row", pa.int32())])

    def tables(self, places: Iterator[Place]) -> Iterator[pa.Table]:
        """One a new shard."""
        held: list[Place] = []
        for place in places:
            held.append(place)
            if len(held) == self._rows_per_shard:
                yield self._table(held)
                held = []
        if held:
            yield self._table(held)

    def _table(self, held: Sequence[Place]) -> pa.Table:
        from dataprep.columns import table_of

        self.shard_rows.append(len(held))
        return table_of([[place.shard for place in held], [place.row for place in held]], self.schema())


def read_beside(storage: Storage, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """A parquet file beside a shard, or some columns of it. Raises FormatError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        source = storage.url_of(name) if storage.is_local else pa.PythonFile(RangeFile(storage, name), mode="r")
        table = pq.ParquetFile(source, pre_buffer=True).read(columns=columns, use_threads=False)
        missing = set(columns or ()) - set(table.column_names)
        if missing:
            raise ValueError(f"no column {', '.join(sorted(missing))}")
        return table
    except (pa.ArrowException, ValueError, OSError, MemoryError, OverflowError) as error:
        text = " ".join(str(error).split())[:200]
        raise FormatError(f"{storage.url_of(name)}: no readable parquet file ({text}); run dataprep verify") from error


def _tables(storage: Storage, manifest: Manifest, numbers: range) -> Iterator[pa.Table]:
    """Some columns of many, in their order; over a network several are read at a time."""
    read = partial(read_beside, storage, columns=_COLUMNS)
    at_once = max(1, min(storage.reads_in_flight, 16))
    with ThreadPoolExecutor(at_once, thread_name_prefix="dataprep-rows") as threads:
        for start in range(0, len(numbers), at_once):
            some = numbers[start : start + at_once]
            yield from threads.map(read, (files_beside(manifest, number)[0] for number in some))
