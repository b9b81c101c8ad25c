"""A finished dataset of fetched rows: its files, and the newest status of each row.

The last shard whose parquet file has a row's key gives the row's newest status. Memory holds one bit for each row that
was tried again; everything else is streamed, one shard at a time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, TypeAlias

from dataprep.arrays import NDArray, np, pa
from dataprep.builder.finished import readable_manifest, shard_numbers
from dataprep.dataset.adopted import is_adopted
from dataprep.dataset.manifest import MANIFEST, MANIFEST_ADVICE, MAX_MANIFEST_BYTES, no_dataset
from dataprep.dataset.records import Manifest
from dataprep.errors import FormatError, UsageError
from dataprep.fetched.plan import LaionOptions, is_fetched, laion_options, names_of
from dataprep.fetched.shard import ShardNames
from dataprep.formats.img2dataset import FAILED_TO_DOWNLOAD, FAILED_TO_RESIZE, SUCCESS
from dataprep.messages import shell_words
from dataprep.sources.laion import RENAMED, Row
from dataprep.sources.tables import Value
from dataprep.storage import Storage, open_storage
from dataprep.storage.base import read_ahead, read_bounded
from dataprep.storage.parquet import read_columns

Bits: TypeAlias = "NDArray[np.uint8]"
MAY_PASS = frozenset(
    {
        "timeout",
        "connect",
        "dns",
        "host busy",
        "host down",
        "robots unavailable",
        "incomplete",
        "no answer",
        "http 408",
        "http 429",
    }
)
"""Reasons for which a later attempt may succeed, in addition to the HTTP statuses from 500."""
FAILED = frozenset({FAILED_TO_DOWNLOAD, FAILED_TO_RESIZE})
_COLUMNS = ("key", "status", "error_message")


@dataclass(frozen=True)
class FetchedDataset:
    """A dataset whose failed rows can be tried again; each shard has a parquet file of all its rows.

    Its manifest has no faults.
    """

    storage: Storage
    manifest: Manifest
    data: bytes = b""
    """Content of `dataset.json`, which a retry replaces."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def options(self) -> LaionOptions:
        return laion_options(self.manifest)

    @cached_property
    def names(self) -> ShardNames:
        """Names of the shards, including shards that a retry adds."""
        return names_of(self.manifest)

    @cached_property
    def numbers(self) -> list[int]:
        """The number in the name of each shard."""
        return shard_numbers(self.manifest, self.manifest.splits[0])

    def parquet_file(self, shard: int) -> str:
        """Return the name of the parquet file of the shard at a position."""
        return self.names.parquet_file(self.numbers[shard])

    @property
    def num_shards(self) -> int:
        return len(self.manifest.splits[0].shards)

    @property
    def key_digits(self) -> int:
        """Number of digits of the row's number at the end of a key."""
        return math.ceil(math.log10(self.options.rows_per_shard))

    def row_of(self, fields: Mapping[str, Value]) -> Row:
        """Convert a row of a parquet file back to the row of the table of URLs."""
        carried = [column.name for column in self.options.schema.carried]
        written = dict(zip((column.name for column in self.options.carried), carried, strict=True))
        columns = {role: role if role in RENAMED else written[name] for role, name in self.options.columns.items()}
        roles = {role: fields[name] for role, name in columns.items()}
        return Row(str(fields["key"]), roles, tuple(fields[name] for name in carried))


def open_fetched(url: str) -> FetchedDataset:
    """Open a finished dataset of fetched rows, and read its manifest. Raises UsageError if there is no dataset, or
    `dataprep build laion` has not written it."""
    storage = open_storage(url)
    data = read_bounded(storage, MANIFEST, MAX_MANIFEST_BYTES, advice=MANIFEST_ADVICE)
    if data is None:
        raise no_dataset(storage)
    manifest = readable_manifest(storage)
    if is_adopted(manifest) and any(split.statuses for split in manifest.splits):
        raise UsageError(
            f"{storage.url}: {manifest.name} was fetched by img2dataset; expected a dataset of laion. dataprep inspect "
            f"{shell_words(url)} lists its failed rows with `rejected`, and dataprep build laion builds such a table"
        )
    if not is_fetched(manifest):
        raise UsageError(f"{storage.url}: {manifest.name} was not fetched from the web; expected a dataset of laion")
    return FetchedDataset(storage, manifest, data)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Failed rows to retry; by default those with a retryable reason."""

    reasons: tuple[str, ...] = ()
    """Reasons, as in the parquet files, of the rows to retry."""
    everything: bool = False
    """Whether to retry all rows whose download or resizing failed."""

    def __post_init__(self) -> None:
        if self.reasons and self.everything:
            raise UsageError("`all` and `reason` exclude each other; give one of them")

    def takes(self, status: str, reason: str) -> bool:
        """Return whether a row with this status and reason is tried again."""
        if status not in FAILED:
            return False
        if self.everything or self.reasons:
            return self.everything or reason in self.reasons
        return status == FAILED_TO_DOWNLOAD and may_pass(reason)


class Place(NamedTuple):
    """Position of a row's newest status."""

    shard: int
    row: int
    """Position of the row in the shard's parquet file."""
    reason: str


class RejectedRow(NamedTuple):
    """A row without an image, with its newest status."""

    key: str
    url: str
    status: str
    reason: str


def may_pass(reason: str) -> bool:
    """Return whether a download that failed for this reason is retryable."""
    return reason in MAY_PASS or reason.startswith("http 5")


def rows_to_try(dataset: FetchedDataset, choice: Choice) -> Iterator[Place]:
    """Yield the chosen rows by the shards that last tried them. Raises FormatError for a damaged parquet sidecar."""
    for place, _ in _newest(dataset, range(dataset.num_shards), choice.takes):
        yield place


def rejected_rows(dataset: FetchedDataset, shards: int | None = None) -> Iterator[RejectedRow]:
    """Yield the rows without an image, in the order of the shards that last tried them, of so many `shards` or of all.
    Raises FormatError if a parquet sidecar is missing or damaged."""
    looked_at, names = range(dataset.num_shards)[:shards], (*_COLUMNS, "url")
    for place, (key, status, _, url) in _newest(dataset, looked_at, lambda _status, _reason: True, names):
        yield RejectedRow(key, url or "", status, place.reason)


def _newest(
    dataset: FetchedDataset, shards: range, takes: Callable[[str, str], bool], names: Sequence[str] = _COLUMNS
) -> Iterator[tuple[Place, tuple[str, ...]]]:
    """Yield rows whose newest status is not success and that a function of status and reason takes, each with its place
    and its values of the columns `names`, which begin with _COLUMNS."""
    newer = _Newer(dataset)
    for place, table in zip(shards, _tables(dataset, shards, names), strict=True):
        retried = newer.in_retry(dataset.num_shards - 1 - place)
        columns = (table.column(name).to_pylist() for name in names)
        for row, values in enumerate(zip(*columns, strict=True)):
            key, status, message = values[:3]
            if status == SUCCESS:
                continue
            reason = message or ""
            if takes(status, reason) and not (newer.has(key) if retried is None else retried[row]):
                yield Place(place, row, reason), values


class _Newer:
    """Finds rows that have a newer status in a later shard, from the shards of retries, the last one first."""

    def __init__(self, dataset: FetchedDataset) -> None:
        self._digits, self._url = dataset.key_digits, dataset.storage.url
        self._tried: dict[int, Bits] = {}
        self._retries: list[Bits] = []
        back = range(dataset.num_shards - 1, -1, -1)
        with closing(_tables(dataset, back)) as tables:
            for place, table in zip(back, tables, strict=True):
                if not self._see(place, table.column("key").to_pylist()):
                    break

    def _see(self, number: int, keys: Sequence[str]) -> bool:
        """Record the rows of a retry's shard. Return False, and record nothing, for a shard of the build, whose keys
        begin with its own number."""
        if not keys or self._split(keys[0])[0] == number:
            return False
        newer = np.zeros(len(keys), np.bool_)
        for position, key in enumerate(keys):
            shard, row = self._split(key)
            packed = self._tried.setdefault(shard, np.zeros(-(-(10**self._digits) // 8), np.uint8))
            byte, bit = row >> 3, np.uint8(1 << (row & 7))
            newer[position] = bool(packed[byte] & bit)
            packed[byte] |= bit
        self._retries.append(np.packbits(newer, bitorder="little"))
        return True

    def has(self, key: str) -> bool:
        shard, row = self._split(key)
        packed = self._tried.get(shard)
        return packed is not None and bool(packed[row >> 3] >> (row & 7) & 1)

    def in_retry(self, later: int) -> Bits | None:
        """Return whether each row of the shard before so many `later` ones was tried again; None if it is not a
        retry's."""
        return np.unpackbits(self._retries[later], bitorder="little") if later < len(self._retries) else None

    def _split(self, key: str | None) -> tuple[int, int]:
        """Return the numbers of shard and row in a key."""
        if key is None or not key.isdecimal() or len(key) <= self._digits:
            raise FormatError(
                f"{self._url}: key {str(key)[:40]!r}, expected numbers of shard and row; restore the files"
            )
        cut = len(key) - self._digits
        return int(key[:cut]), int(key[cut:] or 0)


def _tables(dataset: FetchedDataset, places: range, names: Sequence[str] = _COLUMNS) -> Generator[pa.Table]:
    """Yield some columns of many sidecars, in order; over a network several are read at a time."""
    read, files = partial(read_columns, dataset.storage, columns=names), map(dataset.parquet_file, places)
    return read_ahead(read, files, max(1, min(dataset.storage.reads_in_flight, 16)))
