"""Bytes of an archive on disk or in a bucket, read at growing offsets and in bounded memory; members of zips.

On disk a header costs one small read. Over a network one request for each member would cost the latency each time, so
the archive is streamed once, in large blocks; several are in flight ahead of the position.

The stored (uncompressed) members of a zip are byte ranges; nothing is unpacked. Names and sizes come from the central
directory at the end. The start of a member's data comes from its local header, whose extra field can have another
length than the directory's. Format: PKWARE's APPNOTE 6.3.10.
"""

from __future__ import annotations

import gzip
import io
import stat
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from operator import attrgetter
from struct import Struct
from typing import BinaryIO, NamedTuple, Protocol

from dataprep.errors import SourceError
from dataprep.formats.tars import ByteReader, Member, damaged, tar_members
from dataprep.storage.base import ObjectInfo, Storage
from dataprep.storage.ranges import RangeWindow

MAX_DIRECTORY_BYTES = 64 * 2**20
"""Maximum size of the central directory; unlabeled2017.zip has 14 MB."""
MAX_MEMBERS = 500_000
"""Maximum number of members of an archive: bounds a listing to 150 MB of memory. COCO's largest archive has 123,404."""
_END = Struct("<4s4H2LH")  # end of central directory
_END64 = Struct("<4sQ2H2L4Q")
_LOCATOR64 = Struct("<4sLQL")
_ENTRY = Struct("<4s4B4HL2L5H2L")
_LOCAL = Struct("<4s5H3L2H")
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_DATA_DESCRIPTOR = 0x8
_UNIX = 3
_UNPACK = "unpack it and give the folder"
_STORE = "make it again without compression, with zip -0 -r"
_AGAIN = "the archive is damaged: download it again"
BLOCK_BYTES = 4 * 2**20
"""Size of one request over a network; smaller requests spend as much time on round trips as on bytes."""
BLOCKS_IN_FLIGHT = 12
"""Number of requests in flight ahead of the position: hides 50 ms of latency at 1 GB/s, in 48 to 96 MiB."""
DISK_WINDOW_BYTES = 4096
"""Size of one read from disk: a page, which holds a header with its extensions."""
NETWORK_WINDOW_BYTES = 65536
"""Size of one read over a network, and of one from disk where headers are close together."""
MAX_GZIP_BYTES = 64 * 2**20
"""Maximum size of a compressed label archive; the published ones have 2.6 MB."""
MAX_UNPACKED_BYTES = 512 * 2**20
"""Maximum size of a label archive's content, which is streamed; the published ones have under 100 MB."""
_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
_POINTER_BYTES = range(120, 160)
"""Possible sizes of a Git LFS pointer; they differ only in the length of the file's number of bytes."""
Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes done and the total bytes."""


def archive_members(reader: ArchiveReader, name: str) -> Iterable[Member]:
    """List the members of a zip or, by any other name, of a tar. Raises SourceError for a damaged archive."""
    return zip_members(reader) if name.lower().endswith(".zip") else tar_members(reader)


def zip_members(reader: ArchiveReader) -> list[Member]:
    """List the files and directories of a zip, in the order of its central directory. Raises SourceError if the zip is
    damaged or truncated; a member is a link or a device, or members overlap or are outside the archive. Names are not
    checked here. Compressed members are only marked, because members that are skipped may be compressed."""
    directory = find_directory(reader)
    entries = sorted(_entries(reader, directory), key=attrgetter("header_offset"))
    limits = [entry.header_offset for entry in entries[1:]] + [directory.offset]
    located = [(entry.order, _locate(reader, entry, limit)) for entry, limit in zip(entries, limits, strict=False)]
    return [member for _, member in sorted(located)]


def find_directory(reader: _Reader) -> _Directory:
    """Find the central directory of a zip. Raises SourceError if it is missing, truncated, or over the limits."""
    tail_bytes = min(reader.num_bytes, _LOCATOR64.size + _END.size + 0xFFFF)
    tail_at = reader.num_bytes - tail_bytes
    tail = reader.read_apart(tail_at, tail_bytes)
    at = tail.rfind(b"PK\5\6", 0, max(0, len(tail) - _END.size + 4))
    while at >= 0:
        end = _END.unpack_from(tail, at)
        if at + _END.size + end[7] == len(tail):  # the comment reaches to the file's end
            break
        at = tail.rfind(b"PK\5\6", 0, at)
    if at < 0:
        raise damaged(
            reader, reader.num_bytes, "no end of a zip archive here: truncated, or not a zip; download it again"
        )
    _, disk, start_disk, here, entries, num_bytes, offset, _ = end
    end_at = tail_at + at
    locator_at = end_at - _LOCATOR64.size
    locator = tail[at - _LOCATOR64.size : at] if at >= _LOCATOR64.size else b""
    if locator[:4] == b"PK\6\7":
        end_at, (disk, start_disk, here, entries, num_bytes, offset) = _find_end64(reader, locator_at, locator)
    if disk or start_disk or here != entries:
        raise damaged(reader, end_at, f"one of several parts of a zip; expected a complete one: {_UNPACK}")
    directory = f"directory of {num_bytes:,} bytes"
    if offset + num_bytes != end_at:
        what = "does not end here: it was truncated, or data were put in front: download it again"
        raise damaged(reader, end_at, f"its {directory} at {offset:,} {what}")
    if num_bytes > MAX_DIRECTORY_BYTES or entries > MAX_MEMBERS:
        most = f"at most {MAX_MEMBERS:,} in {MAX_DIRECTORY_BYTES:,} are taken: {_UNPACK}"
        raise damaged(reader, offset, f"{entries:,} members in a {directory}; {most}")
    return _Directory(offset, num_bytes, entries)


def refuse_pointer(storage: Storage, name: str, num_bytes: int, offset: int = 0) -> None:
    """Raise SourceError for a Git LFS pointer, which a clone may have instead of the file."""
    if num_bytes in _POINTER_BYTES and storage.read_range(name, offset, len(_POINTER)) == _POINTER:
        raise SourceError(
            f"{storage.url_of(name)}: a Git LFS pointer in place of a file; run git lfs pull in the clone"
        )


class ArchiveReader:
    """Reads one archive forward, in a `with` block. Reading backwards works, but costs a new request."""

    def __init__(
        self,
        storage: Storage,
        name: str,
        *,
        stream: bool = True,
        progress: Progress | None = None,
        info: ObjectInfo | None = None,
    ) -> None:
        """Open an archive, which over a network is read completely, in large blocks, unless `stream` is False. Raises
        SourceError if there is no such file."""
        info = info or storage.stat(name)
        if info is None:
            raise SourceError(f"{storage.url_of(name)}: not found; check `source`")
        refuse_pointer(storage, name, info.num_bytes)
        self.archive = storage.url_of(name)
        self.num_bytes = info.num_bytes
        self.version = info.version
        self._storage, self._name, self._progress = storage, name, progress
        least, most = (DISK_WINDOW_BYTES if storage.is_local else NETWORK_WINDOW_BYTES), NETWORK_WINDOW_BYTES
        self._window = RangeWindow(storage, name, info.num_bytes, least, info.version, most_bytes=most)
        self._blocks = _BlocksAhead(storage, name, info) if stream and not storage.is_local else None
        self._next_report = 0

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return the bytes at an offset; fewer than requested only at the end of the archive."""
        stop = min(offset + num_bytes, self.num_bytes)
        if offset >= stop:
            return b""
        if self._progress is not None and offset >= self._next_report:
            self._next_report = offset + BLOCK_BYTES
            self._progress(self._name, offset, self.num_bytes)
        if self._blocks is not None:
            return self._blocks.read(offset, stop)
        return self._window.read(offset, stop - offset)

    def read_apart(self, offset: int, num_bytes: int) -> bytes:
        num_bytes = min(num_bytes, self.num_bytes - offset)
        if num_bytes <= 0:
            return b""
        return self._storage.read_range(self._name, offset, num_bytes, self.version)

    def __enter__(self) -> ArchiveReader:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop reading ahead."""
        if self._blocks is not None:
            self._blocks.close()
        if self._progress is not None:
            self._progress(self._name, self.num_bytes, self.num_bytes)


class StreamReader:
    """Reads an archive from a seekable stream; `archive` is its URL or path, for messages."""

    def __init__(self, stream: BinaryIO, archive: str) -> None:
        self._stream, self.archive = stream, archive
        self.num_bytes = stream.seek(0, io.SEEK_END)

    def read_apart(self, offset: int, num_bytes: int) -> bytes:
        self._stream.seek(offset)
        return self._stream.read(max(0, min(num_bytes, self.num_bytes - offset)))

    read = read_apart


class GzipReader:
    """The content of a small gzip file, read forward only, in bounded memory.

    Its `num_bytes` is the limit of unpacked bytes: `tar_members` does not read past it.
    """

    num_bytes = MAX_UNPACKED_BYTES

    def __init__(self, storage: Storage, name: str) -> None:
        """Open a file. Raises SourceError if it does not exist or is too large for a label archive."""
        self.archive = storage.url_of(name)
        info = storage.stat(name)
        if info is None:
            raise SourceError(f"{self.archive}: not found; check `source`")
        refuse_pointer(storage, name, info.num_bytes)
        if info.num_bytes > MAX_GZIP_BYTES:
            raise SourceError(
                f"{self.archive}: {info.num_bytes:,} bytes; expected a label archive of at most {MAX_GZIP_BYTES:,}"
            )
        self._is_empty = not info.num_bytes
        self._file = gzip.GzipFile(fileobj=io.BytesIO(storage.read(name)))

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Read content at an offset not before the last one; fewer bytes than requested only at the end."""
        try:
            if self._is_empty:  # GzipFile accepts an empty file as empty content
                raise EOFError
            self._file.seek(offset)
            return self._file.read(num_bytes)
        except EOFError as error:
            raise SourceError(f"{self.archive}: truncated inside its content; download it again") from error
        except (zlib.error, gzip.BadGzipFile) as error:
            raise SourceError(f"{self.archive}: not a valid gzip file: {error}; download it again") from error


class _Entry(NamedTuple):
    """Entry of one member in the central directory."""

    raw_name: bytes
    flags: int
    method: int
    num_bytes: int
    header_offset: int
    order: int


class _Directory(NamedTuple):
    """Place of the central directory."""

    offset: int
    num_bytes: int
    entries: int


class _Reader(ByteReader, Protocol):
    """Archive with a central directory, as `find_directory` reads it."""

    def read_apart(self, offset: int, num_bytes: int) -> bytes:
        """Read bytes with a separate request."""


def _find_end64(reader: _Reader, locator_at: int, locator: bytes) -> tuple[int, tuple[int, ...]]:
    """Return the position of the zip64 end record, and disk, start disk, entries here, entries, bytes and offset."""
    record_at = int(_LOCATOR64.unpack(locator)[2])
    # Only records without extensible data are accepted: no tool writes others, and a gap could hide members.
    if record_at + _END64.size != locator_at:
        raise damaged(reader, locator_at, f"the zip64 end record is said to be at {record_at:,}; {_AGAIN}")
    record = _END64.unpack(reader.read_apart(record_at, _END64.size))
    if record[0] != b"PK\6\6" or record[1] != _END64.size - 12:
        raise damaged(reader, record_at, f"no zip64 end record; {_AGAIN}")
    return record_at, record[4:]


def _entries(reader: ArchiveReader, directory: _Directory) -> Iterator[_Entry]:
    data, at = reader.read_apart(directory.offset, directory.num_bytes), 0
    for order in range(directory.entries):
        position = directory.offset + at
        if at + _ENTRY.size > len(data):
            raise damaged(reader, position, f"its directory ends after {order:,} of {directory.entries:,} members")
        fields = _ENTRY.unpack_from(data, at)
        signature, system, flags, method = fields[0], fields[2], fields[5], fields[6]
        packed_bytes, num_bytes = fields[10], fields[11]
        name_bytes, extra_bytes, comment_bytes, disk = fields[12:16]
        attributes, header_offset = fields[17], fields[18]
        stop = at + _ENTRY.size + name_bytes + extra_bytes + comment_bytes
        if signature != b"PK\1\2" or stop > len(data):
            raise damaged(reader, position, f"no directory entry; {_AGAIN}")
        name_at = at + _ENTRY.size
        name = data[name_at : name_at + name_bytes]
        values = [num_bytes, packed_bytes, header_offset]
        if 0xFFFFFFFF in values:
            extra = data[name_at + name_bytes : name_at + name_bytes + extra_bytes]
            values = _with_zip64(reader, position, name, values, extra)
        if values[0] != values[1] and not method:
            raise _refuse(reader, position, name, f"stored with {values[1]:,} bytes but {values[0]:,} said; {_AGAIN}")
        if disk:
            raise _refuse(reader, position, name, f"in another part of the zip: {_UNPACK}")
        if system == _UNIX:
            _refuse_special(reader, position, name, attributes >> 16)
        yield _Entry(name, flags, method, values[1], values[2], order)
        at = stop
    if at != len(data):
        raise damaged(reader, directory.offset + at, f"{len(data) - at:,} bytes more in its directory; {_AGAIN}")


def _with_zip64(reader: ArchiveReader, position: int, name: bytes, values: list[int], extra: bytes) -> list[int]:
    """Replace each 0xFFFFFFFF among size, packed size and offset with the value in the zip64 extra field."""
    at = 0
    while at + 4 <= len(extra):
        kind, num_bytes = int.from_bytes(extra[at : at + 2], "little"), int.from_bytes(extra[at + 2 : at + 4], "little")
        body = extra[at + 4 : at + 4 + num_bytes]
        at += 4 + num_bytes
        if kind != 1:
            continue
        wide = [int.from_bytes(body[i : i + 8], "little") for i in range(0, len(body) - 7, 8)]
        if len(wide) < values.count(0xFFFFFFFF):
            break
        numbers = iter(wide)
        return [next(numbers) if value == 0xFFFFFFFF else value for value in values]
    raise _refuse(reader, position, name, f"its zip64 sizes are missing; {_AGAIN}")


def _refuse_special(reader: ArchiveReader, position: int, name: bytes, mode: int) -> None:
    kind = stat.S_IFMT(mode)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        what = "a symbolic link" if kind == stat.S_IFLNK else "a device or pipe"
        raise _refuse(reader, position, name, f"it is {what}, expected plain files: {_UNPACK}")


def _locate(reader: ArchiveReader, entry: _Entry, limit: int) -> Member:
    """Find a member's data through its local header; they must end before `limit`."""
    position, name = entry.header_offset, entry.raw_name
    header = reader.read(position, _LOCAL.size)
    if len(header) < _LOCAL.size or header[:4] != b"PK\3\4":
        raise _refuse(reader, position, name, f"no local header at this offset; {_AGAIN}")
    fields = _LOCAL.unpack(header)
    flags, method, packed_bytes, name_bytes, extra_bytes = fields[2], fields[3], fields[7], fields[9], fields[10]
    offset = position + _LOCAL.size + name_bytes + extra_bytes
    if offset + entry.num_bytes > limit:
        what = f"run into what begins at {limit:,}: overlapping or truncated"
        raise _refuse(reader, position, name, f"{entry.num_bytes:,} bytes from {offset:,} {what}")
    if reader.read(position + _LOCAL.size, name_bytes) != name:
        raise _refuse(reader, position, name, f"its local header has another name; {_AGAIN}")
    if method != entry.method:
        raise _refuse(reader, position, name, f"method {method} in its local header, {entry.method} before; {_AGAIN}")
    streamed = flags & _DATA_DESCRIPTOR  # then the sizes follow the data; the directory has them as well
    if packed_bytes not in (entry.num_bytes, 0xFFFFFFFF) and not streamed:
        raise _refuse(reader, position, name, f"{packed_bytes:,} bytes in its local header, {entry.num_bytes:,} in all")
    text = name.decode("utf-8", "surrogateescape")
    return Member(text, offset, entry.num_bytes, text.endswith("/"), _unreadable(flags | entry.flags, method))


def _unreadable(flags: int, method: int) -> str:
    if flags & _ENCRYPTED:
        return f"it is encrypted: {_UNPACK}"
    return f"it is compressed (method {method}), expected stored: {_STORE}, or {_UNPACK}" if method else ""


def _refuse(reader: ArchiveReader, position: int, name: bytes, what: str) -> SourceError:
    return damaged(reader, position, what, member=name.decode("utf-8", "surrogateescape"))


class _BlocksAhead:
    """Blocks of an object from the current position on; BLOCKS_IN_FLIGHT of them are in memory or in flight."""

    def __init__(self, storage: Storage, name: str, info: ObjectInfo) -> None:
        self._storage, self._name, self._num_bytes, self._version = storage, name, info.num_bytes, info.version
        self._held: OrderedDict[int, Future[bytes]] = OrderedDict()
        self._pool = ThreadPoolExecutor(BLOCKS_IN_FLIGHT, thread_name_prefix="archive")
        self._hold(0)  # these blocks arrive while a zip's directory is read

    def read(self, offset: int, stop: int) -> bytes:
        pieces = []
        while offset < stop:
            start = offset - offset % BLOCK_BYTES
            index = start // BLOCK_BYTES
            if next(iter(self._held), None) != index:
                self._hold(index)
            pieces.append(self._held[index].result()[offset - start : stop - start])
            offset = start + BLOCK_BYTES
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _hold(self, index: int) -> None:
        total = -(-self._num_bytes // BLOCK_BYTES)
        wanted = range(index, min(index + BLOCKS_IN_FLIGHT, total))
        for past in [held for held in self._held if held not in wanted]:
            self._held.pop(past).cancel()
        kept = self._held
        self._held = OrderedDict((i, kept.get(i) or self._pool.submit(self._fetch, i)) for i in wanted)

    def _fetch(self, index: int) -> bytes:
        start = index * BLOCK_BYTES
        return self._storage.read_range(self._name, start, min(BLOCK_BYTES, self._num_bytes - start), self._version)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._held.clear()
