"""One shard from its rows: all of `dataprep.laion` put together, with the web and the disk as arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from dataprep.errors import UsageError
from dataprep.laion.collect import Fetch, RowOptions, collect, count_reasons, count_statuses
from dataprep.laion.filters import refuse_absent_columns
from dataprep.laion.shard import ShardSchema, index_table, rows_parquet, stats_json, write_samples
from dataprep.sources.laion import LaionTables, Row

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class MadeShard:
    """What a receipt needs of a shard, besides the digests of the samples' file."""

    index: pa.Table
    """Its rows of `index/<split>.parquet`; as many as there are samples."""
    parquet: bytes
    """Content of the parquet file beside it."""
    stats: bytes
    """Content of its `_stats.json`."""
    statuses: dict[str, int]
    """Rows by status; they sum up to the rows."""
    reasons: dict[str, int]
    """Rows by reason, `success` for those that have none."""


def refuse_unfit(tables: LaionTables, options: RowOptions, format_name: str) -> None:
    """Raise UsageError where options ask for what the tables or the format do not have; for before the first shard."""
    refuse_absent_columns(options.row_filter, tables.columns)
    if options.verify_hash is not None and options.verify_hash not in tables.columns:
        raise UsageError(
            f"--verify-hash {options.verify_hash}: the table has no such column; "
            f"say which one with --column {options.verify_hash}=NAME"
        )
    if format_name not in ("webdataset", "tfrecord"):
        raise UsageError(f"laion is built as webdataset or tfrecord, not {format_name}")
    if format_name == "tfrecord" and options.encode.encode_format == "webp":
        raise UsageError("--encode-format webp: TFDS decodes no WebP; use jpg or png, or --format webdataset")


def make_shard(
    rows: Sequence[Row],
    fetch: Fetch,
    options: RowOptions,
    schema: ShardSchema,
    *,
    format_name: str,
    split_index: int,
    stream: BinaryIO,
    spool: BinaryIO,
    before: Mapping[str, Mapping[str, int]] | None = None,
) -> MadeShard:
    """Fetch the rows of a shard and write their samples.

    Args:
        rows: In the table's order.
        fetch: Asks the web.
        options: What decides a row's end.
        schema: Of the build.
        format_name: `webdataset` or `tfrecord`.
        split_index: The shard's place in its split, for the index.
        stream: An empty file for the samples; left open.
        spool: Another, to be written and read: holds encoded images until all rows have ended, in all as many bytes.
        before: Of rows that are tried again, `statuses` and `reasons` that they had; told in the stats.
    """
    results = collect(rows, fetch, options, spool)
    places = write_samples(stream, format_name, rows, results, schema, spool)
    statuses, reasons = count_statuses(results), count_reasons(results)
    return MadeShard(
        index=index_table(split_index, rows, results, places, spool),
        parquet=rows_parquet(rows, results, schema),
        stats=stats_json(statuses, reasons, before),
        statuses=statuses,
        reasons=reasons,
    )
