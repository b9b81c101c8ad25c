"""`dataset_info.json` for TFRecords that img2dataset wrote, so that TFDS reads the files under their existing names.

TFDS numbers shards from 0 and pads their numbers to one width. A missing number is listed as a shard of no samples,
which TFDS does not open.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from dataprep.errors import FormatError
from dataprep.formats.img2dataset import SHARD

DESCRIPTION = "Images that img2dataset fetched, with their captions, described by dataprep adopt."
"""Text that identifies a `dataset_info.json` as this project's."""
MAX_SHARDS = 1_000_000
"""Exclusive upper bound of shard numbers."""
_MIN_DIGITS = 5


def is_ours(data: bytes) -> bool:
    """Return whether `adopt` wrote a `dataset_info.json`."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("description") == DESCRIPTION


class Numbered(NamedTuple):
    """Names and lengths of shards, as TFDS describes them."""

    template: str
    """The `filepathTemplate`."""
    lengths: list[int]
    """Samples of each shard, by its number."""


def numbered(shards: Iterable[tuple[str, int]]) -> Numbered:
    """Describe existing shards to TFDS. Raises FormatError if no template of TFDS gives them their names."""
    lengths: dict[int, int] = {}
    names = []
    for name, length in shards:
        names.append(name)
        lengths[_number(name)] = length
    last = max(lengths)
    if last >= MAX_SHARDS:
        raise FormatError(f"shard number {last:,}, expected less than {MAX_SHARDS:,}")
    width = max(_MIN_DIGITS, len(str(last + 1)))
    first = SHARD.fullmatch(names[0])
    folder, digits = (first[1], first[2]) if first else ("", "")
    expected = {f"{folder}{number:0{len(digits)}d}.tfrecord" for number in lengths}
    if len(digits) < width or set(names) != expected:
        odd = min(set(names) - expected, default=names[0])
        raise FormatError(f"{odd}, expected numbers of one width, {width} digits or more")
    template = f"{escaped(folder)}{'0' * (len(digits) - width)}{{SHARD_INDEX}}.{{FILEFORMAT}}"
    return Numbered(template, [lengths.get(number, 0) for number in range(last + 1)])


def _number(name: str) -> int:
    match = SHARD.fullmatch(name)
    if match is None or not name.endswith(".tfrecord"):
        raise FormatError(f"{name}, expected names such as 00000.tfrecord")
    return int(match[2])


def escaped(text: str) -> str:
    """Double the braces of a text, because a template takes single ones as placeholders."""
    return text.replace("{", "{{").replace("}", "}}")
