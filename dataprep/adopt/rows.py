"""What is noted of one sample of adopted data, and how a shard's samples become a row group of the index."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dataprep.checks.hashes import name_hash
from dataprep.checksums import crc32c_of
from dataprep.columns import table_of
from dataprep.errors import SourceError
from dataprep.formats.checked import MAX_SIDE, is_key
from dataprep.sources.archives import ByteReader, damaged
from dataprep.sources.keys import IMAGE_SUFFIXES, key_of, name_bytes, shown
from dataprep.workspace import index_schema

if TYPE_CHECKING:
    import pyarrow as pa

MAX_CLASSES = 1_000_000
"""Where no class list says how many there are: a larger label is an identifier."""
NO_LABELS = "none"
"""What `--labels` takes for data whose labels are not wanted."""
_INTEGER = re.compile(r"\s*-?\d{1,18}\s*")


class AdoptedRow(NamedTuple):
    """One sample. Offsets and sizes are bytes of the stored object that holds it."""

    key: str
    record_offset: int
    record_bytes: int
    image_offset: int
    image_bytes: int
    image_crc32c: int | None
    label: int
    height: int | None
    width: int | None
    file: str = ""
    """Of an image folder: the object that is the image."""


def rows_table(rows: Sequence[AdoptedRow], shard: int, *, with_files: bool) -> pa.Table:
    """A row group of the index."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(AdoptedRow._fields)
    key, *rest, file = columns
    values = [key, (shard,) * len(rows), *rest]
    return table_of([*values, file] if with_files else values, index_schema(with_files=with_files))


def key_from(text: str) -> str:
    """The key for a name that other tools gave a sample: as it is where it can be one, escaped where not.

    Args:
        text: With `/` between folders; an image's extension is left out.
    """
    *folders, last = [part for part in text.split("/") if part] or [""]
    stem, dot, suffix = last.rpartition(".")
    if not (dot and stem and suffix.lower() in IMAGE_SUFFIXES):
        stem = last
    path = "/".join([*folders, stem])
    return path if not path or is_key(path) else key_of([*folders, f"{stem}."])


def key_in_shard(shard: str, key: str) -> str:
    """The key of a sample that has none of its own, or one that another shard has, too.

    Args:
        shard: The shard's file.
        key: What is unique in it, a key already.
    """
    stem = shard.removesuffix(".tar").removesuffix(".tfrecord")
    joined = f"{key_of([*stem.split('/'), '_'])[:-2]}/{key}"
    return _fitted(joined)


def distinct_key(row_key: str, shard: str, file: str, again: int) -> str:
    """Another key for a sample whose own is there twice in its split, ignoring case.

    Args:
        row_key: Its own.
        shard: Its shard's file, which goes in front.
        file: Of an image folder instead: what tells `a.jpg` from `a.png` and `A.jpg` is the file's whole name.
        again: How many samples of that key come before it in its shard.
    """
    if file:
        return _fitted(f"{row_key}=00{crc32c_of(name_bytes(file)):08X}")
    return key_in_shard(shard, f"{row_key}=00{again}" if again else row_key)


def key_hash(key: str) -> int:
    """Equal for keys that differ in case only."""
    return name_hash(key.lower())


def label_from(value: object, num_classes: int, field: str) -> int:
    """A label as stored: an integer, or text of one.

    Args:
        num_classes: Labels are below it; -1 stands for none.
        field: Where it was found, for the message.

    Raises:
        SourceError: It is none; the text is a clause.
    """
    label = int(value) if isinstance(value, str) and _INTEGER.fullmatch(value) else value
    if isinstance(label, int) and not isinstance(label, bool) and -1 <= label < num_classes:
        return label
    raise SourceError(
        f"label {shown(str(value))} in {shown(field)}, expected an integer from 0 to {num_classes - 1:,}: say which "
        f"field holds it with --labels FIELD, or leave it out with --labels {NO_LABELS}"
    )


def side_from(value: object) -> int | None:
    """A height or width in pixels; None where it is none that an image can have."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_SIDE else None


def crc32c_number(text: str | None) -> int | None:
    """A CRC32C as Cloud Storage writes it, as a number."""
    return int.from_bytes(base64.b64decode(text), "big") if text else None


def read_small(reader: ByteReader, offset: int, num_bytes: int, most: int, *, member: str) -> bytes:
    """A text beside an image. Raises SourceError where it has more than `most` bytes."""
    if num_bytes > most:
        raise damaged(reader, offset, f"{num_bytes:,} bytes, expected at most {most:,}", member=member)
    return reader.read(offset, num_bytes)


def _fitted(key: str) -> str:
    """The key, cut and closed with a hash where it is too long."""
    return key if is_key(key) else key_of(key.split("/"))
