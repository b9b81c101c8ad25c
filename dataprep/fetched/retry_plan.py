"""The plan of a retry of failed rows: `_retry/plan.json`, and the rows that it tries.

_retry/plan.json              create-only; which revision it begins with, which rows, and where the rest lies
_retry/<id>/rows.parquet      rows to try: a row group for each new shard
_retry/<id>/receipts/, tmp/   as in a build (commit.py)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from dataprep.dataset.documents import Count, decode
from dataprep.dataset.paths import RETRY
from dataprep.errors import FormatError
from dataprep.storage import Storage
from dataprep.storage.parquet import open_parquet

if TYPE_CHECKING:
    import pyarrow.parquet as pq

RETRY_JSON = f"{RETRY}/plan.json"


class ChoiceEntry(TypedDict):
    """Which failed rows a retry takes, as its plan says; see `Choice`."""

    reasons: list[str]
    everything: NotRequired[bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPlan:
    """The plan of a retry, which `_retry/plan.json` holds."""

    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    revision: Count
    """Revision of the manifest with which the retry begins."""
    manifest_sha256: str
    choice: ChoiceEntry
    making: dict[str, Any] = field(default_factory=dict)
    """How img2dataset made its images, as far as the user said."""
    shard_rows: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=1)]
    """Rows of each new shard."""
    first_shard: Count
    """Number of the first new shard."""
    codecs: dict[str, str] = field(default_factory=dict)
    """Versions of libraries that every worker must have; dataprep 0.1.0 named none."""

    @property
    def root(self) -> str:
        return f"{RETRY}/{self.id}"


@dataclass(frozen=True, slots=True)
class _Named:
    """What tells one plan of a retry from another."""

    id: str


def read_plan(storage: Storage) -> RetryPlan | None:
    """Read the plan of a retry that was begun; None where there is none. Raises FormatError."""
    try:
        data = storage.read(RETRY_JSON)
    except FileNotFoundError:
        return None
    where = f"{storage.url_of(RETRY_JSON)}: no plan of a retry"
    plan = decode(data, RetryPlan, where=where, advice=f"remove {RETRY}/")
    if storage.stat(rows_file(plan.root)) is None:  # a cleaning up took it between
        clean_up(storage, plan)
        return None
    return plan


def id_of_plan(storage: Storage) -> str:
    """Return the id of the plan that is there now. Raises FileNotFoundError, or ValueError where it is none."""
    return msgspec.json.decode(storage.read(RETRY_JSON), type=_Named).id


def no_plan(storage: Storage, problem: str) -> FormatError:
    """Return the error for a plan that cannot be one."""
    return FormatError(f"{storage.url_of(RETRY_JSON)}: no plan of a retry: {problem}; remove {RETRY}/")


def rows_file(root: str) -> str:
    """Return the name of the rows that a retry tries."""
    return f"{root}/rows.parquet"


def open_rows(storage: Storage, root: str) -> pq.ParquetFile:
    """Open the rows that a retry tries: a row group for each new shard."""
    return open_parquet(storage, rows_file(root))


def clean_up(storage: Storage, plan: RetryPlan) -> None:
    """Remove what the retry wrote: its plan first, without which the rest does not count; nothing where another's plan
    is there."""
    try:
        if id_of_plan(storage) != plan.id:
            return
    except FileNotFoundError:
        pass
    storage.delete(RETRY_JSON)
    storage.delete_tree(RETRY)
    storage.remove_stale_spools()
