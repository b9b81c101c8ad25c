"""The files of one shard: the samples, and beside them img2dataset's parquet of all rows and its `_stats.json`.

    train/00012.tar                 key.jpg, key.json, key.txt    or    laion-train.tfrecord-00012
    train/00012.parquet             every row, with its status and reason
    train/00012_stats.json          rows by status and by reason; no times, so that equal shards are equal files

A name holds the shard's number alone: what a later run adds renames nothing. To what img2dataset wrote shards are added
under its own names, with the columns that it has.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import google_crc32c

from dataprep.checksums import crc32c_of
from dataprep.columns import table_of
from dataprep.formats.example import (
    LEN_1,
    LEN_2,
    LEN_3,
    frame_head,
    map_entry,
    map_entry_before,
    masked,
    message,
    varint,
)
from dataprep.formats.ustar import BLOCK_BYTES, header, member
from dataprep.laion.collect import (
    DIGESTS,
    DUPLICATE,
    FAILED_TO_DOWNLOAD,
    FAILED_TO_RESIZE,
    FILTERED,
    SUCCESS,
    RowOptions,
    RowResult,
    read_image,
)
from dataprep.records import NO_LABEL, Placement
from dataprep.sources.laion import LaionTables, Row
from dataprep.sources.tables import Column, Kind
from dataprep.workspace import index_schema

if TYPE_CHECKING:
    import pyarrow as pa

RESULT_FIELDS = (
    Column("caption", "string"),
    Column("url", "string"),
    Column("key", "string"),
    Column("status", "string"),
    Column("error_message", "string"),
    Column("width", "int"),
    Column("height", "int"),
    Column("original_width", "int"),
    Column("original_height", "int"),
    Column("exif", "string"),
    Column("sha256", "string"),
)
"""In img2dataset's order, after the columns that are carried."""
_TWIN_FIELDS = (Column("dhash", "string"), Column("duplicate_of", "string"))
_TAKEN = frozenset(column.name for column in (*RESULT_FIELDS, *_TWIN_FIELDS)) | {"txt", "jpg", "png", "webp"}
_ABSENT: dict[Kind, Any] = {"string": "", "int": -1, "float": -1.0}
"""In records, whose fields are never null: Hugging Face infers a schema from the first few, TFDS has no null at all."""
_MAX_FLOAT32 = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSchema:
    """What the rows of all shards of a dataset look like."""

    image_name: str
    """`jpg`, `png` or `webp`: extension of members, name of the feature."""
    carried: tuple[Column, ...]
    """The table's columns, as they are named in records: `table_key` where a name is taken."""
    twins: bool
    """Whether duplicates were looked for."""
    results: tuple[Column, ...] = RESULT_FIELDS
    """The columns after those; img2dataset writes some of them."""
    arrow_types: tuple[str, ...] = ()
    """Of the parquet file's columns, where another tool chose them."""
    json_nulls: bool = False
    """Whether `key.json` holds null for what is absent, as img2dataset's does."""
    texts: frozenset[str] = frozenset()
    """Columns that are texts in TFRecords, whatever they hold: img2dataset found no value, and wrote empty ones."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """Of the parquet file, and of each record."""
        return (*self.carried, *self.results, *(_TWIN_FIELDS if self.twins else ()))

    @property
    def has_captions(self) -> bool:
        """Whether samples have a text of their own."""
        return any(column.name == "caption" for column in self.results)


class Record(NamedTuple):
    """One sample as it lies in a shard, in three pieces: an image's bytes are never joined with others."""

    head: bytes
    image: bytes
    tail: bytes


def schema_of(tables: LaionTables, options: RowOptions) -> ShardSchema:
    """The columns of a build."""
    return schema_with(tables.carried, options)


def schema_with(table_columns: Sequence[Column], options: RowOptions) -> ShardSchema:
    """The same from the columns that are carried, as the table names them."""
    carried: list[Column] = []
    taken = set(_TAKEN) | {column.name for column in table_columns}
    for column in table_columns:
        name = column.name
        if name in _TAKEN:
            while name in taken:
                name = f"table_{name}"
            taken.add(name)
        carried.append(Column(name, column.kind))
    return ShardSchema(image_name=options.encode.encode_format, carried=tuple(carried), twins=options.duplicates.looks)


def values_of(row: Row, result: RowResult, schema: ShardSchema) -> tuple[Any, ...]:
    """A row's values of `schema.columns`; None where there is none."""
    image = result.image
    found = {
        "caption": row.roles.get("caption"),
        "url": row.roles["url"],
        "key": row.key,
        "status": result.status,
        "error_message": result.reason or None,
        "width": image.width if image else None,
        "height": image.height if image else None,
        "original_width": image.original_width if image else None,
        "original_height": image.original_height if image else None,
        "exif": image.exif if image else None,
    } | dict.fromkeys(DIGESTS, result.digest)
    values = (*row.carried, *(found[column.name] for column in schema.results))
    if not schema.twins:
        return values
    dhash = None if image is None or image.dhash is None else f"{image.dhash:016x}"
    return (*values, dhash, result.duplicate_of)


def write_samples(
    stream: BinaryIO,
    format_name: str,
    rows: Sequence[Row],
    results: Sequence[RowResult],
    schema: ShardSchema,
    spool: BinaryIO,
) -> list[Placement]:
    """Write the samples of a shard, those whose status is success, in the order of the rows.

    Returns:
        Where each lies, in bytes from the shard's start.
    """
    render = RENDERERS[format_name]
    places: list[Placement] = []
    offset = 0
    for row, result in _successes(rows, results):
        record = render(values_of(row, result, schema), read_image(spool, result), schema)
        for piece in record:
            stream.write(piece)
        image_offset = offset + len(record.head)
        size = sum(map(len, record))
        places.append(Placement(offset, size, image_offset, len(record.image)))
        offset += size
    if format_name == "webdataset":
        stream.write(bytes(2 * BLOCK_BYTES))
    return places


def tar_record(values: Sequence[Any], image: bytes, schema: ShardSchema) -> Record:
    """`key.jpg`, `key.json` and `key.txt`, as webdataset's writer would order them."""
    fields = _present(values, schema)
    written = dict(zip(fields, values, strict=True)) if schema.json_nulls else fields
    key = fields["key"].encode()
    tail = member(key, b".json", _indented(written).encode())
    if schema.has_captions:
        tail += member(key, b".txt", fields["caption"].encode())
    padding = bytes(-len(image) % BLOCK_BYTES)
    return Record(header(key, f".{schema.image_name}".encode(), len(image)), image, padding + tail)


def tfrecord_record(values: Sequence[Any], image: bytes, schema: ShardSchema) -> Record:
    """A framed tf.train.Example: the image, `txt`, and a feature a column, sorted by name."""
    fields = _present(values, schema)
    kinds: dict[str, Kind] = {column.name: column.kind for column in schema.columns} | {"txt": "string"}
    for column, value in zip(schema.columns, values, strict=True):
        if column.name in schema.texts:
            kinds[column.name], fields[column.name] = "string", "" if value is None else str(value)
    if schema.has_captions:
        fields["txt"] = fields["caption"]
    before = b"".join(_entry(name, kinds[name], fields[name]) for name in sorted(fields) if name < schema.image_name)
    after = b"".join(_entry(name, kinds[name], fields[name]) for name in sorted(fields) if name > schema.image_name)
    opening = map_entry_before(schema.image_name.encode(), len(image))
    length = len(before) + len(opening) + len(image) + len(after)
    start = LEN_1 + varint(length) + before + opening  # Example.features
    crc = google_crc32c.extend(google_crc32c.extend(google_crc32c.value(start), image), after)
    frame_bytes = len(start) + len(image) + len(after)
    return Record(frame_head(frame_bytes) + start, image, after + masked(crc))


def index_table(
    split_index: int,
    rows: Sequence[Row],
    results: Sequence[RowResult],
    places: Sequence[Placement],
    spool: BinaryIO,
) -> pa.Table:
    """The shard's rows of `index/<split>.parquet`."""
    entries = []
    for (row, result), place in zip(_successes(rows, results), places, strict=True):
        image = result.image
        sides = (image.height, image.width) if image else (None, None)
        span = (place.record_offset, place.record_bytes, place.image_offset, place.image_bytes)
        entries.append((row.key, split_index, *span, crc32c_of(read_image(spool, result)), NO_LABEL, *sides))
    schema = index_schema()
    return table_of(zip(*entries, strict=True) if entries else [()] * len(schema), schema)


def rows_parquet(rows: Sequence[Row], results: Sequence[RowResult], schema: ShardSchema) -> bytes:
    """img2dataset's parquet file: every row of the shard, also those without an image."""
    import pyarrow.parquet as pq

    arrow = arrow_schema(schema)
    values = [values_of(row, result, schema) for row, result in zip(rows, results, strict=True)]
    columns = list(zip(*values, strict=True)) if values else [()] * len(arrow)
    table = table_of(columns, arrow)
    if schema.arrow_types:
        table = _retyped(table, schema.arrow_types)
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def arrow_schema(schema: ShardSchema) -> pa.Schema:
    """Of the parquet file."""
    import pyarrow as pa

    kinds = {"string": pa.string(), "int": pa.int64(), "float": pa.float64()}
    narrow = {"width", "height", "original_width", "original_height"}
    return pa.schema([(c.name, pa.int32() if c.name in narrow else kinds[c.kind]) for c in schema.columns])


def stats_json(
    statuses: Mapping[str, int], reasons: Mapping[str, int], before: Mapping[str, Mapping[str, int]] | None = None
) -> bytes:
    """img2dataset's counts; those of rows that it does not know stand beside them, so that all sum up to `count`.

    Args:
        statuses: Rows by status.
        reasons: Rows by reason.
        before: Of rows that were tried again, `statuses` and `reasons` that they had; they count here now.
    """
    document = {
        "count": sum(statuses.values()),
        "successes": statuses[SUCCESS],
        "failed_to_download": statuses[FAILED_TO_DOWNLOAD],
        "failed_to_resize": statuses[FAILED_TO_RESIZE],
        "filtered": statuses[FILTERED],
        "duplicates": statuses[DUPLICATE],
        "status_dict": reasons,
    }
    return json.dumps(document | ({"before": before} if before else {}), indent=4).encode()


def _indented(fields: Mapping[str, Any]) -> str:
    """`json.dumps(fields, indent=4)` of plain values, by its encoder in C, which indents nothing."""
    return "{\n" + ",\n".join(f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items()) + "\n}"


def _retyped(table: pa.Table, types: Sequence[str]) -> pa.Table:
    """The columns in the types of another tool, which has one of its own for those that it found without a value."""
    import pyarrow as pa

    columns = {}
    for name, values, alias in zip(table.column_names, table.columns, types, strict=True):
        if alias != "null":
            columns[name] = values.cast(pa.type_for_alias(alias))
        else:
            columns[name] = values if values.null_count < len(values) else pa.nulls(len(values))
    return pa.table(columns)


def _successes(rows: Sequence[Row], results: Sequence[RowResult]) -> Iterator[tuple[Row, RowResult]]:
    for row, result in zip(rows, results, strict=True):
        if result.status == SUCCESS:
            yield row, result


def _present(values: Sequence[Any], schema: ShardSchema) -> dict[str, Any]:
    """Values by name, none of them null."""
    return {
        column.name: _ABSENT[column.kind] if value is None else value
        for column, value in zip(schema.columns, values, strict=True)
    }


def _entry(name: str, kind: Kind, value: Any) -> bytes:
    """An entry of Features.feature: the name and a list of one value."""
    return map_entry(name.encode(), _FEATURES[kind](value))


def _float32(value: float) -> bytes:
    return struct.pack("<f", max(-_MAX_FLOAT32, min(_MAX_FLOAT32, value)))


_FEATURES: dict[Kind, Callable[[Any], bytes]] = {
    "string": lambda text: message(LEN_1, message(LEN_1, text.encode())),
    "float": lambda number: message(LEN_2, message(LEN_1, _float32(number))),
    "int": lambda number: message(LEN_3, message(LEN_1, varint(number & (2**64 - 1)))),
}
RENDERERS = {"webdataset": tar_record, "tfrecord": tfrecord_record}
