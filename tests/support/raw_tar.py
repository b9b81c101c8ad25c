"""Tar files byte by byte, also those that no program would write."""

from __future__ import annotations

END = bytes(1024)
RECORD = 10_240


def header(
    name: bytes,
    num_bytes: int = 0,
    kind: bytes = b"0",
    *,
    size_field: bytes | None = None,
    checksum: bytes | None = None,
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
    link: bytes = b"",
) -> bytes:
    """One header block; `size_field` and `checksum` replace what would be right."""
    size = b"%011o\0" % num_bytes if size_field is None else size_field
    block = name[:100].ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + size + b"00000000000\0" + b" " * 8
    block += kind + link[:100].ljust(100, b"\0") + magic + bytes(80) + prefix.ljust(155, b"\0") + bytes(12)
    total = b"%06o\0 " % sum(block) if checksum is None else checksum
    return block[:148] + total + block[156:]


def member(name: bytes, data: bytes = b"", kind: bytes = b"0", **fields: bytes | None) -> bytes:
    """A header with its data."""
    return header(name, len(data), kind, **fields) + data + bytes(-len(data) % 512)  # type: ignore[arg-type]


def pax(*records: tuple[bytes, bytes], kind: bytes = b"x") -> bytes:
    """A PAX header for the member that follows."""
    return member(b"PaxHeaders/x", b"".join(_record(key, value) for key, value in records), kind)


def gnu_name(name: bytes) -> bytes:
    """GNU tar's header for a long name."""
    return member(b"././@LongLink", name + b"\0", b"L")


def tar(*members: bytes, end: bytes = END) -> bytes:
    """A whole archive, filled up to a record."""
    body = b"".join(members) + end
    return body + bytes(-len(body) % RECORD)


def tar_of(members: list[tuple[str, bytes]]) -> bytes:
    """A tar of files by name."""
    return tar(*(member(name.encode(), data) for name, data in members))


def _record(key: bytes, value: bytes) -> bytes:
    body = b" " + key + b"=" + value + b"\n"
    length = len(body)
    while len(b"%d" % length) + len(body) != length:
        length = len(b"%d" % length) + len(body)
    return b"%d" % length + body
