"""The names, statuses and reasons that img2dataset writes next to images, and its TFRecords as TFDS numbers them.

`dataprep build laion` writes the same. img2dataset's reasons are the texts of Python's exceptions; `reason_of` maps
them to the fixed phrases of docs/fetching.md.

TFDS numbers shards from 0 and pads their numbers to one width. A missing number is listed as a shard of no samples,
which TFDS does not open.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache

from dataprep.errors import FormatError

IMG2DATASET = "img2dataset"
"""Name that `adopt` gives to data written by img2dataset."""
SUCCESS, FAILED_TO_DOWNLOAD, FAILED_TO_RESIZE = "success", "failed_to_download", "failed_to_resize"
"""Statuses of rows in img2dataset's own words."""
FILTERED, DUPLICATE = "filtered", "duplicate"
"""Statuses of rows that a filter excluded, and of rows dropped as duplicates of an earlier row of the shard."""
STATUSES = (SUCCESS, FAILED_TO_DOWNLOAD, FAILED_TO_RESIZE, FILTERED, DUPLICATE)
SHARD = re.compile(r"((?:.*/)?)(\d+)\.(?:tar|tfrecord)")
"""Pattern of shard names: a folder and a number."""
OTHER = "other"
"""Reason if no phrase fits."""
_WORDING = tuple(
    (re.compile(pattern, re.IGNORECASE), reason)
    for pattern, reason in (
        (r"redirect error", "redirect"),
        (r"name or service not known|name resolution|no address associated|getaddrinfo|nodename nor servname", "dns"),
        (r"timed out", "timeout"),
        (r"incomplete\s?read", "incomplete"),
        (r"certificate|\[SSL|_ssl\.c|tlsv1", "tls"),
        (r"connection (?:reset|refused|aborted)|closed connection|broken pipe|no route|unreachable", "connect"),
        (r"X-Robots-Tag", "opt out"),
        (r"unknown url type|no host|control characters|nonnumeric port|codec can't|label (?:empty|too)", "bad url"),
        (r"BadStatusLine|got more than|chunk size", "protocol"),
        (r"image decoding error", "undecodable"),
    )
)  # fmt: skip
"""Patterns and their phrases; the first pattern found in a text decides."""
_HTTP = re.compile(r"HTTP Error (\d{3})(?!.*redirect error)")
_PHRASE = re.compile(r"[a-z]+(?: [a-z]+){0,4}|http \d{3}")
"""Reasons that are phrases already: this project's, and img2dataset's own such as `image too small`."""
DESCRIPTION = "Images that img2dataset fetched, with their captions, described by dataprep adopt."
"""Text that identifies a `dataset_info.json` as this project's."""
MAX_SHARDS = 1_000_000
"""Exclusive upper bound of shard numbers."""
_MIN_DIGITS = 5


@lru_cache(maxsize=1 << 12)
def reason_of(text: str) -> str:
    """Return the phrase for an `error_message`; a phrase is left as it is."""
    answer = _HTTP.match(text)
    if answer:
        return f"http {answer[1]}"
    found = next((reason for pattern, reason in _WORDING if pattern.search(text)), OTHER)
    return text if found is OTHER and _PHRASE.fullmatch(text) else found


def sidecars_of(shard: str) -> tuple[str, str]:
    """Return the names of a shard's sidecars: the parquet file of all its rows, and the stats."""
    stem = shard.rpartition(".")[0]
    return f"{stem}.parquet", f"{stem}_stats.json"


def is_ours(data: bytes) -> bool:
    """Return whether `adopt` wrote a `dataset_info.json`."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("description") == DESCRIPTION


def numbered(shards: Iterable[tuple[str, int]]) -> tuple[str, list[int]]:
    """Return the template of the names of existing shards, as TFDS has it, and the samples of each by its number.
    Raises FormatError if no template of TFDS gives them their names."""
    lengths: dict[int, int] = {}
    names = []
    for name, length in shards:
        match = SHARD.fullmatch(name)
        if match is None or not name.endswith(".tfrecord"):
            raise FormatError(f"{name}, expected names such as 00000.tfrecord")
        names.append(name)
        lengths[int(match[2])] = length
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
    return template, [lengths.get(number, 0) for number in range(last + 1)]


def escaped(text: str) -> str:
    """Double the braces of a text, because a template takes single ones as placeholders."""
    return text.replace("{", "{{").replace("}", "}}")
