"""The plan of a retry of failed rows: `_retry/plan.json`, and the rows that it tries.

_retry/plan.json              create-only; the revision that it begins with, the chosen rows, and the id
_retry/<id>/rows.parquet      rows to try: a row group for each new shard
_retry/<id>/receipts/, tmp/   as in a build (commit.py)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, TypedDict

from msgspec import Meta

from dataprep.dataset.documents import Count, decode, decoder
from dataprep.dataset.manifest import MAX_SHARDS, read_manifest
from dataprep.dataset.paths import RETRY, RETRY_JSON
from dataprep.errors import FormatError
from dataprep.fetched.names import ShardNames
from dataprep.storage import Storage
from dataprep.storage.base import read_bounded
from dataprep.storage.parquet import ParquetFile, open_parquet

MAX_PLAN_BYTES = 64 << 20
"""Maximum size of the plan; it has a number for each new shard."""
_ADVICE = f"remove {RETRY}/"


class ChoiceEntry(TypedDict):
    """Choice of failed rows in a retry's plan; see `Choice`."""

    reasons: list[str]
    everything: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPlan:
    """The plan of a retry, as `_retry/plan.json` holds it."""

    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    revision: Count
    """Revision of the manifest with which the retry begins."""
    manifest_sha256: str
    choice: ChoiceEntry
    shard_rows: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=1, max_length=MAX_SHARDS)]
    """Number of rows of each new shard."""
    first_shard: Count
    """Number of the first new shard."""
    codecs: dict[str, str]
    """Versions of libraries that every worker must have."""
    cards: dict[str, str] = field(default_factory=dict)
    """SHA-256 digests of the dataset's cards, by name; only of those that nobody has edited, which are replaced."""

    @property
    def root(self) -> str:
        return f"{RETRY}/{self.id}"

    def files(self, names: ShardNames) -> Iterator[str]:
        """Yield the names of the files of all new shards."""
        for index in range(self.first_shard, self.first_shard + len(self.shard_rows)):
            yield from names.files(index)


@dataclass(frozen=True, slots=True)
class _Named:
    """The part of a retry's plan that distinguishes it from others."""

    id: str


def read_plan(storage: Storage) -> RetryPlan | None:
    """Read the plan of an interrupted or running retry; None if there is none. Raises FormatError."""
    data = read_bounded(storage, RETRY_JSON, MAX_PLAN_BYTES, advice=_ADVICE)
    if data is None:
        return None
    return decode(data, RetryPlan, where=f"{storage.url_of(RETRY_JSON)}: no plan of a retry", advice=_ADVICE)


def retried_files(storage: Storage, names: ShardNames) -> Iterator[str]:
    """Yield the names of the files that an interrupted or running retry may have put in place, whether they exist or
    not."""
    plan = read_plan(storage)
    if plan is not None:
        yield from plan.files(names)


def id_of_plan(storage: Storage) -> str:
    """Return the id of the stored plan. Raises FileNotFoundError, or ValueError or FormatError for a malformed plan."""
    return decoder(_Named).decode(storage.read(RETRY_JSON, MAX_PLAN_BYTES)).id


def no_plan(storage: Storage, problem: str) -> FormatError:
    """Return the error for an invalid plan."""
    return FormatError(f"{storage.url_of(RETRY_JSON)}: no plan of a retry: {problem}; {_ADVICE}")


def rows_file(root: str) -> str:
    """Return the name of the file with the rows that a retry tries."""
    return f"{root}/rows.parquet"


def open_rows(storage: Storage, root: str) -> ParquetFile:
    """Open the rows that a retry tries: a row group for each new shard."""
    return open_parquet(storage, rows_file(root))


def clean_up(storage: Storage, plan: RetryPlan, names: ShardNames) -> None:
    """Remove what a retry has put in place and the manifest does not list, and then the retry's own files.

    The plan goes after the files that it names, so that the same command continues an interrupted removal. Nothing is
    removed if the stored plan is another's.
    """
    try:
        if id_of_plan(storage) != plan.id:
            return
    except FileNotFoundError:
        pass
    else:
        storage.take_away(plan.root)  # from here on no worker of the retry can put a file in place
        manifest = read_manifest(storage)  # not the one with which the retry began: another process may have ended it
        if manifest is not None:
            listed = {entry["file"] for split in manifest.splits for entry in split.shards}
            listed.update(entry["file"] for entry in manifest.files)
            for name in plan.files(names):
                if name not in listed:
                    storage.delete(name)
        storage.delete(RETRY_JSON)
    storage.delete_tree(RETRY)
    storage.remove_stale_spools()
