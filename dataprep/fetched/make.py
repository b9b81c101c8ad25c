"""Makes one shard from its rows; web and disk are arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from dataprep.dataset.index import IndexRows
from dataprep.dataset.records import NO_LABEL, Placement
from dataprep.errors import FormatError, UsageError
from dataprep.fetched.collect import Fetch, RowOptions, collect, count_reasons, count_statuses
from dataprep.fetched.filters import refuse_absent_columns
from dataprep.fetched.names import FETCHED_FORMATS
from dataprep.fetched.shard import (
    IMAGE_READERS,
    RENDERERS,
    SHARD_ENDS,
    ShardSchema,
    arrow_schema,
    index_table,
    rows_parquet,
    stats_json,
    write_samples,
)
from dataprep.formats.img2dataset import STATUSES, SUCCESS
from dataprep.sources.laion import LaionTables, Row
from dataprep.sources.tables import Value
from dataprep.storage.checksums import HashingWriter
from dataprep.storage.parquet import table_in

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


def read_shard(
    stream: BinaryIO, parquet: bytes, split_index: int, rows: Sequence[Row], options: ShardOptions
) -> tuple[MadeShard, HashingWriter]:
    """Read a shard that `make_shard` made of these rows, and return it with the digests of its samples.

    Each record is made again of its row in the parquet file and its image, and compared.

    Raises:
        FormatError: The parquet file has other rows, or a record differs.
    """
    schema, digests, index = options.schema, HashingWriter(None), IndexRows(split_index)

    def read(num_bytes: int) -> bytes:
        data = stream.read(max(0, num_bytes))
        digests.write(data)
        return data

    statuses, reasons = dict.fromkeys(STATUSES, 0), Counter[str]()
    names = [column.name for column in schema.columns]
    for values in _stored_values(parquet, rows, schema):
        fields = dict(zip(names, values, strict=True))
        status, offset = str(fields["status"]), digests.num_bytes
        if status not in statuses:
            raise FormatError(f"status {status}")
        statuses[status] += 1
        reasons[str(fields["error_message"] or status)] += 1
        if status != SUCCESS:
            continue
        begin, image = IMAGE_READERS[options.format](read, schema)
        record = RENDERERS[options.format](values, image, schema)
        expected = b"".join(record)
        if begin + read(len(expected) - len(begin)) != expected:
            raise FormatError(f"the record of {fields['key']} differs")
        place = Placement(offset, len(expected), offset + len(record.head), len(image))
        sides = {side: value if isinstance(value := fields[side], int) else None for side in ("height", "width")}
        index.add(str(fields["key"]), image, place, label=NO_LABEL, **sides)
    if read(len(SHARD_ENDS[options.format]) + 1) != SHARD_ENDS[options.format]:
        raise FormatError("other bytes follow the last record")
    reasons_by_name = dict(sorted(reasons.items()))
    made = MadeShard(
        index=index.table(),
        parquet=parquet,
        stats=stats_json(statuses, reasons_by_name),
        statuses=statuses,
        reasons=reasons_by_name,
    )
    return made, digests


def _stored_values(parquet: bytes, rows: Sequence[Row], schema: ShardSchema) -> Iterator[tuple[Value, ...]]:
    """Yield the values of each row of a parquet file. Raises FormatError if it is not that of these rows."""
    try:
        table = table_in(parquet)
        keys = table.column("key").to_pylist()
    except (ValueError, KeyError, OSError) as error:  # from memory: no disk is read
        raise FormatError(f"the parquet file cannot be read ({error})") from error
    if not table.schema.remove_metadata().equals(arrow_schema(schema)) or keys != [row.key for row in rows]:
        raise FormatError("the parquet file has other rows or columns")
    yield from zip(*(column.to_pylist() for column in table.columns), strict=True)
