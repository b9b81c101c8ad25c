"""The files of one shard: the samples, and two sidecars as in img2dataset: a parquet file of all rows and
`_stats.json`.

    train/00012.tar                 key.jpg, key.json, key.txt
    or laion-train.tfrecord-00012
    train/00012.parquet             every row, with its status and reason
    train/00012_stats.json          rows by status and by reason; no times, so that equal shards are equal files

A name contains the shard's number only, so that adding shards later renames nothing.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from dataprep.arrays import pa, pq
from dataprep.dataset.columns import table_of
from dataprep.dataset.index import IndexRows
from dataprep.dataset.records import NO_LABEL, Placement
from dataprep.errors import FormatError, UsageError
from dataprep.fetched import collect as collecting
from dataprep.formats import example
from dataprep.formats.base import MAX_IMAGE_BYTES
from dataprep.formats.img2dataset import DUPLICATE, FAILED_TO_DOWNLOAD, FAILED_TO_RESIZE, FILTERED, STATUSES, SUCCESS
from dataprep.formats.tars import BLOCK_BYTES, members_around
from dataprep.formats.tfrecord import tfds_name
from dataprep.sources.laion import LaionTables, Row
from dataprep.sources.tables import Column, Kind, Value
from dataprep.storage.checksums import HashingWriter
from dataprep.storage.parquet import table_in

FETCHED_FORMATS = ("webdataset", "tfrecord")
"""Formats in which fetched images are stored."""
MAX_RECORD_BYTES = MAX_IMAGE_BYTES + 2**20
"""Maximum size of a record that is read."""
MAX_SIDECAR_BYTES = 2 << 30
"""Maximum size of a sidecar that is read; the parquet file of 10,000 rows has 3 MB."""
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
"""Columns with a row's result, in img2dataset's order; they follow the columns carried from the table."""
_DUPLICATE_FIELDS = (Column("dhash", "string"), Column("duplicate_of", "string"))
CONSENT = "consent"
"""Column with the evidence of a row's opt-out; only in the parquet file of all rows, not in records."""
_TAKEN = frozenset(column.name for column in (*RESULT_FIELDS, *_DUPLICATE_FIELDS)) | {
    CONSENT,
    "txt",
    "jpg",
    "png",
    "webp",
}
_ABSENT: dict[Kind, str | int | float] = {"string": "", "int": -1, "float": -1.0}
"""Value for a missing one in records: TFDS has no null, and Hugging Face infers a schema from the first records."""
_FEATURES: dict[Kind, Callable[[Any], bytes]] = {
    "string": lambda text: example.bytes_feature(text.encode()),
    "float": example.float_feature,
    "int": lambda value: example.integer_list([value]),
}
SHARD_ENDS: dict[str, bytes] = {"webdataset": bytes(2 * BLOCK_BYTES), "tfrecord": b""}
"""The bytes after the last record of a shard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardNames:
    """File names relative to the dataset's root, by a shard's position in the split."""

    samples: str
    """Name of the samples file, with {} in place of the shard's number."""
    sidecar: str
    """Name of the sidecars without `.parquet` or `_stats.json`, with {} for the shard's number."""
    digits: int
    """Minimum number of digits of a shard's number."""
    shift: int = 0
    """Difference between number and position of shards that a change adds."""

    def samples_file(self, index: int) -> str:
        return self.samples.replace("{}", self._number(index))

    def parquet_file(self, index: int) -> str:
        return self.sidecar.replace("{}", self._number(index)) + ".parquet"

    def stats_file(self, index: int) -> str:
        return self.sidecar.replace("{}", self._number(index)) + "_stats.json"

    def files(self, index: int) -> tuple[str, str, str]:
        return self.samples_file(index), self.parquet_file(index), self.stats_file(index)

    def _number(self, index: int) -> str:
        return f"{index + self.shift:0{self.digits}d}"


def built_names(dataset: str, format_name: str, split: str, digits: int) -> ShardNames:
    """Return the naming scheme of the files in a build's shards."""
    samples = f"{split}/{{}}.tar" if format_name == "webdataset" else f"{tfds_name(dataset)}-{split}.tfrecord-{{}}"
    return ShardNames(samples=samples, sidecar=f"{split}/{{}}", digits=digits)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSchema:
    """The columns of all shards of a dataset."""

    image_name: collecting.EncodeFormat
    """Extension of image members and name of the image feature: `jpg`, `png` or `webp`."""
    carried: tuple[Column, ...]
    """Columns of the table under their names in records: `table_<name>` if a name is taken."""
    duplicates: bool

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.carried, *RESULT_FIELDS, *(_DUPLICATE_FIELDS if self.duplicates else ()))


class Record(NamedTuple):
    """One stored sample in three pieces, so that the image's bytes need not be copied."""

    head: bytes
    image: bytes
    tail: bytes


Renderer = Callable[[Sequence[Value], bytes, ShardSchema], Record]
"""Function that makes a record from a row's values, in the order of the schema's columns, and its image."""


def schema_with(table_columns: Sequence[Column], options: collecting.RowOptions) -> ShardSchema:
    carried: list[Column] = []
    taken = set(_TAKEN) | {column.name for column in table_columns}
    for column in table_columns:
        name = column.name
        if name in _TAKEN:
            while name in taken:
                name = f"table_{name}"
            taken.add(name)
        carried.append(Column(name, column.kind))
    return ShardSchema(
        image_name=options.encode.encode_format, carried=tuple(carried), duplicates=options.duplicates.looks
    )


def values_of(row: Row, result: collecting.RowResult, schema: ShardSchema) -> tuple[Value, ...]:
    """Return a row's values for `schema.columns`, with None for a missing value."""
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
        "sha256": result.digest,
    }
    values = (*row.carried, *(found[column.name] for column in RESULT_FIELDS))
    if not schema.duplicates:
        return values
    dhash = None if image is None or image.dhash is None else f"{image.dhash:016x}"
    return (*values, dhash, result.duplicate_of)


def write_samples(
    stream: BinaryIO,
    format_name: str,
    rows: Sequence[Row],
    results: Sequence[collecting.RowResult],
    schema: ShardSchema,
    spool: BinaryIO,
) -> list[Placement]:
    """Write the samples of a shard: the rows with the status success, in order.

    Returns:
        Position of each sample, in bytes from the shard's start.
    """
    render = RENDERERS[format_name]
    places: list[Placement] = []
    offset = 0
    for row, result in _successes(rows, results):
        record = render(values_of(row, result, schema), collecting.read_image(spool, result), schema)
        for piece in record:
            stream.write(piece)
        image_offset = offset + len(record.head)
        size = sum(map(len, record))
        places.append(Placement(offset, size, image_offset, len(record.image)))
        offset += size
    stream.write(SHARD_ENDS[format_name])
    return places


def tar_record(values: Sequence[Value], image: bytes, schema: ShardSchema) -> Record:
    """Return a sample as members of a tar: `key.jpg`, `key.json` and `key.txt`, in the order of webdataset's writer."""
    fields = _present(values, schema)
    members = {b".json": _indented(fields).encode(), b".txt": str(fields["caption"]).encode()}
    head, tail = members_around(str(fields["key"]).encode(), f".{schema.image_name}".encode(), len(image), members)
    return Record(head, image, tail)


def tfrecord_record(values: Sequence[Value], image: bytes, schema: ShardSchema) -> Record:
    """Return a sample as a framed tf.train.Example: the image, `txt`, and a feature for each column, sorted by name."""
    fields = _present(values, schema)
    kinds: dict[str, Kind] = {column.name: column.kind for column in schema.columns} | {"txt": "string"}
    fields["txt"] = fields["caption"]
    entries = {name: example.map_entry(name.encode(), _FEATURES[kinds[name]](fields[name])) for name in sorted(fields)}
    before = b"".join(entry for name, entry in entries.items() if name < schema.image_name)
    after = b"".join(entry for name, entry in entries.items() if name > schema.image_name)
    start = example.example_before(before, schema.image_name.encode(), len(image), len(after))
    head, tail = example.frame_around(start, image, after)
    return Record(head, image, tail)


RENDERERS: dict[str, Renderer] = {"webdataset": tar_record, "tfrecord": tfrecord_record}


def index_table(
    split_index: int,
    rows: Sequence[Row],
    results: Sequence[collecting.RowResult],
    places: Sequence[Placement],
    spool: BinaryIO,
) -> pa.Table:
    table = IndexRows(split_index)
    for (row, result), place in zip(_successes(rows, results), places, strict=True):
        image = result.image
        height, width = (image.height, image.width) if image else (None, None)
        table.add(row.key, collecting.read_image(spool, result), place, label=NO_LABEL, height=height, width=width)
    return table.table()


def rows_parquet(rows: Sequence[Row], results: Sequence[collecting.RowResult], schema: ShardSchema) -> bytes:
    """Return the content of the parquet file: every row of the shard, with or without an image."""
    arrow = arrow_schema(schema)
    values = [(*values_of(row, result, schema), result.consent) for row, result in zip(rows, results, strict=True)]
    columns = list(zip(*values, strict=True)) if values else [()] * len(arrow)
    sink = io.BytesIO()
    pq.write_table(table_of(columns, arrow), sink)
    return sink.getvalue()


def arrow_schema(schema: ShardSchema) -> pa.Schema:
    kinds = {"string": pa.string(), "int": pa.int64(), "float": pa.float64()}
    narrow = {"width", "height", "original_width", "original_height"}
    columns = [(c.name, pa.int32() if c.name in narrow else kinds[c.kind]) for c in schema.columns]
    return pa.schema([*columns, (CONSENT, pa.string())])


def stats_json(
    statuses: Mapping[str, int], reasons: Mapping[str, int], before: Mapping[str, Mapping[str, int]] | None = None
) -> bytes:
    """Return the content of `_stats.json`: the counts of img2dataset and of further statuses, which add up to `count`,
    and of retried rows, which this shard counts now, the `statuses` and `reasons` before."""
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


@dataclass(frozen=True, slots=True)
class MadeShard:
    """The parts of a shard for its receipt, except the digests of the samples file."""

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


def refuse_unfit(tables: LaionTables, options: collecting.RowOptions, format_name: str) -> None:
    """Raise UsageError, before the first shard, if the options do not fit the tables or the format."""
    collecting.refuse_absent_columns(options.row_filter, tables.columns)
    if options.verify_hash is not None and options.verify_hash not in tables.columns:
        raise UsageError(
            f"`verify_hash` {options.verify_hash}: the table has no such column; name it with `column` "
            f"{options.verify_hash}=NAME"
        )
    if format_name not in FETCHED_FORMATS:
        raise UsageError(f"laion is built as webdataset or tfrecord, not {format_name}")
    if format_name == "tfrecord" and options.encode.encode_format == "webp":
        raise UsageError("`encode_format` webp: TFDS decodes no WebP; use jpg or png, or `format` webdataset")


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """Options for making shards from the rows of a dataset."""

    format: str
    rows: collecting.RowOptions
    """Options that determine a row's result."""
    schema: ShardSchema


class Streams(NamedTuple):
    """The two files that a shard is written to; both are left open."""

    samples: BinaryIO
    """An empty file for writing, which receives the samples."""
    spool: BinaryIO
    """An empty file for writing and reading, which holds the encoded images until all rows have a status."""


def make_shard(
    rows: Sequence[Row],
    fetch: collecting.Fetch,
    options: ShardOptions,
    split_index: int,
    streams: Streams,
    before: Mapping[str, Mapping[str, int]] | None = None,
) -> MadeShard:
    """Fetch the rows of a shard and write their samples; see `stats_json` for what retried rows were `before`."""
    schema, spool = options.schema, streams.spool
    results = collecting.collect(rows, fetch, options.rows, spool)
    places = write_samples(streams.samples, options.format, rows, results, schema, spool)
    statuses, reasons = collecting.count_statuses(results), collecting.count_reasons(results)
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
    """Read a shard that `make_shard` made from these rows, and return it with the digests of its samples.

    Each record is made again from its row in the parquet file and its image, and compared. Raises FormatError if the
    parquet file has other rows, or a record differs.
    """
    schema, digests, index = options.schema, HashingWriter(), IndexRows(split_index)

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


def _indented(fields: Mapping[str, Any]) -> str:
    """Faster `json.dumps(fields, indent=4)` for plain values, because Python's C encoder cannot indent."""
    return "{\n" + ",\n".join(f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items()) + "\n}"


def _successes(
    rows: Sequence[Row], results: Sequence[collecting.RowResult]
) -> Iterator[tuple[Row, collecting.RowResult]]:
    for row, result in zip(rows, results, strict=True):
        if result.status == SUCCESS:
            yield row, result


def _present(values: Sequence[Value], schema: ShardSchema) -> dict[str, str | int | float]:
    """Return the values by name, with null replaced."""
    return {
        column.name: _ABSENT[column.kind] if value is None else value
        for column, value in zip(schema.columns, values, strict=True)
    }


def _image_of_tar(read: Callable[[int], bytes], schema: ShardSchema) -> tuple[bytes, bytes]:
    """Read the beginning of the stream's next record; return the bytes that were read, and the image in them."""
    head = read(BLOCK_BYTES)
    image = read(_checked_bytes(head[124:136].rstrip(b"\0 "), 8))
    return head + image, image


def _image_of_tfrecord(read: Callable[[int], bytes], schema: ShardSchema) -> tuple[bytes, bytes]:
    """Read the stream's next record; return the bytes that were read, and the image in them."""
    head = read(example.FRAME_HEAD_BYTES)
    length = example.frame_length(head) if len(head) == example.FRAME_HEAD_BYTES else None
    record = head + read(_checked_bytes(str(length).encode(), 10) + example.FRAME_TAIL_BYTES)

    def read_range(offset: int, num_bytes: int) -> bytes:
        return record[offset : offset + num_bytes]

    feature = example.features_of(read_range, example.FRAME_HEAD_BYTES, len(record) - example.FRAME_TAIL_BYTES).get(
        schema.image_name
    )
    ranges = example.byte_ranges(read_range, feature) if feature is not None else []
    if len(ranges) != 1:
        raise FormatError(f"{len(ranges)} images in a record, expected one")
    return record, record[slice(*ranges[0])]


IMAGE_READERS: dict[str, Callable[[Callable[[int], bytes], ShardSchema], tuple[bytes, bytes]]] = {
    "webdataset": _image_of_tar,
    "tfrecord": _image_of_tfrecord,
}
"""Function that reads a record, at least up to the end of its image, and finds the image in it."""


def _checked_bytes(digits: bytes, base: int) -> int:
    """Parse the size of a record as the file states it. Raises FormatError for a size that no record has."""
    try:
        size = int(digits, base)
    except ValueError:
        size = -1
    if not 0 <= size <= MAX_RECORD_BYTES:
        raise FormatError(f"a record of {digits.decode(errors='replace')} bytes")
    return size


def _stored_values(parquet: bytes, rows: Sequence[Row], schema: ShardSchema) -> Iterator[tuple[Value, ...]]:
    """Yield the values of each row of a parquet file. Raises FormatError if the file has other rows."""
    try:
        table = table_in(parquet)
        keys = table.column("key").to_pylist()
    except (ValueError, KeyError, OSError) as error:  # from memory: no disk is read
        raise FormatError(f"the parquet file cannot be read ({error})") from error
    if not table.schema.remove_metadata().equals(arrow_schema(schema)) or keys != [row.key for row in rows]:
        raise FormatError("the parquet file has other rows or columns")
    yield from zip(*(column.to_pylist() for column in table.columns[:-1]), strict=True)
