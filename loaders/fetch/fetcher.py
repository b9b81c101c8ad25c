"""Fetchers, which read the bytes of picked samples ahead, in the order of a pipeline's need.

    planner thread     request(pick): in the order of need; waits while the budget is used up    -> Ticket
    decoding threads   wait() for the bytes, then done()

`DiskFetcher` reads each sample when a decoding thread waits for it: nothing is read ahead and nothing is held, because
the system has its page cache. `BucketFetcher` makes one ranged read for each piece, many in flight, in bounded memory:

    reading threads    one request a piece, through the local cache if there is one
    hedging threads    repeat a read that takes much longer than usual; the first answer wins

The bytes of a piece are held until all samples that this rank picks from it are done; in an image folder every image is
a piece. Values of columns are read and held by pieces, too, or as `ColumnReads` says. There are two budgets in
`prefetch_bytes`. First reads may fill all of it except HEDGED_SHARE, and `request` waits for room in that part; hedged
reads may use the rest, and are not sent where they would not fit. So a slow read can always be hedged while the planner
has filled its part, and both parts together never exceed what the user allowed.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from dataprep.errors import FormatError, StorageError, UsageError
from dataprep.host.processes import Threads
from dataprep.storage.base import OtherSizeError, Storage
from dataprep.storage.checksums import crc32c_of
from loaders.fetch.columns import ColumnIndex, ValueRange
from loaders.fetch.index import DEADLINE_S, Found, ShardIndex, SplitIndex, with_deadline
from loaders.order import BLOCK_BYTES, HEDGED_SHARE, Pick, Piece

if TYPE_CHECKING:
    from loaders.fetch.cache import DiskCache

PREFETCH_BYTES = 2**30
ColumnReads = Literal["once", "piece", "sample"]
"""Values of columns that are read at once: `once`, blocks of BLOCK_BYTES, which are kept; `piece`, the values of a
piece, kept until its last sample is done; or `sample`, the values of each sample."""


@dataclass(frozen=True, kw_only=True)
class FetchSettings:
    """Settings of a fetcher.

    Raises:
        UsageError: A value is out of range.
    """

    prefetch_bytes: int = PREFETCH_BYTES
    """Maximum bytes held or in flight."""
    threads: int | None = None
    """Reads in flight at once; by default twice what the storage recommends for large reads. Pieces of a small dataset
    are single images: at 50 ms each, 64 in flight deliver 1,030 a second and 128 deliver 1,700."""
    hedge_after_s: float | None = None
    """Seconds after which a read is hedged; by default 3 times the 95th percentile of the last reads."""
    deadline_s: float = DEADLINE_S
    """Seconds without any answer from the bucket after which a read fails."""
    whole_records: bool = False
    """Whether to deliver complete records, with their images in them."""
    cache: DiskCache | None = None
    """Cache on a local disk for what is read from a bucket."""
    column_reads: ColumnReads = "piece"
    """Amount of values of columns that is read at once."""

    def __post_init__(self) -> None:
        for name in ("prefetch_bytes", "threads", "hedge_after_s", "deadline_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"{name} must be above 0, got {value}")


class Record(NamedTuple):
    """Everything that is stored for one sample."""

    record: bytes
    image: bytes


class Ticket(Protocol):
    """One sample that was requested."""

    entries: ShardIndex
    """Index entries of its piece."""
    entry: int
    """Number of the sample among these entries."""

    def wait(self) -> bytes | Record:
        """Return the image's bytes or the complete record. Raises DataprepError with the URL of the shard."""

    def values(self) -> list[Any]:
        """Return the sample's value of each column, as bytes if all values have one size. Raises DataprepError."""

    def done(self) -> None:
        """Release the bytes; a second call does nothing."""


COUNTERS = (
    *("requests", "retries", "bytes_read", "cache_hits", "hedges", "hedges_won"),
    *("wait_s", "blocked_s", "held_bytes", "most_held_bytes"),
)


@dataclass(slots=True)
class _Known:
    """A piece from which samples are still to be picked."""

    entries: ShardIndex
    to_come: int
    """Number of samples still to be picked."""
    images: Any = None
    values: Any = None
    """Reads of the images and values, if they are held."""


class Fetcher(ABC):
    """Reads the bytes of one rank's picks. One thread calls `request`, any thread uses the tickets; never fork it."""

    def __init__(
        self, storage: Storage, index: SplitIndex, settings: FetchSettings, columns: Sequence[ColumnIndex] = ()
    ) -> None:
        self._storage, self._index, self._settings, self._columns = storage, index, settings, columns
        self._at_once = max(1, int(BLOCK_BYTES // max([1.0, *(each.mean_bytes for each in columns)])))
        """Number of samples in a kept block of values."""
        self._once: dict[tuple[int, int], Any] = {}
        """Blocks of values that are kept, by shard and number."""
        self._known: dict[Piece, _Known] = {}
        """Pieces from which samples are still to be picked."""
        self._found: dict[Piece, Found] = {}
        """Entries of pieces that were looked up."""
        self._counts = dict.fromkeys(COUNTERS, 0.0)
        self._lock = threading.Lock()

    def shards_needed(self, picks: Iterable[Pick]) -> set[int]:
        """Return the shards whose index entries these picks need, so that they can be read in advance."""
        return {pick.piece.shard for pick in picks if pick.piece not in self._known}

    def load(self, shard: int) -> None:
        """Read the index entries of a shard now, and the places of its values, so that requests need not wait."""
        self._index.load(shard)
        for column in self._columns:
            column.load(shard)

    def look_up(self, picks: Iterable[Pick]) -> None:
        """Find entries that the next requests need, which takes less time than finding each alone."""
        pieces = list(dict.fromkeys(pick.piece for pick in picks if pick.piece not in self._known))
        self._found = self._index.known(pieces)

    @abstractmethod
    def request(self, pick: Pick) -> Ticket:
        """Request one sample; waits while the budget is used up.

        The call waits only for bytes that other tickets will release: when no consumer waits on a ticket, one more
            piece is admitted, whatever its size.

        Raises:
            DataprepError: The index cannot be read, or the fetcher was closed.
        """

    def stats(self) -> dict[str, float]:
        """Return sums since the start: `requests`, `retries`, `bytes_read`, `cache_hits`, `hedges`, `hedges_won`,
        `wait_s` (of tickets), `blocked_s` (of requests, by the budget); and `held_bytes` now, `most_held_bytes`."""
        with self._lock:
            return dict(self._counts)

    @abstractmethod
    def close(self) -> None:
        """End the threads within about a second, whatever the reads do; tickets that are waited on get an error."""

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, **counts: float) -> None:
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def _known_of(self, pick: Pick) -> _Known:
        """Return the known facts about the pick's piece, and forget them with its last pick."""
        piece = pick.piece
        known = self._known.get(piece)
        if known is None:
            entries, at = self._piece(piece)
            entries = entries.part(at, at + piece.stop - piece.first)
            known = self._known[piece] = _Known(entries, pick.of_piece)
        known.to_come -= 1
        if not known.to_come:
            del self._known[piece]
        return known

    def _piece(self, piece: Piece) -> Found:
        return self._found.pop(piece, None) or self._index.find(piece)

    def _values_of(self, pick: Pick, known: _Known | None) -> tuple[Any, int]:
        """Return the values that are read together with the pick's own, and the number of the pick's among them."""
        reads, sample, (shard, first, *_) = self._settings.column_reads, pick.sample, pick.piece
        if not self._columns:
            return None, 0
        if reads == "piece" and known is not None:
            if known.values is None:
                known.values = self._begin_values(pick.piece, pick.of_piece)
            return known.values, sample - first
        if reads != "once":
            return self._begin_values(Piece(shard, sample, sample + 1, 0), 1), 0
        block, number = divmod(sample, self._at_once)
        found = self._once.get((shard, block))
        if found is None:
            stop = min((block + 1) * self._at_once, self._columns[0].samples(shard))
            found = self._begin_values(Piece(shard, block * self._at_once, stop, 0), math.inf)
            self._once[shard, block] = found
        return found, number

    def _begin_values(self, piece: Piece, users: float) -> Any:
        """Request the values of a piece for a number of picks."""
        raise NotImplementedError

    def _range(self, entries: ShardIndex, first: int, stop: int) -> tuple[int, int]:
        """Return the offset and the number of bytes that hold entries `first` to `stop`."""
        whole = self._settings.whole_records
        offsets, sizes = (
            (entries.record_offset, entries.record_bytes) if whole else (entries.image_offset, entries.image_bytes)
        )
        if stop - first == 1:  # NumPy's calls take longer for one number than everything else here
            return int(offsets[first]), int(sizes[first])
        offset = int(offsets[first:stop].min())
        return offset, int((offsets[first:stop] + sizes[first:stop]).max()) - offset

    def _cut(self, entries: ShardIndex, entry: int, data: bytes, start: int) -> bytes | Record:
        """Return one sample out of bytes that begin at offset `start`."""
        at = int(entries.image_offset[entry]) - start
        image = data[at : at + int(entries.image_bytes[entry])]
        if not self._settings.whole_records:
            return image
        at = int(entries.record_offset[entry]) - start
        return Record(data[at : at + int(entries.record_bytes[entry])], image)

    def _read_range(self, storage: Storage, file: str, offset: int, num_bytes: int, file_bytes: int) -> bytes:
        """Read a part of a stored object, a shard or the file of one image, or all of it.

        Raises:
            FormatError: The file of one image is missing or has another size: a fault of this image.
            StorageError: Any other fault: a shard, or the storage, has changed or cannot be read.
        """
        try:
            return storage.read_range(file, offset, num_bytes, file_bytes=file_bytes)
        except OtherSizeError as error:
            if self._index.one_file_per_image:
                raise
            raise StorageError(str(error)) from error
        except FileNotFoundError as error:
            url = storage.url_of(file)
            # A missing folder was moved away or unmounted.
            is_alone = self._index.one_file_per_image and not (storage.is_local and not Path(url).parent.is_dir())
            raise (FormatError if is_alone else StorageError)(
                f"{url}: missing, but the index lists it; "
                'run "dataprep verify" to see what else is, and restore it or build again'
            ) from error


class DiskFetcher(Fetcher):
    """Reads each sample in the thread that waits for it."""

    def close(self) -> None:
        """Do nothing: no thread runs."""

    def request(self, pick: Pick) -> Ticket:
        piece = pick.piece
        if piece.stop - piece.first == 1:  # copying its one entry would take longer than looking it up
            return _DiskTicket(self, *self._piece(piece), piece.shard, *self._values_of(pick, None))
        known = self._known_of(pick)
        entry = pick.sample - piece.first
        return _DiskTicket(self, known.entries, entry, piece.shard, *self._values_of(pick, known))

    def read(self, shard: int, entries: ShardIndex, entry: int) -> bytes | Record:
        """Read one sample."""
        started_s = time.monotonic()
        offset, num_bytes = self._range(entries, entry, entry + 1)
        file, file_bytes = self._index.file_of(shard, entries, entry), self._index.file_bytes(shard, entries, entry)
        data = self._read_range(self._storage, file, offset, num_bytes, file_bytes)
        self._count(num_bytes, started_s)
        return self._cut(entries, entry, data, offset) if self._settings.whole_records else data

    def read_values(self, piece: Piece) -> list[Any]:
        """Read the values of a piece, of each column."""
        found = []
        for column in self._columns:
            started_s, values = time.monotonic(), column.range_of(piece)
            data = self._read_range(column.storage, values.file, values.offset, values.num_bytes, values.file_bytes)
            self._count(values.num_bytes, started_s)
            found.append(values.opened(data))
        return found

    def _count(self, num_bytes: int, started_s: float) -> None:
        counts, spent_s = self._counts, time.monotonic() - started_s
        with self._lock:
            counts["requests"] += 1
            counts["bytes_read"] += num_bytes
            counts["wait_s"] += spent_s

    def _begin_values(self, piece: Piece, users: float) -> _DiskValues:
        return _DiskValues(self, piece)


class _DiskValues:
    """Values of a piece, which the first thread that needs one reads; their memory is freed with the last ticket."""

    __slots__ = ("_fetcher", "_found", "_lock", "_piece")

    def __init__(self, fetcher: DiskFetcher, piece: Piece) -> None:
        self._fetcher, self._piece, self._lock = fetcher, piece, threading.Lock()
        self._found: list[Any] | None = None

    def of(self, number: int) -> list[Any]:
        """Return the values of one sample."""
        if self._found is None:
            with self._lock:
                self._found = self._found or self._fetcher.read_values(self._piece)
        return [values[number] for values in self._found]


@dataclass(slots=True, eq=False)
class _DiskTicket:
    _fetcher: DiskFetcher
    entries: ShardIndex
    entry: int
    _shard: int
    _values: _DiskValues
    _number: int

    def wait(self) -> bytes | Record:
        return self._fetcher.read(self._shard, self.entries, self.entry)

    def values(self) -> list[Any]:
        return self._values.of(self._number)

    def done(self) -> None:
        """Do nothing: no bytes are held."""


MAX_HEDGE_RATIO = 0.05
"""Maximum number of hedged reads per read, hedged ones included, not counting FREE_HEDGES."""
FREE_HEDGES = 5
"""Number of hedged reads that are always allowed, so that a loader's first reads can be hedged, too."""
HEDGE_THREADS = 8
HEDGE_POLL_S = 0.02
"""Interval of the search for slow reads, seconds."""
MIN_HEDGE_AFTER_S = 0.2
"""Minimum age of a read that is hedged, seconds."""
MIN_KNOWN_READS, MAX_KNOWN_READS = 20, 200
"""Minimum and maximum number of latest reads from which the usual time of a read is estimated."""
FIRST_HEDGE_AFTER_S = 1.0
"""Age at which a read is hedged while the usual time of a read is not known, seconds."""
IDLE_S = 0.25
"""If no consumer waits on a ticket for this long, one more piece is admitted, so that the consumer cannot deadlock."""
CLOSE_S = 1.0
"""Seconds that `close` waits for reads in flight; remaining ones are abandoned and fail on their own."""


@dataclass(slots=True, eq=False)
class _Range:
    """Bytes of one stored object, read for one or more tickets."""

    storage: Storage
    file: str
    digest: str
    """Identity of the data: another digest means other bytes at the same offsets."""
    offset: int
    num_bytes: int
    file_bytes: int
    """Size of the object according to the index."""
    users: float
    """Number of tickets that are not done, including those still to be requested."""
    entries: ShardIndex | None = None
    images: range = range(0)
    """Numbers of the entries whose images are in the bytes."""
    values: ValueRange | None = None
    """Places of values in the bytes, if they hold values."""
    data: Any = None
    """The bytes, or the values in them."""
    error: Exception | None = None
    settled: threading.Event = field(default_factory=threading.Event)
    """Set when there is data or an error."""
    reads: int = 1
    """Reads of these bytes that are in flight or queued: the first one and its hedge."""
    hedged: bool = False
    started_s: float = 0.0

    @classmethod
    def of_values(cls, values: ValueRange, users: float) -> _Range:
        column, place = values.column, (values.offset, values.num_bytes, values.file_bytes)
        return cls(column.storage, values.file, column.digest, *place, users, values=values)


class BucketFetcher(Fetcher):
    """Reads ahead within the budget; each range counts from its request to its last use."""

    def __init__(
        self, storage: Storage, index: SplitIndex, settings: FetchSettings, columns: Sequence[ColumnIndex] = ()
    ) -> None:
        from dataprep.storage import gcs_client  # google-cloud-storage takes 0.3 s to import

        super().__init__(storage, index, settings, columns)
        self._unsettled: set[_Range] = set()
        """Ranges without data or error."""
        self._running: dict[_Range, None] = {}
        """Ranges whose first read is in flight, in the order of their starts."""
        self._outstanding = 0
        """Number of tickets that are not done."""
        self._waited_on = 0
        """Number of tickets that are not done and have been waited on."""
        self._room = threading.Condition(self._lock)
        self._closed = threading.Event()
        self._read_times_s: deque[float] = deque(maxlen=MAX_KNOWN_READS)
        self._retries = gcs_client.retries
        self._readers = Threads(settings.threads or 2 * storage.reads_in_flight, "loader-read")
        self._hedgers = Threads(HEDGE_THREADS, "loader-hedge")
        self._watch = threading.Thread(target=self._hedge_slow_reads, name="loader-hedge-watch", daemon=True)
        self._watch.start()

    def request(self, pick: Pick) -> Ticket:
        known, entry = self._known_of(pick), pick.sample - pick.piece.first
        if self._index.one_file_per_image:
            found = self._begin_images(pick, known.entries, entry, entry + 1, users=1)
        else:
            if known.images is None:
                known.images = self._begin_images(pick, known.entries, 0, len(known.entries), users=pick.of_piece)
            found = known.images
        values, number = self._values_of(pick, known)
        with self._lock:
            self._outstanding += 1
        return _RangeTicket(self, found, known.entries, entry, values or [], number)

    def take(self, ticket: _RangeTicket) -> bytes | Record:
        """Wait for the bytes of a ticket."""
        with self._lock:
            self._waited_on += not ticket.is_waited_on
            ticket.is_waited_on = True
        data = self.data_of(ticket.range)
        return self._cut(ticket.entries, ticket.entry, data, ticket.range.offset)

    def data_of(self, found: _Range) -> Any:
        """Wait for the bytes of a range, or for the values in them."""
        if not found.settled.is_set():
            started_s = time.monotonic()
            found.settled.wait()
            self._add(wait_s=time.monotonic() - started_s)
        if found.data is None:
            raise found.error or UsageError("wait() was called after done() on a ticket; call wait() first")
        return found.data

    def give_back(self, ticket: _RangeTicket) -> None:
        """Count a ticket as done, and free its bytes if no other ticket uses them."""
        with self._lock:
            if ticket.is_done:
                return
            ticket.is_done = True
            self._outstanding -= 1
            self._waited_on -= ticket.is_waited_on
            for found in (ticket.range, *ticket.value_ranges):
                found.users -= 1
                if not found.users and found.data is not None:
                    found.data = None
                    self._hold(-found.num_bytes)
            self._room.notify_all()

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._room.notify_all()
            for waited_for in self._unsettled:
                waited_for.error = StorageError(
                    f"{waited_for.storage.url_of(waited_for.file)}: not read, the loader was closed"
                )
                waited_for.settled.set()
            self._unsettled.clear()
        deadline_s = time.monotonic() + CLOSE_S
        self._watch.join(CLOSE_S)
        for threads in (self._readers, self._hedgers):
            threads.close(deadline_s)

    def _begin_images(self, pick: Pick, entries: ShardIndex, first: int, stop: int, *, users: int) -> _Range:
        offset, num_bytes = self._range(entries, first, stop)
        file = self._index.file_of(pick.piece.shard, entries, first)
        size, images = self._index.file_bytes(pick.piece.shard, entries, first), range(first, stop)
        found = _Range(self._storage, file, self._index.digest, offset, num_bytes, size, users, entries, images)
        return self._begin(found)

    def _begin_values(self, piece: Piece, users: float) -> list[_Range]:
        found = [column.range_of(piece) for column in self._columns]
        return [self._begin(_Range.of_values(each, users)) for each in found]

    def _begin(self, begun: _Range) -> _Range:
        """Start the read of a range, once there is room for its bytes."""
        num_bytes = begun.num_bytes
        with self._lock:
            started_s = time.monotonic()
            self._wait_for_room(num_bytes)
            self._counts["blocked_s"] += time.monotonic() - started_s
            if self._closed.is_set():
                raise StorageError(f"{begun.storage.url_of(begun.file)}: not read, the loader was closed")
            self._hold(num_bytes)
            self._unsettled.add(begun)
        self._readers.submit(partial(self._read_first, begun))
        return begun

    def _wait_for_room(self, num_bytes: int) -> None:
        """Wait until the first reads leave room for these bytes, or until nothing would ever free any.

        The caller holds the lock. Bytes are freed only when tickets are done. If no ticket was waited on for IDLE_S,
        the decoding threads may all need tickets that the planner has yet to request: then this returns, and one piece
        more than the budget is held.
        """
        most_bytes = self._settings.prefetch_bytes * (1 - HEDGED_SHARE) - num_bytes
        while self._outstanding and self._counts["held_bytes"] > most_bytes and not self._closed.is_set():
            was_idle = not self._waited_on
            is_told = self._room.wait(IDLE_S)
            if was_idle and not is_told and not self._waited_on:
                return

    def _read_first(self, wanted: _Range) -> None:
        """Make the first read of a range, in a reading thread."""
        with self._lock:
            wanted.started_s = time.monotonic()
            self._running[wanted] = None
        self._read(wanted)

    def _read(self, wanted: _Range, *, is_hedge: bool = False) -> None:
        if self._closed.is_set():
            return
        try:
            result: Any = self._load(wanted)
            if wanted.values is not None:
                result = wanted.values.opened(result)
        except Exception as error:  # noqa: BLE001  raised where the ticket is waited for
            result = error
        self._settle(wanted, result, is_hedge=is_hedge)

    def _load(self, wanted: _Range) -> bytes:
        """Return the bytes of a range from the cache or the bucket."""
        cache = self._settings.cache
        # The URL is part of the key, because a stranger's manifest may claim the digests of any other dataset.
        url = wanted.storage.url_of(wanted.file)
        key = f"{url} {wanted.digest} {wanted.offset} {wanted.num_bytes}"
        data = cache.get(key) if cache is not None else None
        if data is not None:
            self._add(cache_hits=1)
            return data
        started_s = time.monotonic()
        self._add(requests=1)
        retries_before = self._retries.count
        try:
            data = self._read_range(wanted.storage, wanted.file, wanted.offset, wanted.num_bytes, wanted.file_bytes)
        finally:
            self._add(retries=self._retries.count - retries_before)
        with self._lock:
            self._counts["bytes_read"] += wanted.num_bytes
            self._read_times_s.append(time.monotonic() - started_s)
        if cache is not None and self._is_as_indexed(wanted, data):
            cache.put(key, data)  # here, while the bytes still count as in flight
        return data

    def _is_as_indexed(self, wanted: _Range, data: bytes) -> bool:
        """Whether all images have the checksums of the index, if any; a cache would keep damage forever."""
        entries = wanted.entries
        if entries is None or entries.image_crc32c is None:
            return True
        starts = entries.image_offset - wanted.offset
        stops = starts + entries.image_bytes
        return all(crc32c_of(data[starts[at] : stops[at]]) == entries.image_crc32c[at] for at in wanted.images)

    def _settle(self, wanted: _Range, result: Any, *, is_hedge: bool) -> None:
        """Keep the first read that succeeds, or the last error if all fail.

        Release the memory reserved for the others.
        """
        with self._lock:
            self._running.pop(wanted, None)
            wanted.reads -= 1
            is_data, is_kept = not isinstance(result, Exception), False
            if wanted in self._unsettled and (is_data or not wanted.reads):
                self._unsettled.remove(wanted)
                self._counts["hedges_won"] += is_hedge and is_data
                if isinstance(result, Exception):
                    wanted.error = result
                elif wanted.users:
                    wanted.data, is_kept = result, True
                wanted.settled.set()
            if not is_kept:
                self._hold(-wanted.num_bytes)
                self._room.notify_all()

    def _hedge_slow_reads(self) -> None:
        """Look for slow reads until the fetcher is closed, and read them a second time."""
        while not self._closed.wait(HEDGE_POLL_S):
            with self._lock:
                slow = self._slow_reads()
            for wanted in slow:
                self._hedgers.submit(partial(self._read, wanted, is_hedge=True))

    def _slow_reads(self) -> list[_Range]:
        """Return the reads to hedge now, counted as hedges and in the budget."""
        slow: list[_Range] = []
        after_s, now_s = self._hedge_after_s(), time.monotonic()
        for wanted in self._running:
            if now_s - wanted.started_s < after_s:
                break
            allowed = FREE_HEDGES + MAX_HEDGE_RATIO * self._counts["requests"]
            fits = self._counts["held_bytes"] + wanted.num_bytes <= self._settings.prefetch_bytes
            if not wanted.hedged and fits and self._counts["hedges"] + 1 <= allowed:
                wanted.hedged = True
                wanted.reads += 1
                self._counts["hedges"] += 1
                self._hold(wanted.num_bytes)
                slow.append(wanted)
        return slow

    def _hedge_after_s(self) -> float:
        """Return the seconds after which a read counts as slow."""
        if self._settings.hedge_after_s is not None:
            return self._settings.hedge_after_s
        if len(self._read_times_s) < MIN_KNOWN_READS:
            return FIRST_HEDGE_AFTER_S
        usual_s = sorted(self._read_times_s)[int(0.95 * len(self._read_times_s))]
        return max(MIN_HEDGE_AFTER_S, 3 * usual_s)

    def _hold(self, num_bytes: int) -> None:
        """Count bytes as held or in flight; the caller holds the lock."""
        counts = self._counts
        counts["held_bytes"] += num_bytes
        counts["most_held_bytes"] = max(counts["most_held_bytes"], counts["held_bytes"])


@dataclass(slots=True, eq=False)
class _RangeTicket:
    _fetcher: BucketFetcher
    range: _Range
    entries: ShardIndex
    entry: int
    value_ranges: list[_Range]
    _number: int
    is_waited_on: bool = False
    is_done: bool = False

    def wait(self) -> bytes | Record:
        return self._fetcher.take(self)

    def values(self) -> list[Any]:
        return [self._fetcher.data_of(each)[self._number] for each in self.value_ranges]

    def done(self) -> None:
        self._fetcher.give_back(self)


def open_fetcher(
    storage: Storage, index: SplitIndex, settings: FetchSettings | None = None, columns: Sequence[ColumnIndex] = ()
) -> Fetcher:
    """Start a fetcher for the samples in a storage, and their values of columns."""
    settings = settings or FetchSettings()
    if storage.is_local and all(column.storage.is_local for column in columns):
        return DiskFetcher(storage, index, settings, columns)
    return BucketFetcher(with_deadline(storage, settings.deadline_s), index, settings, columns)
