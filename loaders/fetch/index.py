"""The index of one split, read shard by shard: place, label, size and key of every sample.

The rows of a shard are one row group of a parquet file, which is read completely. If images are drawn one by one from
all shards, as they are where neighbours may have the same class, an index that is larger than the memory for it would
be read again for every image. So its rows are also kept on a disk, where each is read alone; see `_Rows`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, pairwise
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from dataprep.arrays import NDArray, np, pa
from dataprep.dataset.adopted import is_adopted
from dataprep.dataset.columns import numbers_or_zero
from dataprep.dataset.index import Index, are_ranges_inside
from dataprep.dataset.manifest import built_as
from dataprep.dataset.paths import named
from dataprep.dataset.records import NO_LABEL, Manifest, SplitManifest, ViewedSplit, class_name_of
from dataprep.errors import FormatError, UsageError
from dataprep.formats import FORMATS
from dataprep.formats.imagefolder import image_file, image_suffix
from dataprep.messages import human_bytes
from dataprep.storage import Storage
from dataprep.storage.folders import close_when_collected
from loaders.fetch.cache import private_folder, user_cache
from loaders.order import Piece

MAX_INDEX_BYTES = 256 * 2**20
"""Memory for index entries: some 2.5 million samples with keys of 30 characters; all of ImageNet takes half of it."""
ROW_BYTES = 100
"""Approximate memory of an entry, to decide whether an index is too large for the memory."""
SPARE_BYTES = 2 * 2**30
"""Free space of a disk that rows of indexes leave."""
UNUSED_S = 30 * 86_400
"""Age at which rows that no process has opened are removed, seconds."""
MAX_TEXT_BYTES = 1_000
"""Maximum length of key and file together, in a row on the disk: all rows have the size of the longest."""
DEADLINE_S = 5.0
"""Seconds without an answer from the bucket after which reading fails."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Many strings in two buffers, without a Python object for each."""

    stops: NDArray[np.int64]
    """Byte of `joined` at which each string ends, shape (strings,)."""
    joined: bytes
    """All strings one after the other, UTF-8."""

    def __getitem__(self, number: int) -> str:
        text = self.joined[self._start(number) : self.stops[number]]
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"the index has a key or file that is not UTF-8, {text[:80]!r}; build again") from error

    def part(self, first: int, stop: int) -> Texts:
        """Return the strings from `first` to `stop`."""
        start = self._start(first)
        stops = self.stops[first:stop] - start
        return Texts(stops, self.joined[start:][: stops[-1] if len(stops) else 0])

    def texts(self) -> list[bytes]:
        """Return all strings, UTF-8."""
        return [self.joined[start:stop] for start, stop in pairwise([0, *self.stops.tolist()])]

    @property
    def num_bytes(self) -> int:
        """Memory that the buffers take."""
        return self.stops.nbytes + len(self.joined)

    def _start(self, number: int) -> int:
        return int(self.stops[number - 1]) if number else 0


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """Index entries of consecutive samples of one shard, all of them or some; every array has shape (samples,)."""

    record_offset: NDArray[np.int64]
    """Offset from the start of the stored object, bytes."""
    record_bytes: NDArray[np.int64]
    image_offset: NDArray[np.int64]
    image_bytes: NDArray[np.int64]
    image_crc32c: NDArray[np.uint32] | None
    """None if the dataset has no checksums of its images."""
    label: NDArray[np.int64]
    """Class number; -1 without a label."""
    height: NDArray[np.int32]
    """Pixels; height and width are 0 if they are not known."""
    width: NDArray[np.int32]
    keys: Texts
    files: Texts | None
    """Stored object of each image in an adopted image folder; None if shard or key determine it."""

    def __len__(self) -> int:
        return len(self.label)

    def key(self, entry: int) -> str:
        """Return the sample's name, which is unique in its split."""
        return self.keys[entry]

    def part(self, first: int, stop: int) -> ShardIndex:
        """Return a copy of entries `first` to `stop`, so that the memory of the others can be freed."""
        cut: dict[str, NDArray[Any]] = {name: getattr(self, name)[first:stop].copy() for name in _ALWAYS}
        crc32c = None if self.image_crc32c is None else self.image_crc32c[first:stop].copy()
        files = None if self.files is None else self.files.part(first, stop)
        return ShardIndex(**cut, image_crc32c=crc32c, keys=self.keys.part(first, stop), files=files)

    @property
    def num_bytes(self) -> int:
        """Memory that all entries take."""
        arrays: list[NDArray[Any] | None] = [getattr(self, name) for name in _COLUMNS]
        texts = self.keys.num_bytes + (0 if self.files is None else self.files.num_bytes)
        return texts + sum(array.nbytes for array in arrays if array is not None)


_COLUMNS: dict[str, type[np.generic]] = {
    "record_offset": np.int64,
    "record_bytes": np.int64,
    "image_offset": np.int64,
    "image_bytes": np.int64,
    "image_crc32c": np.uint32,
    "label": np.int64,
    "height": np.int32,
    "width": np.int32,
}


_ALWAYS = tuple(name for name in _COLUMNS if name != "image_crc32c")
"""Columns that every index has."""


class Found(NamedTuple):
    """Entries of a piece among others."""

    entries: ShardIndex
    at: int
    """Number of the piece's first entry."""


class _Layout(NamedTuple):
    """Layout of a row on the disk: a checksum, the numbers of `_numbers_of`, the text of key and file."""

    sizes: tuple[int, ...]
    """Bytes of each number: 1, 2, 4 or 8."""
    text_bytes: int

    def joined(self, other: _Layout) -> _Layout:
        """Return a layout that has room for the rows of both."""
        sizes = map(max, self.sizes, other.sizes)
        return _Layout(tuple(sizes), max(self.text_bytes, other.text_bytes))

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The row as a structure of NumPy."""
        numbers = [(str(number), f"<u{size}") for number, size in enumerate(self.sizes)]
        return np.dtype([("sum", "<u4"), *numbers, ("text", f"S{self.text_bytes}")])


def _numbers_of(entries: ShardIndex) -> list[NDArray[np.int64]]:
    """Return the numbers of each entry's row on the disk; `_entries_in` is the inverse."""
    crc32c, before = entries.image_crc32c, entries.image_offset - entries.record_offset
    return [
        entries.record_offset,
        before,
        entries.image_bytes,
        entries.record_bytes - before - entries.image_bytes,
        np.full_like(before, crc32c is not None),
        np.zeros_like(before) if crc32c is None else crc32c.astype(np.int64),
        entries.label - NO_LABEL,
        entries.height.astype(np.int64),
        entries.width.astype(np.int64),
        np.diff(entries.keys.stops, prepend=0),
        np.zeros_like(before) if entries.files is None else np.diff(entries.files.stops, prepend=0),
    ]


def _entries_in(rows: NDArray[np.void]) -> ShardIndex:
    *numbers, key_bytes, file_bytes = (rows[name].astype(np.int64) for name in (rows.dtype.names or ())[1:-1])
    offset, before, image_bytes, after, has_crc32c, crc32c, label, height, width = numbers
    text, row_bytes, ends = rows["text"].tobytes(), rows.dtype["text"].itemsize, key_bytes.tolist()
    keys = b"".join(text[at * row_bytes :][:end] for at, end in enumerate(ends))
    files = None
    if file_bytes.any():
        stops = enumerate(zip(ends, (key_bytes + file_bytes).tolist(), strict=True))
        joined = b"".join(text[at * row_bytes + end : at * row_bytes + stop] for at, (end, stop) in stops)
        files = Texts(np.cumsum(file_bytes), joined)
    return ShardIndex(
        record_offset=offset,
        record_bytes=before + image_bytes + after,
        image_offset=offset + before,
        image_bytes=image_bytes,
        image_crc32c=crc32c.astype(np.uint32) if has_crc32c.all() else None,
        label=label + NO_LABEL,
        height=height.astype(np.int32),
        width=width.astype(np.int32),
        keys=Texts(np.cumsum(key_bytes), keys),
        files=files,
    )


@cache
def _factors() -> NDArray[np.uint32]:
    """Return odd factors of a row's bytes in its checksum, with which any single changed byte changes the sum."""
    return np.arange(1, 2 * (MAX_TEXT_BYTES + 100), 2, dtype=np.uint32) * np.uint32(0x9E3779B1)


def _sums(rows: NDArray[np.void]) -> NDArray[np.uint32]:
    """Return the checksum of each row, which is not 0 for zeros: a row that was never written has a wrong one."""
    octets = rows.view(np.uint8).reshape(len(rows), -1)[:, 4:]
    sums: NDArray[np.uint32] = octets @ _factors()[: octets.shape[1]] + np.uint32(1)
    return sums


_HAS_CRC32C = "4"
"""Position in `_numbers_of` of the number that says whether the index has an image's checksum."""
_ROW_FILE = re.compile(r"([0-9a-f]{32})-([1248]{11})-([1-9][0-9]{0,3})\.rows")


class _Rows:
    """Rows of an index in a sparse file, all of one size, each at the place of its number; safe in many threads.

    The rows of a shard are written after it was read. Rows that are missing, half written or damaged have a wrong
    checksum and are not found, so that processes share a file without locks, and later ones find it. The file's name
    has its layout; a shard whose rows need more room begins another file. Raises OSError if the folder cannot be used,
    or its disk is full.
    """

    def __init__(self, identity: str, shard_samples: Sequence[int]) -> None:
        self._starts = [0, *accumulate(shard_samples)]
        """Number of the first row of each shard."""
        self._name = hashlib.sha256(identity.encode()).hexdigest()[:32]
        self._known: set[int] = set()
        """Shards whose rows were written or found."""
        self._lock = threading.Lock()
        _, self._folder = private_folder(user_cache() / "index")
        close_when_collected(self, os.close, self._folder)
        self._file: tuple[int, np.dtype[np.void]] | None = None
        self._layout: _Layout | None = None
        for layout in self._layouts():
            self._open(layout)
        if self._file is None and not self._has_room():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def put(self, shard: int, entries: ShardIndex) -> None:
        """Keep the rows of a shard, if the disk has room and all rows fit the layout."""
        numbers = _numbers_of(entries)
        texts = entries.keys.texts()
        if entries.files is not None:
            texts = [key + file for key, file in zip(texts, entries.files.texts(), strict=True)]
        longest = max(map(len, texts), default=0)
        if not texts or longest > MAX_TEXT_BYTES or any(column.min() < 0 for column in numbers):
            return
        sizes = tuple(np.min_scalar_type(int(column.max())).itemsize for column in numbers)
        with suppress(OSError), self._lock:
            file, dtype = self._open(_Layout(sizes, max(longest, 1)))
            rows = np.zeros(len(entries), dtype)
            for number, column in enumerate(numbers):
                rows[str(number)] = column
            rows["text"] = texts
            rows["sum"] = _sums(rows)
            if self._has_room():
                os.pwrite(file, rows.tobytes(), self._starts[shard] * dtype.itemsize)
                self._known.add(shard)

    def has(self, shard: int) -> bool:
        """Return whether there are rows of a shard."""
        return shard in self._known or bool(self.get([Piece(shard, 0, 1, 0)])[0])

    def get(self, pieces: Sequence[Piece]) -> list[Found | None]:
        """Return the entries of pieces, None for pieces that lack a row."""
        if self._file is None or not pieces:
            return [None] * len(pieces)
        file, dtype = self._file
        size = dtype.itemsize
        data, lengths = [], [piece.stop - piece.first for piece in pieces]
        for piece, length in zip(pieces, lengths, strict=True):
            try:
                found = os.pread(file, length * size, (self._starts[piece.shard] + piece.first) * size)
            except OSError:  # a disk that cannot be read has no rows
                found = b""
            data.append(found.ljust(length * size, b"\0"))
        rows = np.frombuffer(b"".join(data), dtype)
        is_good = rows["sum"] == _sums(rows)
        stops = list(accumulate(lengths))
        good = [bool(is_good[stop - length : stop].all()) for stop, length in zip(stops, lengths, strict=True)]
        entries = _entries_in(rows[np.repeat(good, lengths)])
        if entries.image_crc32c is None and len(pieces) > 1 and rows[_HAS_CRC32C].any():  # some have no checksums
            return [self.get([piece])[0] for piece in pieces]
        firsts = accumulate((length * each for length, each in zip(lengths, good, strict=True)), initial=0)
        self._known |= {piece.shard for piece, each in zip(pieces, good, strict=True) if each}
        return [Found(entries, first) if each else None for first, each in zip(firsts, good, strict=False)]

    def _has_room(self) -> bool:
        disk = os.fstatvfs(self._folder)
        return disk.f_bavail * disk.f_frsize > SPARE_BYTES

    def _layouts(self) -> list[_Layout]:
        """Return the layouts of this index's files, and remove files that were not used for long."""
        found, now_s = [], time.time()
        with os.scandir(self._folder) as entries:
            for entry in entries:
                match = _ROW_FILE.fullmatch(entry.name)
                if match is None:
                    continue
                if match[1] == self._name:
                    found.append(_Layout(tuple(map(int, match[2])), int(match[3])))
                elif now_s - entry.stat(follow_symlinks=False).st_mtime > UNUSED_S:
                    os.unlink(entry.name, dir_fd=self._folder)
        return found

    def _open(self, needed: _Layout) -> tuple[int, np.dtype[np.void]]:
        """Open a file that has room for rows of a layout, unless the open one has."""
        layout = needed if self._layout is None else self._layout.joined(needed)
        if self._file is None or layout != self._layout:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(self._file_name(layout), flags, 0o600, dir_fd=self._folder)
            close_when_collected(self, os.close, file)  # not before: other threads may read it
            os.utime(file)
            if self._layout is not None:
                with suppress(FileNotFoundError):
                    os.unlink(self._file_name(self._layout), dir_fd=self._folder)
            self._file, self._layout, self._known = (file, layout.dtype), layout, set()
        return self._file

    def _file_name(self, layout: _Layout) -> str:
        return f"{self._name}-{''.join(map(str, layout.sizes))}-{layout.text_bytes}.rows"


class _Sized(Protocol):
    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""


E = TypeVar("E", bound=_Sized)


class ShardCache(Generic[E]):
    """Entries of shards, each read when it is first needed; safe in many threads. Up to `max_bytes` are kept, and the
    least recently used shards go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Future[E]] = OrderedDict()
        self._kept_bytes = 0

    def get(self, shard: int, read: Callable[[int], E]) -> E:
        """Return the entries of a shard; `read` reads them once, however many threads ask for them."""
        with self._lock:
            found = self._kept.get(shard)
            if found is not None:
                self._kept.move_to_end(shard)
            else:
                mine = self._kept[shard] = Future()
        if found is not None:
            return found.result()
        try:
            entries = read(shard)
        except BaseException as error:
            with self._lock:
                del self._kept[shard]
            mine.set_exception(error)
            raise
        mine.set_result(entries)
        with self._lock:
            self._kept_bytes += entries.num_bytes
            for number, other in list(self._kept.items())[:-1]:
                if self._kept_bytes <= self._max_bytes:
                    break
                if other.done():
                    del self._kept[number]
                    self._kept_bytes -= other.result().num_bytes
        return entries


class SplitIndex:
    """Reader of one split's index, which reads each shard when it is first needed; safe in many threads.

    Args:
        storage: Storage of the index; the data may be elsewhere.
        manifest: Manifest of the dataset.
        split: One of its splits.
        max_bytes: Memory for entries that are kept; the least recently used shards go first.
        deadline_s: Seconds without an answer from the bucket after which reading fails.
    """

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        split: SplitManifest,
        *,
        max_bytes: int = MAX_INDEX_BYTES,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._storage = with_deadline(storage, deadline_s)
        self._manifest, self._split, self._max_bytes = manifest, split, max_bytes
        self.one_file_per_image = FORMATS[manifest.format].one_file_per_image
        """Whether every image is a separate object."""
        self.digest = f"{manifest.plan_hash} {split.index['sha256']}"
        """Identity of the data: another digest means other bytes at the same offsets."""
        self._is_large = ROW_BYTES * split.samples > max_bytes and not isinstance(split, ViewedSplit)
        self._shards = ShardCache[ShardIndex](max_bytes)
        self._index = Index(self._storage, split, compare=True)

    def shard(self, shard: int) -> ShardIndex:
        """Return the entries of one shard; they are read once, however many threads ask for them.

        Raises:
            FormatError: The index is missing or damaged, or is not the one that the manifest lists.
            StorageError: The index cannot be read.
        """
        return self._shards.get(shard, self._read)

    def load(self, shard: int) -> None:
        """Read the entries of a shard now, unless its rows are on the disk, so that `find` need not wait for it."""
        if self._rows is None or not self._rows.has(shard):
            self.shard(shard)

    def known(self, pieces: Sequence[Piece]) -> dict[Piece, Found]:
        """Return the entries of pieces whose rows are on the disk; many at once take less time than each alone."""
        found = [] if self._rows is None else self._rows.get(pieces)
        return {piece: each for piece, each in zip(pieces, found, strict=False) if each is not None}

    def find(self, piece: Piece) -> Found:
        """Return the entries of a piece, among others.

        Raises:
            FormatError, StorageError: As for `shard`.
        """
        return self.known([piece]).get(piece) or Found(self.shard(piece.shard), piece.first)

    @cached_property
    def _rows(self) -> _Rows | None:
        """Rows on the disk, if the index is larger than the memory for it; the rows of a view have other numbers."""
        if not self._is_large:
            return None
        try:
            return _Rows(f"{self._index_url} {self.digest}", [shard["samples"] for shard in self._split.shards])
        except OSError as error:
            warnings.warn(
                f"{self._index_url}: takes {human_bytes(ROW_BYTES * self._split.samples)}, of which "
                f"{human_bytes(self._max_bytes)} are kept in memory; the others cannot be kept in {user_cache()} "
                f"({error.strerror}), so they are read for each image again; set XDG_CACHE_HOME to a folder on a disk",
                UserWarning,
                stacklevel=2,
            )
            return None

    def file(self, shard: int, sample: int) -> str:
        """Return the stored object that holds a sample."""
        return self.file_of(shard, self.shard(shard), sample) if self.one_file_per_image else self.shard_file(shard)

    def file_of(self, shard: int, entries: ShardIndex, entry: int) -> str:
        """Return the stored object that holds one of these entries of a shard.

        Raises:
            FormatError: The label has no class.
            UsageError: The index has no column of files although the dataset needs one.
        """
        if not self.one_file_per_image:
            return self.shard_file(shard)
        if entries.files is not None:
            return entries.files[entry]
        key, label = entries.key(entry), int(entries.label[entry])
        class_name = class_name_of(label, self._manifest.classes)
        if class_name is None:
            raise FormatError(
                f"{self._index_url}: {named(key)} has label {label}, expected one of {len(self._manifest.classes)} "
                'classes; run "dataprep verify" to see what else is wrong, and build it again'
            )
        if is_adopted(self._manifest):
            raise UsageError(
                f"{self._index_url}: no column of files, which an image folder of {self._manifest.name!r} needs; "
                "adopt the data again with --overwrite"
            )
        root = FORMATS[self._manifest.format].image_root(self._split.name, self._split.repeats["stored"])
        return image_file(root, key, class_name, image_suffix(built_as(self._manifest)))

    def file_bytes(self, shard: int, entries: ShardIndex, entry: int) -> int:
        """Return the size of the stored object that holds one of these entries of a shard."""
        return int(entries.image_bytes[entry] if self.one_file_per_image else self._split.shards[shard]["bytes"])

    def claims_sizes(self, shard: int) -> bool:
        """Whether a shard's heights and widths come from another tool and were never compared with the images."""
        return is_adopted(self._manifest)

    def mean_image_bytes(self) -> float:
        """Return the mean image size of the first shard that is not empty: the same in every format and place.

        In a view, blocks are read including the images left out between, so these count, too.
        """
        counts = [entry["samples"] for entry in self._split.shards]
        stored = self._split.kept.stored if isinstance(self._split, ViewedSplit) else counts
        spread = sum(each for each, kept in zip(stored, counts, strict=True) if kept) / max(1, sum(counts))
        for shard, samples in enumerate(counts):
            if samples:
                entries = self.shard(shard)
                return int(entries.image_bytes.sum()) / len(entries) * spread
        raise FormatError(f"{self._index_url}: no sample in any shard; build it again")

    @property
    def _index_url(self) -> str:
        return self._storage.url_of(self._split.index["file"])

    def shard_file(self, shard: int) -> str:
        """Return the name of a shard's file."""
        file: str = self._split.shards[shard]["file"]
        return file

    def _read(self, shard: int) -> ShardIndex:
        try:
            entries = _entries_of(self._index.read_group(shard, without="shard"))
        except FileNotFoundError as error:
            raise FormatError(f"{error}: missing, but the manifest lists it; restore it or build again") from error
        samples, num_bytes = (self._split.shards[shard][name] for name in ("samples", "bytes"))
        if len(entries) != samples or not _is_sound(entries, num_bytes):
            file, group = self._index.place(shard)
            raise FormatError(
                f"{self._storage.url_of(file)}: row group {group} of {len(entries):,} samples does not describe "
                f"{self.shard_file(shard)} of {samples:,} in {num_bytes:,} bytes; build it again"
            )
        if self._rows is not None:
            self._rows.put(shard, entries)
        return entries


def with_deadline(storage: Storage, deadline_s: float) -> Storage:
    """Return the same storage, with reads from a bucket that fail after `deadline_s` seconds without an answer."""
    if storage.is_local:
        return storage
    from dataprep.storage.gcs import GCSStorage
    from dataprep.storage.gcs_client import Deadlines
    from dataprep.storage.remote import RemoteStorage

    if isinstance(storage, GCSStorage | RemoteStorage):
        return type(storage)(storage.url, Deadlines(deadline_s))
    return storage


def _entries_of(table: pa.Table) -> ShardIndex:
    columns = {name: numbers_or_zero(table.column(name), kind) for name, kind in _COLUMNS.items()}
    crc32c: NDArray[np.uint32] | None = columns.pop("image_crc32c")
    if table.column("image_crc32c").null_count:
        crc32c = None
    files = _texts(table.column("file")) if "file" in table.column_names else None
    return ShardIndex(**columns, image_crc32c=crc32c, keys=_texts(table.column("key")), files=files)


def _texts(column: pa.ChunkedArray) -> Texts:
    values = column.combine_chunks()
    if not len(values):
        return Texts(np.empty(0, np.int64), b"")
    _, offsets, text = values.buffers()
    stops = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    return Texts(stops[1:] - stops[0], text[stops[0] : stops[-1]].to_pybytes())


def _is_sound(entries: ShardIndex, shard_bytes: int) -> bool:
    ranges = (entries.record_offset, entries.record_bytes, entries.image_offset, entries.image_bytes)
    return are_ranges_inside(*ranges, shard_bytes=shard_bytes)
