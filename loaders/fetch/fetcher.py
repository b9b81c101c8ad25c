"""Protocol of fetchers, which read the bytes of picked samples ahead, in the order in which a pipeline needs them.

    planner thread     request(pick): in the order of need; waits while the budget is used up    -> Ticket
    decoding threads   wait() for the bytes, then done()

`disk.py` and `bucket.py` are the two fetchers, `open.py` chooses one.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dataprep.errors import FormatError, StorageError, UsageError
from dataprep.storage.base import OtherSizeError
from loaders.fetch.index import DEADLINE_S, ShardIndex, SplitIndex
from loaders.order import Pick, Piece

if TYPE_CHECKING:
    from dataprep.storage.base import Storage
    from loaders.fetch.cache import DiskCache

PREFETCH_BYTES = 2**30


@dataclass(frozen=True, kw_only=True)
class FetchSettings:
    """How bytes are fetched.

    Raises:
        UsageError: A value is out of its range.
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
    """Whether to deliver whole records, with their images in them."""
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
    """Number of the sample among them."""

    def wait(self) -> bytes | Record:
        """Return the image's bytes or the whole record. Raises DataprepError with the URL of the shard."""

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
        """Entries of the pieces of which some picks are still to come, and the number of those picks."""
        self._counts = dict.fromkeys(COUNTERS, 0.0)
        self._lock = threading.Lock()

    def shards_needed(self, picks: Iterable[Pick]) -> set[int]:
        """Return the shards whose index entries these picks will need, so that they can be read beforehand."""
        return {pick.piece.shard for pick in picks if pick.piece not in self._known}

    @abstractmethod
    def request(self, pick: Pick) -> Ticket:
        """Begin to get one sample; waits while the budget is used up.

        It waits only for bytes that other tickets are about to give back: when no ticket is waited on, one more piece
        is admitted whatever its size.

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
            entries = self._index.shard(piece.shard).part(piece.first, piece.stop)
        if to_come > 1:
            self._known[piece] = entries, to_come - 1
        return entries

    def _range(self, entries: ShardIndex, first: int, stop: int) -> tuple[int, int]:
        """Return the offset and the number of bytes that hold entries `first` to `stop`."""
        whole = self._settings.whole_records
        offsets, sizes = (
            (entries.record_offset, entries.record_bytes) if whole else (entries.image_offset, entries.image_bytes)
        )
        if stop - first == 1:  # NumPy's calls take longer for one number than all else
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
            file_bytes: Size of the object as the index says it.

        Raises:
            FormatError: The file of one image is missing or has another size: a fault of this image.
            StorageError: Anything else: the place of the data, or a shard, has changed or cannot be read.
        """
        url = self._storage.url_of(file)
        try:
            return self._storage.read_range(file, offset, num_bytes, file_bytes=file_bytes)
        except OtherSizeError as error:
            if self._index.one_file_per_image:
                raise
            raise StorageError(str(error)) from error
        except FileNotFoundError as error:
            # A folder that is gone was moved away or unmounted.
            is_alone = self._index.one_file_per_image and not (self._storage.is_local and not Path(url).parent.is_dir())
            raise (FormatError if is_alone else StorageError)(
                f"{url}: missing, the index lists it; "
                'run "dataprep verify" to see what else is, and restore it or build again'
            ) from error
