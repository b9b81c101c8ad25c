"""The bytes of picked samples: what a loader asks for, and how it is told; `fetch_bucket.py` reads from buckets.

    planner thread     request(pick): in the order of need; waits while the budget is full    -> Ticket
    decoding threads   wait() for the bytes, then done()

On a local disk nothing is read ahead and nothing is held: the system's page cache serves.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dataprep.errors import StorageError, UsageError
from dataprep.storage.base import Storage
from loaders.order import Order, Pick, Piece
from loaders.rows import DEADLINE_S, ShardRows, SplitRows, impatient

if TYPE_CHECKING:
    from loaders.cache import DiskCache

PREFETCH_BYTES = 2**30
HEDGED_SHARE = 1 / 32
"""Of the budget: for what is read twice."""


@dataclass(frozen=True, kw_only=True)
class FetchSettings:
    """How bytes are fetched.

    Raises:
        UsageError: A value is out of its range.
    """

    prefetch_bytes: int = PREFETCH_BYTES
    """Most bytes held or under way."""
    threads: int | None = None
    """Reads under way at once; by default twice what the storage recommends for large ones: pieces of a small data set
    are single images, of which 64 at 50 ms are 1,030 a second, and 128 are 1,700."""
    hedge_after_s: float | None = None
    """A read that takes longer is asked for again; by default 3 times the 95th percentile of the last reads."""
    deadline_s: float = DEADLINE_S
    """Without any answer from the bucket, a read fails within this time."""
    whole_records: bool = False
    """Deliver records, with their images in them."""
    cache: DiskCache | None = None

    def __post_init__(self) -> None:
        for name in ("prefetch_bytes", "threads", "hedge_after_s", "deadline_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"{name} must be above 0, got {value}")


class Record(NamedTuple):
    """What is stored for one sample."""

    record: bytes
    image: bytes


class Ticket(Protocol):
    """One sample that was asked for."""

    rows: ShardRows
    """Of its piece."""
    row: int
    """Of the sample, among them."""

    def wait(self) -> bytes | Record:
        """The image's bytes, or the whole record. Raises DataprepError with the URL of the shard."""

    def done(self) -> None:
        """The bytes are not needed any more; twice is fine."""


COUNTERS = (
    *("requests", "bytes_read", "cache_hits", "hedges", "hedges_won"),
    *("wait_s", "blocked_s", "held_bytes", "most_held_bytes"),
)


class Fetcher(ABC):
    """Gets bytes for one rank's picks. `request` belongs to one thread, tickets to any; not to be forked."""

    def __init__(self, storage: Storage, rows: SplitRows, settings: FetchSettings) -> None:
        self._storage, self._rows, self._settings = storage, rows, settings
        self._known: dict[Piece, tuple[ShardRows, int]] = {}
        """Rows of the pieces of which some picks are still to come, and how many."""
        self._counts = dict.fromkeys(COUNTERS, 0.0)
        self._lock = threading.Lock()

    def shards_needed(self, picks: Iterable[Pick]) -> set[int]:
        """Those of which the index will be looked up when these picks are requested; it can be read before."""
        return {pick.piece.shard for pick in picks if pick.piece not in self._known}

    @abstractmethod
    def request(self, pick: Pick) -> Ticket:
        """Begin to get one sample; waits while the budget is full.

        It waits only for what others are about to free: when no ticket is being worked on, there is room for one more
        piece whatever its size.

        Raises:
            DataprepError: The index cannot be read, or the fetcher was closed.
        """

    def stats(self) -> dict[str, float]:
        """Sums since the start: `requests`, `bytes_read`, `cache_hits`, `hedges`, `hedges_won`, `wait_s` (of tickets),
        `blocked_s` (of requests, by the budget); and `held_bytes` now, `most_held_bytes`."""
        with self._lock:
            return dict(self._counts)

    @abstractmethod
    def close(self) -> None:
        """End the threads; whoever waits gets an error. Returns within about a second, whatever the reads do."""

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _add(self, **counts: float) -> None:
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def _rows_of(self, pick: Pick) -> ShardRows:
        """The rows of the pick's piece; forgotten with the last pick of it."""
        piece = pick.piece
        rows, to_come = self._known.pop(piece, (None, pick.of_piece))
        if rows is None:
            rows = self._rows.rows(piece.shard).part(piece.first, piece.stop)
        if to_come > 1:
            self._known[piece] = rows, to_come - 1
        return rows

    def _range(self, rows: ShardRows, first: int, stop: int) -> tuple[int, int]:
        """Offset and bytes of what is read for some rows."""
        whole = self._settings.whole_records
        offsets, sizes = (rows.record_offset, rows.record_bytes) if whole else (rows.image_offset, rows.image_bytes)
        offset = int(offsets[first:stop].min())
        return offset, int((offsets[first:stop] + sizes[first:stop]).max()) - offset

    def _cut(self, rows: ShardRows, row: int, data: bytes, start: int) -> bytes | Record:
        """One sample from bytes that begin at `start`."""
        at = int(rows.image_offset[row]) - start
        image = data[at : at + int(rows.image_bytes[row])]
        if not self._settings.whole_records:
            return image
        at = int(rows.record_offset[row]) - start
        return Record(data[at : at + int(rows.record_bytes[row])], image)

    def _read_range(self, file: str, offset: int, num_bytes: int) -> bytes:
        try:
            return self._storage.read_range(file, offset, num_bytes)
        except FileNotFoundError as error:
            raise StorageError(
                f"{self._storage.url_of(file)}: missing, the index lists it; "
                'run "dataprep verify" to see what else is, and restore it or build again'
            ) from error


def open_fetcher(storage: Storage, rows: SplitRows, settings: FetchSettings | None = None) -> Fetcher:
    """A fetcher of the data in a storage, started."""
    settings = settings or FetchSettings()
    if storage.is_local:
        return _DiskFetcher(storage, rows, settings)
    from loaders.fetch_bucket import BucketFetcher

    return BucketFetcher(impatient(storage, settings.deadline_s), rows, settings)


def check_budget(order: Order, world_size: int, mean_image_bytes: float, prefetch_bytes: int) -> None:
    """Refuse what cannot be held: every stream of a rank mixes the samples of a window of pieces.

    Args:
        world_size: W; with more processes a rank, of all of them.
        prefetch_bytes: Of one rank or process.

    Raises:
        UsageError: With the arithmetic.
    """
    streams = order.num_streams // math.gcd(order.num_streams, world_size)
    block_bytes = order.samples_per_block * mean_image_bytes
    # The last window of a pass and the first one of the next may overlap.
    needed = min(streams * order.window * block_bytes, 2 * order.num_samples * mean_image_bytes)
    if order.samples_per_block == 1 or needed <= prefetch_bytes * (1 - HEDGED_SHARE):
        return
    ranks = "" if order.num_streams % world_size else f" / {world_size} ranks"
    raise UsageError(
        f"prefetch_bytes {prefetch_bytes:,} must be {math.ceil(needed / (1 - HEDGED_SHARE)):,} or more: "
        f"{order.num_streams} streams{ranks} * window {order.window} * blocks of {block_bytes:,.0f} bytes "
        f"({order.samples_per_block} images) are held at once, and {HEDGED_SHARE:.0%} is for reads asked for twice; "
        "raise it, or lower block_bytes, num_streams or window"
    )


class _DiskFetcher(Fetcher):
    """One pread a sample."""

    def close(self) -> None:
        """Nothing runs."""

    def request(self, pick: Pick) -> Ticket:
        piece = pick.piece
        if piece.stop - piece.first == 1:  # its row alone would take longer to cut out than to look up
            return _DiskTicket(self, self._rows.rows(piece.shard), pick.sample, piece.shard)
        return _DiskTicket(self, self._rows_of(pick), pick.sample - piece.first, piece.shard)

    def read(self, shard: int, rows: ShardRows, row: int) -> bytes | Record:
        started_s = time.monotonic()
        offset, num_bytes = self._range(rows, row, row + 1)
        data = self._read_range(self._rows.file_of(shard, rows, row), offset, num_bytes)
        self._add(requests=1, bytes_read=num_bytes, wait_s=time.monotonic() - started_s)
        return self._cut(rows, row, data, offset)


class _DiskTicket:
    def __init__(self, fetcher: _DiskFetcher, rows: ShardRows, row: int, shard: int) -> None:
        self._fetcher, self._shard = fetcher, shard
        self.rows, self.row = rows, row

    def wait(self) -> bytes | Record:
        return self._fetcher.read(self._shard, self.rows, self.row)

    def done(self) -> None:
        """Nothing is held."""
