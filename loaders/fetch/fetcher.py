"""Fetchers, which read the bytes of picked samples ahead, in the order in which a pipeline needs them.

    planner thread     request(pick): in the order of need; waits while the budget is used up    -> Ticket
    decoding threads   wait() for the bytes, then done()

`DiskFetcher` reads each sample when a decoding thread waits for it: nothing is read ahead and nothing is held, because
the system's page cache serves. `BucketFetcher` makes one ranged read for each piece, many in flight, in bounded memory:

    reading threads    one request a piece, through the local cache if there is one
    hedging threads    repeat a read that takes much longer than usual; the first answer wins

The bytes of a piece are held until all samples that this rank picks from it are done; in an image folder every image is
a piece. There are two budgets in `prefetch_bytes`. First reads may fill all of it except HEDGED_SHARE, and `request`
waits for room in that part; hedged reads may use the rest, and are not sent where they would not fit. So a slow read
can always be hedged while the planner has filled its part, and both parts together never exceed what the user allowed.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dataprep.errors import FormatError, StorageError, UsageError
from dataprep.host.processes import Threads
from dataprep.storage.base import OtherSizeError, Storage
from dataprep.storage.checksums import crc32c_of
from loaders.fetch.index import DEADLINE_S, Found, ShardIndex, SplitIndex, with_deadline
from loaders.order import HEDGED_SHARE, Pick, Piece

if TYPE_CHECKING:
    from loaders.fetch.cache import DiskCache

PREFETCH_BYTES = 2**30


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

    def done(self) -> None:
        """Release the bytes; a second call does nothing."""


COUNTERS = (
    *("requests", "retries", "bytes_read", "cache_hits", "hedges", "hedges_won"),
    *("wait_s", "blocked_s", "held_bytes", "most_held_bytes"),
)


class Fetcher(ABC):
    """Reads the bytes of one rank's picks. One thread calls `request`, any thread uses the tickets; never fork it."""

    def __init__(self, storage: Storage, index: SplitIndex, settings: FetchSettings) -> None:
        self._storage, self._index, self._settings = storage, index, settings
        self._known: dict[Piece, tuple[ShardIndex, int]] = {}
        """Entries of the pieces with picks still to come, and the number of these picks."""
        self._found: dict[Piece, Found] = {}
        """Entries of pieces that were looked up."""
        self._counts = dict.fromkeys(COUNTERS, 0.0)
        self._lock = threading.Lock()

    def shards_needed(self, picks: Iterable[Pick]) -> set[int]:
        """Return the shards whose index entries these picks will need, so that they can be read beforehand."""
        return {pick.piece.shard for pick in picks if pick.piece not in self._known}

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _add(self, **counts: float) -> None:
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def _entries_of(self, pick: Pick) -> ShardIndex:
        """Return the entries of the pick's piece, and forget them with its last pick."""
        piece = pick.piece
        entries, to_come = self._known.pop(piece, (None, pick.of_piece))
        if entries is None:
            entries, at = self._piece(piece)
            entries = entries.part(at, at + piece.stop - piece.first)
        if to_come > 1:
            self._known[piece] = entries, to_come - 1
        return entries

    def _piece(self, piece: Piece) -> Found:
        return self._found.pop(piece, None) or self._index.find(piece)

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

    def _read_range(self, file: str, offset: int, num_bytes: int, file_bytes: int) -> bytes:
        """Read a part of a file, or all of it.

        Args:
            file: The stored object: a shard, or the file of one image.
            offset: First byte.
            num_bytes: Number of bytes.
            file_bytes: Size of the object according to the index.

        Raises:
            FormatError: The file of one image is missing or has another size: a fault of this image.
            StorageError: Any other fault: a shard, or the storage, has changed or cannot be read.
        """
        try:
            return self._storage.read_range(file, offset, num_bytes, file_bytes=file_bytes)
        except OtherSizeError as error:
            if self._index.one_file_per_image:
                raise
            raise StorageError(str(error)) from error
        except FileNotFoundError as error:
            url = self._storage.url_of(file)
            # A folder that is gone was moved away or unmounted.
            is_alone = self._index.one_file_per_image and not (self._storage.is_local and not Path(url).parent.is_dir())
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
            return _DiskTicket(self, *self._piece(piece), piece.shard)
        return _DiskTicket(self, self._entries_of(pick), pick.sample - piece.first, piece.shard)

    def read(self, shard: int, entries: ShardIndex, entry: int) -> bytes | Record:
        """Read one sample."""
        started_s = time.monotonic()
        offset, num_bytes = self._range(entries, entry, entry + 1)
        file, file_bytes = self._index.file_of(shard, entries, entry), self._index.file_bytes(shard, entries, entry)
        data = self._read_range(file, offset, num_bytes, file_bytes)
        counts, spent_s = self._counts, time.monotonic() - started_s
        with self._lock:
            counts["requests"] += 1
            counts["bytes_read"] += num_bytes
            counts["wait_s"] += spent_s
        return self._cut(entries, entry, data, offset) if self._settings.whole_records else data


class _DiskTicket:
    def __init__(self, fetcher: DiskFetcher, entries: ShardIndex, entry: int, shard: int) -> None:
        self._fetcher, self._shard = fetcher, shard
        self.entries, self.entry = entries, entry

    def wait(self) -> bytes | Record:
        return self._fetcher.read(self._shard, self.entries, self.entry)

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
"""Seconds that `close` waits for reads in flight; later ones are left behind and fail on their own."""


@dataclass(slots=True, eq=False)
class _Range:
    """Bytes of one stored object, read for one or more tickets."""

    file: str
    entries: ShardIndex
    images: range
    """Numbers of the entries in the bytes."""
    offset: int
    num_bytes: int
    file_bytes: int
    """Size of the object according to the index."""
    users: int
    """Number of tickets that are not done, including those still to be requested."""
    data: bytes | None = None
    error: Exception | None = None
    settled: threading.Event = field(default_factory=threading.Event)
    """Set when there is data or an error."""
    reads: int = 1
    """Reads of these bytes that are in flight or queued: the first one and its hedge."""
    hedged: bool = False
    started_s: float = 0.0


class BucketFetcher(Fetcher):
    """Reads ahead within the budget; each range counts from its request to its last use."""

    def __init__(self, storage: Storage, index: SplitIndex, settings: FetchSettings) -> None:
        from dataprep.storage import gcs_client  # google-cloud-storage takes 0.3 s to import

        super().__init__(storage, index, settings)
        self._ranges: dict[Piece, _Range] = {}
        """Ranges of the pieces with picks still to come."""
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
        entries, entry = self._entries_of(pick), pick.sample - pick.piece.first
        if self._index.one_file_per_image:
            found = self._begin(pick, entries, entry, entry + 1, users=1)
        else:
            known = self._ranges.get(pick.piece)
            found = known or self._begin(pick, entries, 0, len(entries), users=pick.of_piece)
            if pick.piece in self._known:
                self._ranges[pick.piece] = found
            else:
                self._ranges.pop(pick.piece, None)
        with self._lock:
            self._outstanding += 1
        return _RangeTicket(self, found, entries, entry)

    def take(self, ticket: _RangeTicket) -> bytes | Record:
        """Wait for the bytes of a ticket."""
        found = ticket.range
        with self._lock:
            self._waited_on += not ticket.is_waited_on
            ticket.is_waited_on = True
        if not found.settled.is_set():
            started_s = time.monotonic()
            found.settled.wait()
            self._add(wait_s=time.monotonic() - started_s)
        if found.data is None:
            raise found.error or UsageError("wait() was called after done() on a ticket; call wait() first")
        return self._cut(ticket.entries, ticket.entry, found.data, found.offset)

    def give_back(self, ticket: _RangeTicket) -> None:
        """Count a ticket as done, and free its bytes if no other ticket uses them."""
        found = ticket.range
        with self._lock:
            if ticket.is_done:
                return
            ticket.is_done = True
            self._outstanding -= 1
            self._waited_on -= ticket.is_waited_on
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
                    f"{self._storage.url_of(waited_for.file)}: not read, the loader was closed"
                )
                waited_for.settled.set()
            self._unsettled.clear()
        deadline_s = time.monotonic() + CLOSE_S
        self._watch.join(CLOSE_S)
        for threads in (self._readers, self._hedgers):
            threads.close(deadline_s)

    def _begin(self, pick: Pick, entries: ShardIndex, first: int, stop: int, *, users: int) -> _Range:
        """Start the read of entries `first` to `stop`, once there is room for their bytes."""
        offset, num_bytes = self._range(entries, first, stop)
        file = self._index.file_of(pick.piece.shard, entries, first)
        file_bytes = self._index.file_bytes(pick.piece.shard, entries, first)
        begun = _Range(file, entries, range(first, stop), offset, num_bytes, file_bytes, users)
        with self._lock:
            started_s = time.monotonic()
            self._wait_for_room(num_bytes)
            self._counts["blocked_s"] += time.monotonic() - started_s
            if self._closed.is_set():
                raise StorageError(f"{self._storage.url_of(file)}: not read, the loader was closed")
            self._hold(num_bytes)
            self._unsettled.add(begun)
        self._readers.submit(partial(self._read_first, begun))
        return begun

    def _wait_for_room(self, num_bytes: int) -> None:
        """Wait until the first reads leave room for these bytes, or until nothing would ever free any.

        The caller holds the lock. Bytes are freed only when tickets are done. If no ticket was waited on for
        IDLE_S, the decoding threads may all need tickets that the planner is still to request: then this returns, and
        one piece more than the budget is held.
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
            result: bytes | Exception = self._load(wanted)
        except Exception as error:  # noqa: BLE001  raised where the ticket is waited for
            result = error
        self._settle(wanted, result, is_hedge=is_hedge)

    def _load(self, wanted: _Range) -> bytes:
        """Return the bytes of a range from the cache or the bucket."""
        cache = self._settings.cache
        # The URL is part of the key, because a stranger's manifest may claim the digests of any other dataset.
        url = self._storage.url_of(wanted.file)
        key = f"{url} {self._index.digest} {wanted.offset} {wanted.num_bytes}"
        data = cache.get(key) if cache is not None else None
        if data is not None:
            self._add(cache_hits=1)
            return data
        started_s = time.monotonic()
        self._add(requests=1)
        retries_before = self._retries.count
        try:
            data = self._read_range(wanted.file, wanted.offset, wanted.num_bytes, wanted.file_bytes)
        finally:
            self._add(retries=self._retries.count - retries_before)
        with self._lock:
            self._counts["bytes_read"] += wanted.num_bytes
            self._read_times_s.append(time.monotonic() - started_s)
        if cache is not None and self._is_as_indexed(wanted, data):
            cache.put(key, data)  # here, while the bytes still count as in flight
        return data

    def _is_as_indexed(self, wanted: _Range, data: bytes) -> bool:
        """Whether all images have the checksums of the index, if it has any; otherwise the cache would keep damage
        forever."""
        entries = wanted.entries
        if entries.image_crc32c is None:
            return True
        starts = entries.image_offset - wanted.offset
        stops = starts + entries.image_bytes
        return all(crc32c_of(data[starts[at] : stops[at]]) == entries.image_crc32c[at] for at in wanted.images)

    def _settle(self, wanted: _Range, result: bytes | Exception, *, is_hedge: bool) -> None:
        """Keep the first read that succeeds, or the last error if all fail.

        Release the memory reserved for the others.
        """
        with self._lock:
            self._running.pop(wanted, None)
            wanted.reads -= 1
            is_data, is_kept = isinstance(result, bytes), False
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


class _RangeTicket:
    def __init__(self, fetcher: BucketFetcher, found: _Range, entries: ShardIndex, entry: int) -> None:
        self._fetcher, self.range = fetcher, found
        self.entries, self.entry = entries, entry
        self.is_waited_on = self.is_done = False

    def wait(self) -> bytes | Record:
        return self._fetcher.take(self)

    def done(self) -> None:
        self._fetcher.give_back(self)


def open_fetcher(storage: Storage, index: SplitIndex, settings: FetchSettings | None = None) -> Fetcher:
    """Start a fetcher for the samples in a storage."""
    settings = settings or FetchSettings()
    if storage.is_local:
        return DiskFetcher(storage, index, settings)

    return BucketFetcher(with_deadline(storage, settings.deadline_s), index, settings)
