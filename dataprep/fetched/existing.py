"""A finished dataset of fetched rows: how its files are laid out, and the newest status of each row.

The last shard whose parquet file has a row's key gives the row's newest status. Memory holds one bit for each row that
was tried again; everything else is streamed, one shard at a time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from dataprep.builder.finished import readable_manifest
from dataprep.dataset.adopted import is_adopted
from dataprep.dataset.manifest import MANIFEST, MANIFEST_ADVICE, MAX_MANIFEST_BYTES, no_dataset
from dataprep.dataset.records import Manifest, SplitManifest
from dataprep.errors import FormatError, UsageError
from dataprep.fetched.finish import facts_of, tfds_files
from dataprep.fetched.plan import LaionOptions, is_fetched, laion_options, sidecars_of
from dataprep.fetched.shard import ShardNames, ShardSchema, built_names
from dataprep.formats.img2dataset import FAILED_TO_DOWNLOAD, FAILED_TO_RESIZE, SUCCESS
from dataprep.messages import shell_words
from dataprep.sources.laion import RENAMED, SPLIT, Row
from dataprep.sources.tables import Value
from dataprep.storage import Storage, open_storage
from dataprep.storage.base import read_bounded
from dataprep.storage.parquet import read_columns

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Bits = NDArray[np.uint8]


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
"""Retryable reasons, for which a later attempt may succeed; so are the HTTP statuses from 500."""
FAILED = frozenset({FAILED_TO_DOWNLOAD, FAILED_TO_RESIZE})
_COLUMNS = ("key", "status", "error_message")


@dataclass(frozen=True, slots=True)
class FetchedDataset:
    """A dataset whose failed rows can be tried again."""

    storage: Storage
    data: bytes
    """Content of `dataset.json`."""
    manifest: Manifest
    layout: Layout

    @property
    def sha256(self) -> str:
        """SHA-256 of `dataset.json`."""
        return hashlib.sha256(self.data).hexdigest()


def open_fetched(url: str) -> FetchedDataset:
    """Open a finished dataset of fetched rows, and read its manifest.

    Raises:
        UsageError: There is no dataset, or `dataprep build laion` has not written it.
    """
    storage = open_storage(url)
    data = read_bounded(storage, MANIFEST, MAX_MANIFEST_BYTES, advice=MANIFEST_ADVICE)
    if data is None:
        raise no_dataset(storage)
    manifest = readable_manifest(storage)
    if is_adopted(manifest) and any(split.statuses for split in manifest.splits):
        raise UsageError(
            f"{storage.url}: {manifest.name} was fetched by img2dataset; expected a dataset of laion. dataprep inspect "
            f"{shell_words(url)} lists its failed rows with `rejected`, and dataprep build laion builds a table of them"
        )
    if not is_fetched(manifest):
        raise UsageError(f"{storage.url}: {manifest.name} was not fetched from the web; expected a dataset of laion")
    return FetchedDataset(storage, data, manifest, built_layout(manifest))


class Replacement(NamedTuple):
    """The content of a file, and the content that replaces it."""

    before: bytes
    after: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The layout of one split; each shard has a parquet file of all its rows."""

    parquet_files: Sequence[str]
    """Parquet file of each shard, by its position."""
    key_digits: int
    """Number of digits of a row's number, with which keys end."""
    names: ShardNames
    """Names of the shards that a retry adds."""
    shard_rows: int
    """Maximum number of rows of a shard that a retry adds."""
    schema: ShardSchema
    row_of: Callable[[dict[str, Value]], Row]
    """Function that turns a row of a parquet file into a row of the table of URLs."""
    described: Callable[[SplitManifest], dict[str, Replacement]]
    """Function that returns the new TFDS files, by name, for a split with more shards."""


def built_layout(manifest: Manifest) -> Layout:
    """Return the layout of a dataset whose manifest has no faults."""
    options, dataset, (split,) = laion_options(manifest), facts_of(manifest), manifest.splits

    def described(grown: SplitManifest) -> dict[str, Replacement]:
        old = tfds_files(dataset, manifest.format, options, split)
        new = tfds_files(dataset, manifest.format, options, grown)
        return {name: Replacement(old[name], content) for name, content in new.items()}

    return Layout(
        parquet_files=[sidecars_of(manifest, place)[0] for place in range(len(split.shards))],
        key_digits=math.ceil(math.log10(options.rows_per_shard)),
        names=built_names(manifest.name, manifest.format, SPLIT, options.shard_digits),
        shard_rows=options.rows_per_shard,
        schema=options.schema,
        row_of=_row_reader(options),
        described=described,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Choice of the failed rows that are tried again: by default those with a retryable reason."""

    reasons: tuple[str, ...] = ()
    """Reasons, as in the parquet files, of the rows to try again."""
    everything: bool = False
    """Whether to try every row again that failed to download or to be resized."""

    def __post_init__(self) -> None:
        if self.reasons and self.everything:
            raise UsageError("`all` takes every reason, `reason` some; give one of them")

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
    """A row that became no image, with its newest status."""

    key: str
    url: str
    status: str
    reason: str


def may_pass(reason: str) -> bool:
    """Return whether a download that failed for this reason is retryable."""
    return reason in MAY_PASS or reason.startswith("http 5")


def rows_to_try(storage: Storage, layout: Layout, choice: Choice) -> Iterator[Place]:
    """Yield the chosen rows, in the order of the shards in which they were last tried.

    Raises:
        FormatError: A parquet sidecar is missing or damaged.
    """
    for place, _ in _newest(storage, layout, range(len(layout.parquet_files)), choice.takes):
        yield place


def rejected_rows(storage: Storage, layout: Layout, shards: int | None = None) -> Iterator[RejectedRow]:
    """Yield the rows without an image, in the order of the shards in which they were last tried.

    Args:
        shards: Number of shards that are looked at; None for all.

    Raises:
        FormatError: A parquet sidecar is missing or damaged.
    """
    looked_at = range(len(layout.parquet_files))[:shards]
    for place, (key, status, _, url) in _newest(
        storage, layout, looked_at, lambda _status, _reason: True, (*_COLUMNS, "url")
    ):
        yield RejectedRow(key, url or "", status, place.reason)


class RowPlaces:
    """Divides positions of rows into new shards, as tables of `rows.parquet`."""

    def __init__(self, rows_per_shard: int) -> None:
        self._rows_per_shard = rows_per_shard
        self.shard_rows: list[int] = []
        """Number of rows of each table made so far."""

    @staticmethod
    def schema() -> pa.Schema:
        import pyarrow as pa

        return pa.schema([("shard", pa.int32()), ("row", pa.int32())])

    def tables(self, places: Iterator[Place]) -> Iterator[pa.Table]:
        """Yield a table for each new shard."""
        held: list[Place] = []
        for place in places:
            held.append(place)
            if len(held) == self._rows_per_shard:
                yield self._table(held)
                held = []
        if held:
            yield self._table(held)

    def _table(self, held: Sequence[Place]) -> pa.Table:
        from dataprep.dataset.columns import table_of

        self.shard_rows.append(len(held))
        return table_of([[place.shard for place in held], [place.row for place in held]], self.schema())


def _row_reader(options: LaionOptions) -> Callable[[dict[str, Value]], Row]:
    carried = [column.name for column in options.schema.carried]
    written = dict(zip((column.name for column in options.carried), carried, strict=True))
    columns = {role: role if role in RENAMED else written[name] for role, name in options.columns.items()}

    def row_of(fields: dict[str, Value]) -> Row:
        roles = {role: fields[name] for role, name in columns.items()}
        return Row(str(fields["key"]), roles, tuple(fields[name] for name in carried))

    return row_of


def _newest(
    storage: Storage,
    layout: Layout,
    shards: range,
    takes: Callable[[str, str], bool],
    names: Sequence[str] = _COLUMNS,
) -> Iterator[tuple[Place, tuple[str, ...]]]:
    """Yield rows whose newest status is not success, each with its place and the values of some columns.

    Args:
        takes: Function of status and reason that chooses rows.
        names: The columns, beginning with _COLUMNS.
    """
    total = len(layout.parquet_files)
    newer = _Newer(layout.key_digits, storage.url)
    retries = _see_retries(storage, layout, newer)
    for place, table in zip(shards, _tables(storage, layout, shards, names), strict=True):
        after = total - 1 - place
        retried = newer.in_retry(after) if after < retries else None
        columns = (table.column(name).to_pylist() for name in names)
        for row, values in enumerate(zip(*columns, strict=True)):
            key, status, message = values[:3]
            if status == SUCCESS:
                continue
            reason = message or ""
            if takes(status, reason) and not (newer.has(key) if retried is None else retried[row]):
                yield Place(place, row, reason), values


def _see_retries(storage: Storage, layout: Layout, newer: _Newer) -> int:
    """Pass the shards of retries to `newer`, the last one first, up to the last shard of the build; return their
    number."""
    retries, back = 0, range(len(layout.parquet_files) - 1, -1, -1)
    with closing(_tables(storage, layout, back)) as tables:
        for place, table in zip(back, tables, strict=True):
            if not newer.see(place, table.column("key").to_pylist()):
                break
            retries += 1
    return retries


class _Newer:
    """Knows which rows have a newer status in a later shard. The shards of retries are passed to it, the last one
    first.

    Args:
        key_digits: Number of digits of a row's number, with which a key ends, after the shard's number.
    """

    def __init__(self, key_digits: int, url: str) -> None:
        self._digits, self._url = key_digits, url
        self._tried: dict[int, Bits] = {}
        self._retries: list[Bits] = []

    def see(self, number: int, keys: Sequence[str]) -> bool:
        """Record the rows of a retry's shard. Return False, and record nothing, for a shard of the build, whose keys
        begin with its own number."""
        import numpy as np

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
        """Return whether a row of the build was tried again."""
        shard, row = self._split(key)
        packed = self._tried.get(shard)
        return packed is not None and bool(packed[row >> 3] >> (row & 7) & 1)

    def in_retry(self, seen: int) -> Bits:
        """Return, for each row of a retry's shard, whether it was tried again later; `seen` is the number of shards
        that were passed before it."""
        import numpy as np

        return np.unpackbits(self._retries[seen], bitorder="little")

    def _split(self, key: str | None) -> tuple[int, int]:
        """Return the numbers of shard and row in a key."""
        if key is None or not key.isdecimal() or len(key) <= self._digits:
            raise FormatError(
                f"{self._url}: key {str(key)[:40]!r}, expected numbers of shard and row; restore the files"
            )
        cut = len(key) - self._digits
        return int(key[:cut]), int(key[cut:] or 0)


def _tables(storage: Storage, layout: Layout, places: range, names: Sequence[str] = _COLUMNS) -> Generator[pa.Table]:
    """Yield some columns of many sidecars, in order; over a network several are read at a time."""
    read = partial(read_columns, storage, columns=names)
    at_once = max(1, min(storage.reads_in_flight, 16))
    with ThreadPoolExecutor(at_once, thread_name_prefix="dataprep-rows") as threads:
        for start in range(0, len(places), at_once):
            yield from threads.map(read, (layout.parquet_files[place] for place in places[start : start + at_once]))
