"""Writes the headers of a tar's members, each from the member's name and size alone.

The format is that of POSIX.1-1988 ("ustar"), and of POSIX.1-2001 ("pax") for names that ustar cannot hold.
"""

from __future__ import annotations

from collections.abc import Mapping

BLOCK_BYTES = 512
NAME_BYTES = 100

# A ustar header consists of name, _MODE_OWNER, size, _MTIME, checksum, type, _LINK_TO_DEVICE, prefix and 12 zeros.
_MODE_OWNER = b"0000644\0" + b"0000000\0" * 2
_MTIME = b"0" * 11 + b"\0"
_LINK_TO_DEVICE = bytes(100) + b"ustar\x0000" + bytes(80)
_FILE, EXTENDED = b"0", b"x"
# The checksum counts its own eight bytes as blanks.
_FIXED_SUM = sum(_MODE_OWNER) + sum(_MTIME) + sum(_LINK_TO_DEVICE) + 8 * ord(" ")
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


def member(key: bytes, suffix: bytes, data: bytes) -> bytes:
    """Return a whole member: headers, data, zeros up to the next block."""
    return header(key, suffix, len(data)) + data + bytes(-len(data) % BLOCK_BYTES)


def members_around(key: bytes, suffix: bytes, image_bytes: int, fields: Mapping[bytes, bytes]) -> tuple[bytes, bytes]:
    """Return the bytes of a sample before and after its image, whose own bytes are not copied.

    Args:
        key: Key of the sample, with which the names of all its members begin.
        suffix: Suffix of the image's name.
        image_bytes: Size of the image.
        fields: Contents of the members that follow, by suffix.
    """
    after = bytes(-image_bytes % BLOCK_BYTES)
    for name, data in fields.items():
        after += member(key, name, data)
    return header(key, suffix, image_bytes), after


def header(key: bytes, suffix: bytes, num_bytes: int) -> bytes:
    """Return all blocks before a member's data: one, or three where ustar's fields cannot hold the name."""
    name = key + suffix
    if len(name) <= NAME_BYTES:
        return _ustar(b"", name, num_bytes, _FILE)
    slash = name.find(b"/", len(name) - NAME_BYTES - 1)  # the first slash after which the rest fits
    if 0 < slash <= _PREFIX_BYTES:
        return _ustar(name[:slash], name[slash + 1 :], num_bytes, _FILE)
    record = _extended_record(name)
    return (
        _ustar(b"", _EXTENDED_NAME, len(record), EXTENDED)
        + record.ljust(BLOCK_BYTES, b"\0")
        + _ustar(b"", name[:NAME_BYTES], num_bytes, _FILE)
    )


def _extended_record(name: bytes) -> bytes:
    """Return `<length> path=<name>` and a line end. The length counts itself: three digits for names this long."""
    return b"%d path=%b\n" % (len(b"100 path=\n") + len(name), name)


def _ustar(prefix: bytes, name: bytes, num_bytes: int, kind: bytes) -> bytes:
    size = b"%011o\0" % num_bytes
    checksum = _FIXED_SUM + sum(name) + sum(size) + ord(kind) + sum(prefix)
    name = name.ljust(NAME_BYTES, b"\0")
    prefix = prefix.ljust(_PREFIX_BYTES + 12, b"\0")
    return b"".join((name, _MODE_OWNER, size, _MTIME, b"%06o\0 " % checksum, kind, _LINK_TO_DEVICE, prefix))
