"""Keys, sides and fields of adopted samples, read from values of other tools."""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count

from dataprep.dataset.features import MAX_FEATURES, STORED_ANEW
from dataprep.dataset.hashes import name_hash
from dataprep.formats.checked import MAX_SIDE, is_key
from dataprep.formats.tars import ByteReader, damaged
from dataprep.sources.keys import IMAGE_SUFFIXES, key_of, name_bytes
from dataprep.storage.checksums import crc32c_of

_SHOWABLE = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,100}")


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
    """Return a key for a sample that has none.

    Args:
        shard: The shard's file.
        key: A key that is unique in the shard.
    """
    return _fitted(f"{_prefix(shard)}/{key}")


def shard_prefixes(shards: Sequence[str]) -> list[str]:
    """Return a beginning of keys for each shard, so that keys of two shards differ: its name, with `=00` and its number
    if the name is that of another shard, ignoring case, or of a folder of one. No key of a name has `=00`.

    Args:
        shards: The files of the shards.
    """
    prefixes = [_prefix(shard) for shard in shards]
    alike, first = set[str](), ""
    for prefix in sorted(f"{prefix.lower()}/" for prefix in prefixes):
        if first and prefix.startswith(first):
            alike |= {first, prefix}
        else:
            first = prefix
    return [
        f"{prefix}=00{number}" if f"{prefix.lower()}/" in alike else prefix for number, prefix in enumerate(prefixes)
    ]


def distinct_keys(row_key: str, prefix: str, file: str, again: int) -> Iterator[str]:
    """Yield other keys for a sample whose key occurs more than once in its split, ignoring case; the first one that no
    other sample has is taken.

    Args:
        row_key: The sample's key.
        prefix: The beginning of the keys of the sample's shard; see `shard_prefixes`.
        file: For an image folder, the file, used instead of the shard: it distinguishes `a.jpg`, `a.png` and `A.jpg`.
        again: Number of earlier samples of the shard with this key.
    """
    key, first = f"{prefix}/{row_key}", again
    if file:
        key, first = f"{row_key}=00{crc32c_of(name_bytes(file)):08X}", 0
    for number in count(first):
        yield _fitted(f"{key}=00{number}" if number else key)


def key_hash(key: str) -> int:
    """Return a hash that is equal for keys that differ in case only."""
    return name_hash(key.lower())


def side_from(value: object) -> int | None:
    """Return a height or width in pixels; None for an impossible one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_SIDE else None


def listed_fields(fields: Counter[str]) -> Counter[str]:
    """Return the fields to list, with the number of samples that have each: the most frequent ones, without those of
    every dataset, such as height, and without names that no message can show."""
    named = {name: count for name, count in fields.items() if name not in STORED_ANEW and _SHOWABLE.fullmatch(name)}
    return Counter(dict(Counter(named).most_common(MAX_FEATURES)))


def crc32c_number(text: str | None) -> int | None:
    """Read a CRC32C that Cloud Storage wrote."""
    return int.from_bytes(base64.b64decode(text), "big") if text else None


def read_small(reader: ByteReader, offset: int, num_bytes: int, most: int, *, member: str) -> bytes:
    """Read a text that is stored with an image. Raises SourceError if it has more than `most` bytes."""
    if num_bytes > most:
        raise damaged(reader, offset, f"{num_bytes:,} bytes, expected at most {most:,}", member=member)
    return reader.read(offset, num_bytes)


def _prefix(shard: str) -> str:
    """Return the file of a shard, without extension, in the characters of keys."""
    stem = shard.removesuffix(".tar").removesuffix(".tfrecord")
    return key_of([*stem.split("/"), "_"])[:-2]


def _fitted(key: str) -> str:
    """Return the key; if it is too long, shortened and ended by a hash."""
    return key if is_key(key) else key_of(key.split("/"))
