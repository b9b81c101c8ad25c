"""Counts how the rows of a shard of img2dataset ended, from the shard's sidecars.

The stats of a shard that `dataprep retry-failed` added say which rows the shard counts instead of older ones.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dataprep.dataset.documents import decode
from dataprep.errors import FormatError
from dataprep.formats.img2dataset import STATUSES, reason_of, sidecars_of
from dataprep.storage import Storage
from dataprep.storage.parquet import read_columns


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Numbers of rows of a shard, less the rows that an older shard has, too."""

    statuses: Counter[str]
    reasons: Counter[str]
    """Rows by reason; `success` for rows that have none."""


@dataclass(frozen=True, slots=True)
class _Before:
    """How rows that were tried again had ended before."""

    statuses: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Stats:
    """What is read of a shard's stats."""

    before: _Before = field(default_factory=_Before)


def count_rows(storage: Storage, shard: str) -> RowCounts:
    """Count how the rows of a shard ended.

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
    try:
        data = storage.read(stats)
    except FileNotFoundError as error:
        raise FormatError(f"{where} ({error}); restore it") from error
    before = decode(data, _Stats, where=where, advice="restore it").before
    counts.statuses.subtract(before.statuses)
    counts.reasons.subtract(before.reasons)
    return counts
