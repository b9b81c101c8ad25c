"""Pieces from a bucket: one ranged read each, many under way, in bounded memory.

    request(pick)      waits while the budget is full
    reading threads    one request a piece, through the local cache if there is one
    hedging threads    ask again for what takes much longer than usual; the first answer wins

A piece's bytes are held until all samples that this rank picks of it are done; of an image folder every image is a
piece of its own.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

from dataprep.errors import StorageError, UsageError
from dataprep.storage.base import Storage
from loaders.fetch import HEDGED_SHARE, Fetcher, FetchSettings, Record, Ticket
from loaders.order import Pick, Piece
from loaders.rows import ShardRows, SplitRows

MAX_HEDGE_RATIO = 0.05
"""Of the reads, after the first few."""
FREE_HEDGES = 5
HEDGE_THREADS = 8
HEDGE_POLL_S = 0.02
MIN_HEDGE_AFTER_S = 0.2
# The usual time of a read is known from so many of the last ones.
MIN_KNOWN_READS, MAX_KNOWN_READS = 20, 200
FIRST_HEDGE_AFTER_S = 1.0
IDLE_S = 0.25
"""Nobody works on a ticket for so long: then nobody will, before there are more of them."""
CLOSE_S = 1.0
"""Reads that have not ended so long after `close` are left behind; they fail on their own, and nobody waits."""


@dataclass(slots=True, eq=False)
class _Range:
    """Bytes of one object, for some tickets."""

    file: str
    offset: int
    num_bytes: int
    users: int
    """Tickets that are not done, those still to be requested included."""
    data: bytes | None = None
    error: Exception | None = None
    settled: threading.Event = field(default_factory=threading.Event)
    """It has data or an error."""
    reads: int = 1
    """Under way or waiting to be."""
    hedged: bool = False
    started_s: float = 0.0


class BucketFetcher(Fetcher):
    """Ranges under way and held, each counted from its request to its last use, within the budget."""

    def __init__(self, storage: Storage, rows: SplitRows, settings: FetchSettings) -> None:
        super().__init__(storage, rows, settings)
        self._ranges: dict[Piece, _Range] = {}
        """Of pieces of which some picks are still to come."""
        self._unsettled: set[_Range] = set()
        self._running: dict[_Range, None] = {}
        """Read for the first time, in the order of their starts."""
        self._outstanding = 0
        """Tickets that are not done."""
        self._worked_on = 0
        """Those of them that were waited for."""
        self._room = threading.Condition(self._lock)
        self._closed = threading.Event()
        self._read_times_s: deque[float] = deque(maxlen=MAX_KNOWN_READS)
        self._readers = _Threads(settings.threads or 2 * storage.reads_in_flight, "loader-read")
        self._hedgers = _Threads(HEDGE_THREADS, "loader-hedge")
        self._watch = threading.Thread(target=self._hedge_slow_reads, name="loader-hedge-watch", daemon=True)
        self._watch.start()

    def request(self, pick: Pick) -> Ticket:
        rows, row = self._rows_of(pick), pick.sample - pick.piece.first
        if self._rows.is_folder:
            found = self._begin(pick, rows, row, row + 1, users=1)
        else:
            known = self._ranges.get(pick.piece)
            found = known or self._begin(pick, rows, 0, len(rows), users=pick.of_piece)
            if pick.piece in self._known:
                self._ranges[pick.piece] = found
            else:
                self._ranges.pop(pick.piece, None)
        with self._lock:
            self._outstanding += 1
        return _RangeTicket(self, found, rows, row)

    def take(self, ticket: _RangeTicket) -> bytes | Record:
        """What a ticket waits for."""
        found = ticket.range
        with self._lock:
            self._worked_on += not ticket.is_worked_on
            ticket.is_worked_on = True
        if not found.settled.is_set():
            started_s = time.monotonic()
            found.settled.wait()
            self._add(wait_s=time.monotonic() - started_s)
        if found.data is None:
            raise found.error or UsageError("a ticket was waited for after it was done; wait first")
        return self._cut(ticket.rows, ticket.row, found.data, found.offset)

    def give_back(self, ticket: _RangeTicket) -> None:
        """A ticket is done."""
        found = ticket.range
        with self._lock:
            if ticket.is_done:
                return
            ticket.is_done = True
            self._outstanding -= 1
            self._worked_on -= ticket.is_worked_on
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

    def _begin(self, pick: Pick, rows: ShardRows, first: int, stop: int, *, users: int) -> _Range:
        """Start reading some rows, once there is room for them."""
        offset, num_bytes = self._range(rows, first, stop)
        file = self._rows.file_of(pick.piece.shard, rows, first)
        begun = _Range(file, offset, num_bytes, users)
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
        """Under the lock."""
        most_bytes = self._settings.prefetch_bytes * (1 - HEDGED_SHARE) - num_bytes
        while self._outstanding and self._counts["held_bytes"] > most_bytes and not self._closed.is_set():
            was_idle = not self._worked_on
            is_told = self._room.wait(IDLE_S)
            if was_idle and not is_told and not self._worked_on:
                return

    def _read_first(self, wanted: _Range) -> None:
        """In a reading thread."""
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
        """From the cache or the bucket."""
        cache = self._settings.cache
        key = f"{self._rows.digest} {wanted.file} {wanted.offset} {wanted.num_bytes}"
        data = cache.get(key) if cache is not None else None
        if data is not None:
            self._add(cache_hits=1)
            return data
        started_s = time.monotonic()
        self._add(requests=1)
        data = self._read_range(wanted.file, wanted.offset, wanted.num_bytes)
        with self._lock:
            self._counts["bytes_read"] += wanted.num_bytes
            self._read_times_s.append(time.monotonic() - started_s)
        if cache is not None:
            cache.put(key, data)  # while the bytes still count as under way
        return data

    def _settle(self, wanted: _Range, result: bytes | Exception, *, is_hedge: bool) -> None:
        """Keep the result of a read if it is the first, or the error of the last; else its bytes are free again."""
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
        while not self._closed.wait(HEDGE_POLL_S):
            with self._lock:
                slow = self._slow_reads()
            for wanted in slow:
                self._hedgers.submit(partial(self._read, wanted, is_hedge=True))

    def _slow_reads(self) -> list[_Range]:
        """Reads to ask for again, counted as such and for the budget."""
        slow: list[_Range] = []
        after_s, now_s = self._hedge_after_s(), time.monotonic()
        for wanted in self._running:
            if now_s - wanted.started_s < after_s:
                break
            most = FREE_HEDGES + MAX_HEDGE_RATIO * self._counts["requests"]
            fits = self._counts["held_bytes"] + wanted.num_bytes <= self._settings.prefetch_bytes
            if not wanted.hedged and fits and self._counts["hedges"] < most:
                wanted.hedged = True
                wanted.reads += 1
                self._counts["hedges"] += 1
                self._hold(wanted.num_bytes)
                slow.append(wanted)
        return slow

    def _hedge_after_s(self) -> float:
        if self._settings.hedge_after_s is not None:
            return self._settings.hedge_after_s
        if len(self._read_times_s) < MIN_KNOWN_READS:
            return FIRST_HEDGE_AFTER_S
        usual_s = sorted(self._read_times_s)[int(0.95 * len(self._read_times_s))]
        return max(MIN_HEDGE_AFTER_S, 3 * usual_s)

    def _hold(self, num_bytes: int) -> None:
        """Count bytes as held or under way; under the lock."""
        counts = self._counts
        counts["held_bytes"] += num_bytes
        counts["most_held_bytes"] = max(counts["most_held_bytes"], counts["held_bytes"])


class _RangeTicket:
    def __init__(self, fetcher: BucketFetcher, found: _Range, rows: ShardRows, row: int) -> None:
        self._fetcher, self.range = fetcher, found
        self.rows, self.row = rows, row
        self.is_worked_on = self.is_done = False

    def wait(self) -> bytes | Record:
        return self._fetcher.take(self)

    def done(self) -> None:
        self._fetcher.give_back(self)


class _Threads:
    """Threads that do what is submitted. Daemons, unlike those of an executor: a read that hangs keeps no process."""

    def __init__(self, count: int, name: str) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, task: Callable[[], None]) -> None:
        self._tasks.put(task)

    def close(self, deadline_s: float) -> None:
        """Tell the threads to end, and wait for them until then."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
