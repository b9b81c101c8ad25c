"""Turns the name of a file or archive member into a sample's key, and decides which names are images.

Names are hostile input. A name that is absolute, climbs out of its folder or holds a backslash, NUL or line end is
refused in any case. Every other name must have an image's suffix, or be one of the few that are skipped:

- with a component that begins with a dot (`._x.jpg`, `.DS_Store`), or that a system leaves (`__MACOSX`, `Thumbs.db`);
- README, LICENSE or COPYING, bare or with `.txt` or `.md`.

Anything else is refused as well: a sample must not vanish because its name is unusual.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from dataprep.dataset.paths import CLOSE, READABLE_SUFFIXES, is_hidden_name
from dataprep.dataset.records import MAX_KEY_BYTES
from dataprep.errors import SourceError
from dataprep.storage.base import FORBIDDEN

MAX_NAME_BYTES = 4096
"""Maximum length of an original name: no file system stores a longer path."""
IMAGE_SUFFIXES = READABLE_SUFFIXES | {"tif", "tiff"}
"""Suffixes by which a name is an image's; the real format is decided by the file's content, so a TIFF is rejected."""

_HASH_DIGITS = 32
_PLAIN = re.compile(r"[A-Za-z0-9_/-]*")
_METADATA = re.compile(r"(?<![^/])_(?=_)")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
_OTHER = re.compile(rb"[^A-Za-z0-9_/-]")
_DRIVE = re.compile(r"[A-Za-z]:")
PAPERS = frozenset({"readme", "license", "copying"})
"""Names of files about a dataset, without their suffixes."""


def name_parts(name: str) -> tuple[str, ...]:
    """Split a member's or file's path into components without `.` and empty ones; the root of an archive has none.

    Args:
        name: With `/` between components; bytes that are no UTF-8 as surrogate escapes.

    Raises:
        SourceError: The name is absolute, climbs out, is longer than a path can be, or holds a backslash, a NUL, a line
            end or bytes that are no text. The message is a clause: the caller puts the archive in front.
    """
    if _PLAIN_PATH.fullmatch(name) and len(name) <= MAX_NAME_BYTES:
        return tuple(name.split("/"))
    num_bytes = len(name_bytes(name))
    if num_bytes > MAX_NAME_BYTES:
        raise SourceError(f"its name has {num_bytes:,} bytes, at most {MAX_NAME_BYTES:,} are taken")
    if any(character in FORBIDDEN for character in name):
        raise SourceError("its name holds a backslash, NUL or line end")
    if name.startswith("/") or _DRIVE.match(name):
        raise SourceError("its name is absolute, expected a relative one")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise SourceError("its name climbs out of the archive ('..')")
    return parts


def is_image(parts: tuple[str, ...]) -> bool:
    """Return whether a name is that of an image; False for a name to skip.

    Raises:
        SourceError: The name is neither; the message is a clause.
    """
    last = parts[-1]
    if is_hidden(parts):
        return False
    stem, dot, suffix = last.rpartition(".")
    if dot and suffix.lower() in IMAGE_SUFFIXES:
        return True
    if (stem if dot and suffix.lower() in ("txt", "md") else last).lower() in PAPERS:
        return False
    raise SourceError("it is no image by its name (.jpg, .jpeg, .png ...) and no file that is known to be safe to skip")


def is_hidden(parts: tuple[str, ...]) -> bool:
    """Return whether a path is hidden or of the system, like the files that macOS, Windows and shells leave behind."""
    return is_hidden_name("/".join(parts))


def key_of(parts: Sequence[str]) -> str:
    """Return the key of a path: without its extension, in `[A-Za-z0-9_/-]`, any other byte as `=XX`.

    The first of two underscores that begin a component becomes `=5F`: readers of shards take `__` for metadata.
    Two paths that differ in more than the extension have different keys. A key of more than 200 bytes is shortened, and
    ends with `=00` and 32 hexadecimal digits of the whole key's SHA-256.
    """
    folder, last = parts[:-1], parts[-1]
    stem, dot, _ = last.rpartition(".")
    path = "/".join([*folder, stem if dot and stem else last])
    key = path
    if not _PLAIN.fullmatch(path):
        key = _OTHER.sub(lambda match: b"=%02X" % match.group()[0], name_bytes(path)).decode()
    if "__" in key:
        key = _METADATA.sub("=5F", key)
    if len(key) <= MAX_KEY_BYTES:
        return key
    head = key[: MAX_KEY_BYTES - len(CLOSE) - _HASH_DIGITS]
    cut = head.rfind("=", len(head) - 2)
    head = head if cut < 0 else head[:cut]  # never half an `=XX`
    return head + CLOSE + hashlib.sha256(key.encode()).hexdigest()[:_HASH_DIGITS]


def is_file_of_image(source: str) -> bool:
    """Return whether an original file is an image itself, by its name, and no archive that holds it."""
    return source.rpartition(".")[2].lower() in IMAGE_SUFFIXES


def name_bytes(name: str) -> bytes:
    """Return the bytes from which a name was decoded."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise SourceError("its name is no text") from error
