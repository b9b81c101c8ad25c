"""What img2dataset writes beside images: names of shards and sidecars, how a row ended, and the reasons of failures.

`dataprep build laion` writes the same. img2dataset's reasons are the texts of Python's exceptions; `reason_of` maps
them to the fixed phrases of docs/fetching.md.
"""

from __future__ import annotations

import re
from functools import lru_cache

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
"""Reasons that are phrases already: those of this project, and img2dataset's own such as `image too small`."""


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
