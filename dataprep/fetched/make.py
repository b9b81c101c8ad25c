"""Makes one shard from its rows; web and disk are arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from dataprep.errors import UsageError
from dataprep.fetched.collect import Fetch, RowOptions, collect, count_reasons, count_statuses
from dataprep.fetched.filters import refuse_absent_columns
from dataprep.fetched.names import FETCHED_FORMATS
from dataprep.fetched.shard import ShardSchema, index_table, rows_parquet, stats_json, write_samples
from dataprep.sources.laion import LaionTables, Row

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class MadeShard:
    """The parts of a shard that its receipt needs, besides the digests of the samples' file."""

    index: pa.Table
    """Rows of `index/<split>.parquet`, one for each sample."""
    parquet: bytes
    """Content of the parquet file of all rows."""
    stats: bytes
    """Content of `_stats.json`."""
    statuses: dict[str, int]
    """Number of rows by status."""
    reasons: dict[str, int]
    """Number of rows by reason; rows without a reason count as `success`."""


def refuse_unfit(tables: LaionTables, options: RowOptions, format_name: str) -> None:
    """Raise UsageError, before the first shard, if the options do not fit the tables or the format."""
    refuse_absent_columns(options.row_filter, tables.columns)
    if options.verify_hash is not None and options.verify_hash not in tables.columns:
        raise UsageError(
            f"--verify-hash {options.verify_hash}: the table has no such column; "
            f"say which one with --column {options.verify_hash}=NAME"
        )
    if format_name not in FETCHED_FORMATS:
        raise UsageError(f"laion is built as webdataset or tfrecord, not {format_name}")
    if format_name == "tfrecord" and options.encode.encode_format == "webp":
        raise UsageError("--encode-format webp: TFDS decodes no WebP; use jpg or png, or --format webdataset")


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """Options by which the rows of a dataset become shards."""

    format: str
    """Name of the format: one of FETCHED_FORMATS."""
    rows: RowOptions
    """Options that decide a row's result."""
    schema: ShardSchema
    """Columns of the shards."""


class Streams(NamedTuple):
    """The two files into which a shard is written; both are left open."""

    samples: BinaryIO
    """An empty file for writing, which receives the samples."""
    spool: BinaryIO
    """An empty file for writing and reading, which holds the encoded images until all rows have a status."""


def make_shard(
    rows: Sequence[Row],
    fetch: Fetch,
    options: ShardOptions,
    split_index: int,
    streams: Streams,
    before: Mapping[str, Mapping[str, int]] | None = None,
) -> MadeShard:
    """Fetch the rows of a shard and write their samples.

    Args:
        rows: Rows of the shard, in the table's order.
        fetch: Function that downloads the rows.
        options: Options by which rows become a shard.
        split_index: Position of the shard in its split, for the index.
        streams: The files to write.
        before: Earlier `statuses` and `reasons` of rows that are tried again; they are written to the stats.
    """
    schema, spool = options.schema, streams.spool
    results = collect(rows, fetch, options.rows, spool)
    places = write_samples(streams.samples, options.format, rows, results, schema, spool)
    statuses, reasons = count_statuses(results), count_reasons(results)
    return MadeShard(
        index=index_table(split_index, rows, results, places, spool),
        parquet=rows_parquet(rows, results, schema),
        stats=stats_json(statuses, reasons, before),
        statuses=statuses,
        reasons=reasons,
    )
