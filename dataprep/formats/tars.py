"""The members of a tar as byte ranges, read from its headers alone; the tar may be inside another one.

This does not use `tarfile`, which takes a damaged or truncated archive for its end, allocates what a header claims, and
follows sparse maps and links. Format: POSIX.1-2017, "pax Interchange Format", and GNU tar's extensions.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

from dataprep.arrays import NDArray, np
from dataprep.errors import SourceError
from dataprep.messages import shown

BLOCK_BYTES = 512
MAX_EXTENSION_BYTES = 2**20
"""Maximum size of one PAX or GNU header; real ones have a few hundred bytes."""
MAX_EXTENSIONS = 8
"""Maximum number of extension headers before one member; GNU tar and PAX writers write two."""
MAX_TAIL_BYTES = 2**20
"""Maximum number of zeros after the end marker: archives are padded to a record, by default 10,240 bytes."""
_FILES_AT_ONCE = 4096
_PIECE_BYTES = 2**16
"""Bytes of small files that are read at once, with their headers."""
_ZEROS = bytes(BLOCK_BYTES)
_REFUSED = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a named pipe",
    b"S": "a sparse file",
    b"M": "a part of a file in several volumes",
}
_PAX_RECORD = re.compile(rb"([0-9]{1,7}) ([^=]+)=")
_AGAIN = "the archive is damaged: download it again"
NAME_BYTES = 100
# A ustar header consists of name, _MODE_OWNER, size, _MTIME, checksum, type, _LINK_TO_DEVICE, prefix and 12 zeros.
_MODE_OWNER = b"0000644\0" + b"0000000\0" * 2
_MTIME = b"0" * 11 + b"\0"
_LINK_TO_DEVICE = bytes(100) + b"ustar\x0000" + bytes(80)
_FILE, EXTENDED = b"0", b"x"
_OCTAL_DIGITS = b"01234567"
_PREFIX_BYTES = 155
FIELDS = (
    ("name", 100), ("mode", 108), ("uid", 116), ("gid", 124), ("size", 136), ("mtime", 148),
    ("checksum", 156), ("type", 157), ("link name", 257), ("magic", 265), ("owner", 297), ("group", 329),
    ("device", 345), ("prefix", 500), ("padding", 512),
)  # fmt: skip
"""Each field's name and end, in bytes from the header's start."""
# This entry carries the path of a file whose name ustar cannot hold. tarfile, webdataset, Hugging Face datasets and
# GNU tar all read it, also from a stream.
_EXTENDED_NAME = b"././@PaxHeader"


class Member(NamedTuple):
    """One member of an archive, as a byte range of it."""

    name: str
    """Name as the archive has it; bytes that are not UTF-8 are surrogate escapes."""
    offset: int
    num_bytes: int
    is_directory: bool = False
    unreadable: str = ""
    """Why its bytes cannot be read as a range, e.g. because they are compressed; a clause for messages."""


class PlainFiles(NamedTuple):
    """Files that follow each other in a tar, all with plain headers, as columns."""

    names: tuple[bytes, ...]
    """Names as the archive has them; one that ends with a slash is a folder's."""
    offsets: NDArray[np.int64]
    """First byte of each file in the archive, shape (files,)."""
    sizes: NDArray[np.int64]
    stop: int
    """Position of the next header."""


class ByteReader(Protocol):
    """Random access to the bytes of an archive."""

    archive: str
    """URL or path of the archive, for messages."""
    num_bytes: int
    """Size of the archive; where that is not known beforehand, an upper bound."""

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return the bytes at an offset; fewer than requested only where the archive ends."""


def damaged(reader: ByteReader, offset: int, what: str, *, member: str = "", within: str = "") -> SourceError:
    """Return the error for a damaged archive; it names the archive, the inner archive if a tar is inside a tar, the
    member, the offset and the fault, a clause with what was expected and the next step."""
    inner = f"{shown(within)}: " if within else ""
    name = f"member {shown(member)} " if member else ""
    return SourceError(f"{reader.archive}: {inner}{name}at byte {offset:,}: {what}")


def tar_members(reader: ByteReader, start: int = 0, stop: int | None = None, *, within: str = "") -> Iterator[Member]:
    """Yield the files and directories of a tar, at [start, stop) of the archive, in its order; messages name the tar if
    it is within another one. Raises SourceError if the tar is damaged, truncated (without its end marker), or holds
    anything but plain files and directories. Names are not checked here."""
    walk = _Walk(reader, reader.num_bytes if stop is None else stop, within)
    position, extensions = start, _Extensions()
    while (header := walk.block(position)) != _ZEROS:
        walk.check_sum(header, position)
        kind = header[156:157]
        num_bytes = walk.number(header[124:136], position)
        if kind in b"xgLK":
            walk.extend(extensions, kind, position, num_bytes)
        else:
            member = walk.member(header, kind, position, num_bytes, extensions)
            yield member
            num_bytes, extensions = member.num_bytes, _Extensions()
        position += BLOCK_BYTES + -(-num_bytes // BLOCK_BYTES) * BLOCK_BYTES
    walk.check_end(position, extensions)


def plain_files(reader: ByteReader, start: int, stop: int) -> Iterator[PlainFiles]:
    """Yield the files of a tar, at [start, stop) of the archive, up to the first unusual header, many at a time, in a
    fifth of the time of `tar_members`, which can continue at `PlainFiles.stop`."""
    piece, piece_at, num_bytes, is_plain = b"", start, _PIECE_BYTES, True
    while is_plain:
        headers: list[bytes] = []
        places: list[tuple[int, int, int]] = []
        while is_plain and len(headers) < _FILES_AT_ONCE:
            if start + BLOCK_BYTES > piece_at + len(piece):
                piece_at = start
                piece = reader.read(start, _PIECE_BYTES if num_bytes < _PIECE_BYTES // 16 else BLOCK_BYTES)
            header = piece[start - piece_at : start - piece_at + BLOCK_BYTES]
            digits, offset = header[124:135], start + BLOCK_BYTES
            num_bytes = stop if digits.strip(_OCTAL_DIGITS) or len(header) < BLOCK_BYTES else int(digits, 8)
            is_plain = offset + num_bytes <= stop
            if is_plain:
                start = offset + -(-num_bytes // BLOCK_BYTES) * BLOCK_BYTES
                headers.append(header)
                places.append((offset, num_bytes, start))
        count = _plain_count(headers)
        is_plain &= count == len(headers)
        if count:
            offsets, sizes, stops = np.array(places[:count], np.int64).T
            names = tuple(header[:NAME_BYTES].split(b"\0", 1)[0] for header in headers[:count])
            yield PlainFiles(names, np.ascontiguousarray(offsets), np.ascontiguousarray(sizes), int(stops[-1]))


def _plain_count(headers: Sequence[bytes]) -> int:
    """Return how many of the first headers, whose size has digits alone, belong to files whose names and sizes need no
    other field."""
    blocks = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, BLOCK_BYTES)
    digits = blocks[:, 148:154].astype(np.int32) - ord("0")
    checksums = blocks.sum(1, np.int32) - blocks[:, 148:156].sum(1, np.int32) + 8 * ord(" ")
    is_plain = (blocks[:, 156] == _FILE[0]) & ~blocks[:, [135, 154, 345]].any(1)
    is_plain &= ((digits >= 0) & (digits < 8)).all(1) & (digits @ 8 ** np.arange(5, -1, -1) == checksums)
    return len(headers) if is_plain.all() else int(is_plain.argmin())


def split_name(name: str) -> tuple[str, str]:
    """Split a member's name at the first dot of its last component; the suffix is in lower case, or empty."""
    folder, slash, last = name.rpartition("/")
    stem, dot, suffix = last.partition(".")
    return (folder + slash + stem, suffix.lower()) if stem and dot else (name, "")


def member(key: bytes, suffix: bytes, data: bytes) -> bytes:
    """Return a complete member: headers, data, zeros up to the next block."""
    return header(key, suffix, len(data)) + data + bytes(-len(data) % BLOCK_BYTES)


def members_around(key: bytes, suffix: bytes, image_bytes: int, fields: Mapping[bytes, bytes]) -> tuple[bytes, bytes]:
    """Return the bytes of a sample before and after its image, which is not copied; `suffix` is the image's, and
    `fields` are the contents of the members that follow, by suffix."""
    pieces = [bytes(-image_bytes % BLOCK_BYTES)]
    if len(key) + max(map(len, fields), default=0) <= NAME_BYTES:
        key_sum = _sum_of(key)
        for before, checksum, after in _around_keys(len(key), tuple(fields.items())):
            pieces += key, before, b"%06o" % (checksum + key_sum), after
    else:
        pieces += [member(key, name, data) for name, data in fields.items()]
    return header(key, suffix, image_bytes), b"".join(pieces)


@lru_cache(maxsize=4096)  # samples of a class whose pictures have the same size; an entry has 2 kB
def _around_keys(key_bytes: int, fields: tuple[tuple[bytes, bytes], ...]) -> list[tuple[bytes, int, bytes]]:
    """Return for each member its bytes from the key to the checksum, the checksum without the key, and what follows."""
    found = []
    for suffix, data in fields:
        before, after, checksum = _around_checksum(len(data), _FILE, b"")
        start = suffix.ljust(NAME_BYTES - key_bytes, b"\0") + before
        end = b"\0 " + after + data + bytes(-len(data) % BLOCK_BYTES)
        found.append((start, checksum + _sum_of(suffix), end))
    return found


def header(key: bytes, suffix: bytes, num_bytes: int) -> bytes:
    """Return all blocks before a member's data: one, or three where ustar's fields cannot hold the name."""
    name = key + suffix
    if len(name) <= NAME_BYTES:
        return _ustar(name, num_bytes)
    slash = name.find(b"/", len(name) - NAME_BYTES - 1)  # the first slash after which the rest fits
    if 0 < slash <= _PREFIX_BYTES:
        return _ustar(name[slash + 1 :], num_bytes, prefix=name[:slash])
    # The length counts itself: three digits for names this long.
    record = b"%d path=%b\n" % (len(b"100 path=\n") + len(name), name)
    return (
        _ustar(_EXTENDED_NAME, len(record), EXTENDED)
        + record.ljust(BLOCK_BYTES, b"\0")
        + _ustar(name[:NAME_BYTES], num_bytes)
    )


@dataclass(slots=True)
class _Extensions:
    """Values from the extension headers in front of a member."""

    name: bytes | None = None
    num_bytes: int | None = None
    count: int = 0


class _Walk:
    """State of the walk over one tar: its bounds and its name, so that every check can say where a fault is."""

    def __init__(self, reader: ByteReader, stop: int, within: str) -> None:
        self._reader, self._stop, self._within = reader, stop, within

    def block(self, position: int) -> bytes:
        header = self._read(position, BLOCK_BYTES)
        if len(header) < BLOCK_BYTES:
            raise self._error(
                position,
                f"it ends after {len(header)} bytes, without the end marker: it is truncated, download it again",
            )
        return header

    def check_sum(self, header: bytes, position: int) -> None:
        """Raise SourceError if a header's checksum does not match its bytes."""
        expected = self.number(header[148:156], position)
        # Its own eight bytes count as blanks.
        unsigned = _sum_of(header[:256]) + _sum_of(header[256:]) - _sum_of(header[148:156]) + 8 * ord(" ")
        if unsigned != expected and unsigned - 256 * sum(byte > 127 for byte in header) != expected:
            raise self._error(position, f"not a tar header: its checksum is {expected}, expected {unsigned}; {_AGAIN}")

    def number(self, field: bytes, position: int) -> int:
        """Return the number in a header field: octal, or GNU's base 256."""
        if field[0] == 0x80:
            return int.from_bytes(field[1:], "big")
        digits = field.split(b"\0", 1)[0].strip(b" ")
        try:
            return int(digits, 8) if digits.isdigit() else self._no_number(field, position)
        except ValueError:
            return self._no_number(field, position)

    def extend(self, extensions: _Extensions, kind: bytes, position: int, num_bytes: int) -> None:
        """Apply a PAX (`x`, `g`) or GNU (`L`, `K`) header to the member that follows."""
        extensions.count += 1
        if num_bytes > MAX_EXTENSION_BYTES or extensions.count > MAX_EXTENSIONS:
            raise self._error(
                position,
                f"extension header {extensions.count} in a row, of {num_bytes:,} bytes; "
                f"at most {MAX_EXTENSIONS} of {MAX_EXTENSION_BYTES:,} bytes are read: unpack it and give the folder",
            )
        data = self._read(position + BLOCK_BYTES, num_bytes)
        if len(data) < num_bytes:
            raise self._error(position, f"an extension header of {num_bytes:,} bytes reaches beyond its end; {_AGAIN}")
        if kind == b"L":
            extensions.name = data.split(b"\0", 1)[0]
        elif kind != b"K":  # K: the target of a link, and links are refused
            self._extend_pax(extensions, data, position, is_global=kind == b"g")

    def member(self, header: bytes, kind: bytes, position: int, num_bytes: int, extensions: _Extensions) -> Member:
        raw = extensions.name if extensions.name is not None else _header_name(header)
        name = raw.decode("utf-8", "surrogateescape")
        if extensions.num_bytes is not None:
            num_bytes = extensions.num_bytes
        is_directory = kind == b"5" or (kind in (b"0", b"\0") and name.endswith("/"))
        if not is_directory and kind not in (b"0", b"\0", b"7"):
            what = _REFUSED.get(kind, f"of the unknown type {kind.decode('latin-1')!a}")
            raise self._error(position, f"it is {what}, expected plain files: unpack it and give the folder", name)
        if is_directory and num_bytes:
            raise self._error(position, f"a directory with {num_bytes:,} bytes of content; {_AGAIN}", name)
        left = self._stop - position - BLOCK_BYTES
        if num_bytes > left:
            raise self._error(position, f"it should have {num_bytes:,} bytes, only {left:,} follow; {_AGAIN}", name)
        return Member(name, position + BLOCK_BYTES, num_bytes, is_directory)

    def check_end(self, position: int, extensions: _Extensions) -> None:
        """Raise SourceError unless a second zero block follows the first, and only zeros after it."""
        if extensions.count:
            raise self._error(position, f"an extension header without its member; {_AGAIN}")
        tail = self._read(position + BLOCK_BYTES, MAX_TAIL_BYTES + 1)
        if len(tail) < BLOCK_BYTES:
            raise self._error(position, "it ends inside its end marker: it is truncated, download it again")
        if tail.count(0) != len(tail):
            raise self._error(position, "more data follow its end marker; expected one archive: unpack it instead")
        if len(tail) > MAX_TAIL_BYTES:
            raise self._error(position, f"over {MAX_TAIL_BYTES:,} bytes follow its end marker; {_AGAIN}")

    def _extend_pax(self, extensions: _Extensions, data: bytes, position: int, *, is_global: bool) -> None:
        at = 0
        while at < len(data):
            match = _PAX_RECORD.match(data, at)
            end = at + int(match[1]) if match else 0
            if match is None or end > len(data) or end <= match.end() or data[end - 1 : end] != b"\n":
                raise self._error(position, f"a PAX header that cannot be read; {_AGAIN}")
            key, value = match[2], data[match.end() : end - 1]
            if key.startswith(b"GNU.sparse"):
                raise self._error(position, "a sparse file, expected plain files: unpack it and give the folder")
            if key in (b"path", b"size"):
                if is_global or not value or (key == b"size" and not re.fullmatch(rb"[0-9]{1,15}", value)):
                    raise self._error(position, f"a PAX header with an impossible {key.decode()}; {_AGAIN}")
                if key == b"path":
                    extensions.name = value
                else:
                    extensions.num_bytes = int(value)
            at = end

    def _read(self, offset: int, num_bytes: int) -> bytes:
        return self._reader.read(offset, max(0, min(num_bytes, self._stop - offset)))

    def _no_number(self, field: bytes, position: int) -> int:
        if not field.strip(b" \0"):
            return 0
        raise self._error(position, f"not a tar header: {field.decode('latin-1')!a} is not a number; {_AGAIN}")

    def _error(self, position: int, what: str, member: str = "") -> SourceError:
        return damaged(self._reader, position, what, member=member, within=self._within)


def _sum_of(field: bytes) -> int:
    """Return the sum of at most 256 bytes: the low half of an Adler-32 is 1 more, modulo 65,521, and they have less.

    It takes a tenth of the time of `sum`.
    """
    return (zlib.adler32(field) & 0xFFFF) - 1


def _header_name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    if header[257:263] == b"ustar\0":  # GNU's "ustar  " has other fields where POSIX has the prefix
        prefix = header[345:500].split(b"\0", 1)[0]
        if prefix:
            return prefix + b"/" + name
    return name


def _ustar(name: bytes, num_bytes: int, kind: bytes = _FILE, prefix: bytes = b"") -> bytes:
    before, after, checksum = _around_checksum(num_bytes, kind, prefix)
    return b"".join((name.ljust(NAME_BYTES, b"\0"), before, b"%06o\0 " % (checksum + _sum_of(name)), after))


@lru_cache(maxsize=8192)  # sizes of small files repeat
def _around_checksum(num_bytes: int, kind: bytes, prefix: bytes) -> tuple[bytes, bytes, int]:
    """Return a header's fields between name and checksum, and after that, and the sum of all bytes but the name."""
    before = _MODE_OWNER + b"%011o\0" % num_bytes + _MTIME
    after = kind + _LINK_TO_DEVICE + prefix.ljust(_PREFIX_BYTES + 12, b"\0")
    return before, after, sum(before) + sum(after) + 8 * ord(" ")  # its own bytes count as blanks
