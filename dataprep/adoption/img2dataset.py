"""Counts the statuses of the rows of an img2dataset shard, from the shard's sidecars.

The stats of a shard that `dataprep retry-failed` added hold the earlier statuses of its rows, which are subtracted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dataprep.dataset.documents import decode
from dataprep.errors import FormatError
from dataprep.formats.img2dataset import STATUSES, reason_of, sidecars_of
from dataprep.storage import Storage
from dataprep.storage.base import read_bounded
from dataprep.storage.parquet import read_columns

MAX_STATS_BYTES = 16 << 20
"""Maximum size of a shard's stats; they have a count for each reason, some kB."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Number of rows of a shard by status and reason, minus the earlier statuses of retried rows."""

    statuses: Counter[str]
    reasons: Counter[str]
    """Number of rows by reason; `success` for rows without a reason."""


@dataclass(frozen=True, slots=True)
class _Before:
    """Earlier statuses and reasons of rows that were tried again."""

    statuses: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Stats:
    """The part of a shard's stats that is read."""

    before: _Before = field(default_factory=_Before)


def count_rows(storage: Storage, shard: str) -> RowCounts:
    """Count the rows of a shard by status and reason.

    Raises:
        FormatError: The sidecars are missing, damaged, or of another tool.
    """
    parquet, stats = sidecars_of(shard)
    table = read_columns(storage, parquet, ("status", "error_message"))
    statuses, messages = (table.column(name).to_pylist() for name in ("status", "error_message"))
    ends = zip(messages, statuses, strict=True)
    reasons = (reason_of(message) if message else status for message, status in ends)
    counts = RowCounts(Counter(statuses), Counter(reasons))
    if unknown := sorted(map(str, set(counts.statuses) - set(STATUSES)))[:3]:
        raise FormatError(f"{storage.url_of(parquet)}: status {', '.join(unknown)}, expected {', '.join(STATUSES)}")
    where = f"{storage.url_of(stats)}: no stats of img2dataset"
    data = read_bounded(storage, stats, MAX_STATS_BYTES, advice="restore it")
    if data is None:
        raise FormatError(f"{where}: not found; restore it")
    before = decode(data, _Stats, where=where, advice="restore it").before
    counts.statuses.subtract(before.statuses)
    counts.reasons.subtract(before.reasons)
    return counts
