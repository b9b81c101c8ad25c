"""Keys, labels and sides of adopted samples, read from values of other tools."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

from dataprep.dataset.hashes import name_hash
from dataprep.errors import SourceError
from dataprep.formats.checked import MAX_SIDE, is_key
from dataprep.formats.tars import ByteReader, damaged
from dataprep.messages import shown
from dataprep.sources.keys import IMAGE_SUFFIXES, key_of, name_bytes
from dataprep.storage.checksums import crc32c_of

if TYPE_CHECKING:
    pass

MAX_CLASSES = 1_000_000
"""Maximum number of classes without a class list: a larger label is an identifier and not a class."""
NO_LABELS = "none"
"""Value of `--labels` for data whose labels are to be ignored."""
_INTEGER = re.compile(r"\s*-?\d{1,18}\s*")


def key_from(text: str) -> str:
    """Return the key for the name that another tool gave a sample: unchanged if it is a valid key, else escaped.

    Args:
        text: The name, with `/` between folders; an image's extension is removed.
    """
    *folders, last = [part for part in text.split("/") if part] or [""]
    stem, dot, suffix = last.rpartition(".")
    if not (dot and stem and suffix.lower() in IMAGE_SUFFIXES):
        stem = last
    path = "/".join([*folders, stem])
    return path if not path or is_key(path) else key_of([*folders, f"{stem}."])


def key_in_shard(shard: str, key: str) -> str:
    """Return a key for a sample that has no key, or whose key also occurs in another shard.

    Args:
        shard: The shard's file.
        key: A key that is unique in the shard.
    """
    stem = shard.removesuffix(".tar").removesuffix(".tfrecord")
    joined = f"{key_of([*stem.split('/'), '_'])[:-2]}/{key}"
    return _fitted(joined)


def distinct_key(row_key: str, shard: str, file: str, again: int) -> str:
    """Return another key for a sample whose key occurs more than once in its split, ignoring case.

    Args:
        row_key: The sample's key.
        shard: The sample's shard, which becomes the key's prefix.
        file: For an image folder, the file, used instead of the shard: it distinguishes `a.jpg`, `a.png` and `A.jpg`.
        again: Number of earlier samples of the shard with this key.
    """
    if file:
        return _fitted(f"{row_key}=00{crc32c_of(name_bytes(file)):08X}")
    return key_in_shard(shard, f"{row_key}=00{again}" if again else row_key)


def key_hash(key: str) -> int:
    """Return a hash that is equal for keys that differ in case only."""
    return name_hash(key.lower())


def label_from(value: object, num_classes: int, field: str) -> int:
    """Read a stored label: an integer, or the text of one.

    Args:
        value: The value that was stored.
        num_classes: Number of classes; labels are below it, and -1 means no label.
        field: Field that held the value, for the message.

    Raises:
        SourceError: The value is no label; the text is a clause.
    """
    label = int(value) if isinstance(value, str) and _INTEGER.fullmatch(value) else value
    if isinstance(label, int) and not isinstance(label, bool) and -1 <= label < num_classes:
        return label
    raise SourceError(
        f"label {shown(str(value))} in {shown(field)}, expected an integer from 0 to {num_classes - 1:,}: name the "
        f"field that holds it with --labels FIELD, or ignore labels with --labels {NO_LABELS}"
    )


def side_from(value: object) -> int | None:
    """Return a height or width in pixels; None for an impossible one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_SIDE else None


def crc32c_number(text: str | None) -> int | None:
    """Read a CRC32C that Cloud Storage wrote."""
    return int.from_bytes(base64.b64decode(text), "big") if text else None


def read_small(reader: ByteReader, offset: int, num_bytes: int, most: int, *, member: str) -> bytes:
    """Read a text that is stored with an image. Raises SourceError if it has more than `most` bytes."""
    if num_bytes > most:
        raise damaged(reader, offset, f"{num_bytes:,} bytes, expected at most {most:,}", member=member)
    return reader.read(offset, num_bytes)


def _fitted(key: str) -> str:
    """Return the key; if it is too long, shortened and ended by a hash."""
    return key if is_key(key) else key_of(key.split("/"))
