"""What img2dataset says of its rows: which became samples, and why the others did not.

Its reasons are the texts of Python's exceptions; here they become the fixed phrases of docs/fetching.md. A shard that
`dataprep retry-failed` added says in its stats which rows it counts instead of older ones.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from dataprep.errors import FormatError
from dataprep.laion.beside import read_beside
from dataprep.laion.collect import STATUSES
from dataprep.storage import Storage

SHARD = re.compile(r"((?:.*/)?)(\d+)\.(?:tar|tfrecord)")
"""How it names shards: a folder, and a number."""
OTHER = "other"
"""Whatever has no phrase."""

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
"""The first that is found in a text tells."""
_HTTP = re.compile(r"HTTP Error (\d{3})(?!.*redirect error)")
_PHRASE = re.compile(r"[a-z]+(?: [a-z]+){0,4}|http \d{3}")
"""What is one already: ours, and img2dataset's own such as `image too small`."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """The rows of a shard, less those of which an older shard has a row, too."""

    statuses: Counter[str]
    reasons: Counter[str]
    """`success` for those that have none."""


@lru_cache(maxsize=1 << 12)
def reason_of(text: str) -> str:
    """The phrase for what stands in `error_message`; a phrase is left as it is."""
    answer = _HTTP.match(text)
    if answer:
        return f"http {answer[1]}"
    found = next((reason for pattern, reason in _WORDING if pattern.search(text)), OTHER)
    return text if found is OTHER and _PHRASE.fullmatch(text) else found


def beside(shard: str) -> tuple[str, str]:
    """The parquet file and the stats beside a shard."""
    stem = shard.rpartition(".")[0]
    return f"{stem}.parquet", f"{stem}_stats.json"


def count_rows(storage: Storage, shard: str) -> RowCounts:
    """How the rows of a shard ended.

    Raises:
        FormatError: The files beside it are missing, damaged, or somebody else's.
    """
    parquet, stats = beside(shard)
    table = read_beside(storage, parquet, ("status", "error_message"))
    statuses, messages = (table.column(name).to_pylist() for name in ("status", "error_message"))
    ends = zip(messages, statuses, strict=True)
    reasons = (reason_of(message) if message else status for message, status in ends)
    counts = RowCounts(Counter(statuses), Counter(reasons))
    if unknown := sorted(map(str, set(counts.statuses) - set(STATUSES)))[:3]:
        raise FormatError(f"{storage.url_of(parquet)}: status {', '.join(unknown)}, expected {', '.join(STATUSES)}")
    try:
        before = json.loads(storage.read(stats)).get("before", {})
        counts.statuses.subtract(before.get("statuses", {}))
        counts.reasons.subtract(before.get("reasons", {}))
    except (FileNotFoundError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{storage.url_of(stats)}: no stats of img2dataset ({error}); restore it") from error
    return counts
