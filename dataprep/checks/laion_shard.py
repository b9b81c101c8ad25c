"""One shard of a table of URLs: the samples against the parquet file beside them, record by record.

The samples' file is written anew, record after record, from the rows of the parquet file and the images that lie where
the index says; so every byte of it is accounted for, whatever columns the table has.
"""

from __future__ import annotations

import io
import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, BinaryIO

from dataprep.checks.findings import Findings
from dataprep.checks.laion import files_beside, laion_options
from dataprep.checks.shard import Row, ShardResult, check_digests, check_pixels
from dataprep.checksums import HashingWriter, crc32c_of
from dataprep.errors import FormatError
from dataprep.formats.checked import MAX_IMAGE_BYTES
from dataprep.formats.ustar import BLOCK_BYTES
from dataprep.laion.collect import SUCCESS
from dataprep.laion.shard import RENDERERS, ShardSchema, arrow_schema, stats_json
from dataprep.records import NO_LABEL, Manifest
from dataprep.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa

MAX_BESIDE_BYTES = 2 << 30
"""Of a parquet file that is read: 10,000 rows have 3 MB."""
MAX_RECORD_BYTES = MAX_IMAGE_BYTES + 2**20
_END = bytes(2 * BLOCK_BYTES)
_CHUNK = 1 << 20


def check_laion_shard(
    storage: Storage, manifest: Manifest, number: int, rows: list[Row] | None, *, deep: bool, result: ShardResult
) -> None:
    """Check a shard and the files beside it.

    Args:
        storage: Of the dataset.
        manifest: Its manifest, in which nothing was found.
        number: Of the shard.
        rows: Its rows of the index; None where they prove nothing.
        deep: Decode every image.
        result: Takes what is found.
    """
    split, schema = manifest.splits[0], laion_options(manifest).schema
    shard, findings = split.shards[number], result.findings
    parquet_name, stats_name = files_beside(manifest, number)
    parquet, stats = (_read(storage, _entry(manifest, name), findings) for name in (parquet_name, stats_name))
    table = None if parquet is None else _table(parquet, schema, parquet_name, findings)
    if table is not None:
        _check_stats(table, stats, stats_name, result)
    info = storage.stat(shard["file"])
    if info is None or info.num_bytes != shard["bytes"]:
        found = f"{info.num_bytes:,} bytes" if info else "no such file"
        findings.add("size" if info else "missing", shard["file"], f"{found}, expected {shard['bytes']:,} bytes")
        return
    digest = HashingWriter(None)
    with storage.open(shard["file"]) as stream:
        if table is not None and rows is not None:
            _check_records(_Digesting(stream, digest), table, rows, manifest, schema, shard, deep, result)
        while chunk := stream.read(_CHUNK):
            digest.write(chunk)
    result.num_bytes = digest.num_bytes
    check_digests(digest, shard, findings)


def _entry(manifest: Manifest, name: str) -> Mapping[str, Any]:
    """Of a file that is listed, among files sorted by name."""
    return manifest.files[bisect_left(manifest.files, name, key=itemgetter("file"))]


def _read(storage: Storage, entry: Mapping[str, Any], findings: Findings) -> bytes | None:
    """A file beside the shard, if it is the very one."""
    from dataprep.checks.files import check_file

    if entry["bytes"] > MAX_BESIDE_BYTES:
        findings.add("size", entry["file"], f"{entry['bytes']:,} bytes, expected at most {MAX_BESIDE_BYTES:,}")
        return None
    return storage.read(entry["file"]) if check_file(storage, entry, findings) else None


def _table(data: bytes, schema: ShardSchema, name: str, findings: Findings) -> pa.Table | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        table.validate(full=True)
    except (pa.ArrowException, ValueError, OSError, MemoryError, OverflowError) as error:
        findings.add("format", name, f"no readable parquet file ({' '.join(str(error).split())[:200]})")
        return None
    if not table.schema.remove_metadata().equals(arrow_schema(schema)):
        columns = ", ".join(f"{field.name} {field.type}" for field in table.schema)[:200]
        findings.add("format", name, f"columns {columns}; expected those that the options give")
        return None
    return table


def _check_stats(table: pa.Table, stats: bytes | None, name: str, result: ShardResult) -> None:
    """The counts beside the shard against its rows; what they add to those of all."""
    statuses, messages = (table.column(column).to_pylist() for column in ("status", "error_message"))
    by_status = Counter(statuses)
    by_reason = Counter(message or status for message, status in zip(messages, statuses, strict=True))
    result.statuses, result.reasons = Counter(by_status), Counter(by_reason)
    if stats is None:
        return
    try:
        before = json.loads(stats).get("before")
        expected = stats_json(by_status, dict(sorted(by_reason.items())), before)
        for counts, had in ((result.statuses, "statuses"), (result.reasons, "reasons")):
            counts.subtract(before[had] if before else {})
        balanced = not before or all(sum(before[had].values()) == len(statuses) for had in ("statuses", "reasons"))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        expected, balanced = b"", False
    if stats != expected or not balanced:
        result.findings.add("count", name, "other counts than the rows beside it have")


class _Digesting:
    """Reads exactly, and digests what it reads."""

    def __init__(self, stream: BinaryIO, digest: HashingWriter) -> None:
        self._stream, self._digest = stream, digest

    def read(self, num_bytes: int) -> bytes:
        data = self._stream.read(num_bytes)
        self._digest.write(data)
        return data


def _check_records(
    stream: _Digesting,
    table: pa.Table,
    rows: list[Row],
    manifest: Manifest,
    schema: ShardSchema,
    shard: Mapping[str, Any],
    deep: bool,
    result: ShardResult,
) -> None:
    where, keys = shard["file"], []
    try:
        offset = 0
        for position, (row, values) in enumerate(_paired(rows, table, schema)):
            if row.record_offset != offset or not 0 < row.record_bytes <= MAX_RECORD_BYTES:
                found = f"record {position} at {row.record_offset:,} with {row.record_bytes:,} bytes"
                raise FormatError(f"{found}, expected at {offset:,} and at most {MAX_RECORD_BYTES:,}")
            record = stream.read(row.record_bytes)
            offset += row.record_bytes
            _check_record(f"{where} record {position}", record, row, values, manifest, schema, result.findings)
            keys.append(row.key)
            if deep:
                _check_image(f"{where} record {position}", record, row, schema, result.findings)
        end = _END if manifest.format == "webdataset" else b""
        if stream.read(len(end) + 1) != end:
            raise FormatError(f"after {len(keys):,} records other bytes than the end of a shard")
    except FormatError as error:
        result.findings.add("format", where, str(error))
    result.count(keys, [], 0)


def _paired(rows: list[Row], table: pa.Table, schema: ShardSchema) -> Iterator[tuple[Row, Sequence[Any]]]:
    """Rows of the index beside those of the parquet file that succeeded; as many, or FormatError."""
    columns = [table.column(column.name).to_pylist() for column in schema.columns]
    status = [column.name for column in schema.columns].index("status")
    successes = [values for values in zip(*columns, strict=True) if values[status] == SUCCESS]
    if len(successes) != len(rows):
        raise FormatError(
            f"{len(rows):,} rows of the index, {len(successes):,} successes in the parquet file beside it"
        )
    yield from zip(rows, successes, strict=True)


def _check_record(
    where: str,
    record: bytes,
    row: Row,
    values: Sequence[Any],
    manifest: Manifest,
    schema: ShardSchema,
    findings: Findings,
) -> None:
    fields = dict(zip((column.name for column in schema.columns), values, strict=True))
    start = row.image_offset - row.record_offset
    image = record[start : start + row.image_bytes] if start >= 0 else b""
    try:
        expected = RENDERERS[manifest.format](values, image, schema)
    except (FormatError, ValueError, TypeError, OverflowError, AttributeError) as error:
        findings.add("record", where, f"{row.key[:200]!r}: its row in the parquet file gives no record ({error})")
        return
    due = (fields["key"], fields["height"], fields["width"], NO_LABEL, len(expected.head), crc32c_of(image))
    if (row.key, row.height, row.width, row.label, start, row.image_crc32c) != due:
        findings.add("record", where, f"{row.key[:200]!r}: index and parquet file do not say the same of it")
    elif b"".join(expected) != record:
        findings.add("record", where, f"{row.key[:200]!r}: other bytes than its row in the parquet file gives")


def _check_image(where: str, record: bytes, row: Row, schema: ShardSchema, findings: Findings) -> None:
    start = row.image_offset - row.record_offset
    image = record[start : start + row.image_bytes]
    sides = (row.height or 0, row.width or 0)
    if schema.image_name == "jpg":
        check_pixels(where, row.key, image, sides, findings, decode=True)
        return
    from PIL import Image

    try:
        with Image.open(io.BytesIO(image), formats=[schema.image_name.upper()]) as opened:
            if (opened.height, opened.width) == sides:  # before anything is allocated
                opened.load()
            found = (opened.height, opened.width)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        findings.add("image", where, f"{row.key}: undecodable: {str(error)[:200]}")
        return
    if found != sides:
        findings.add("image", where, f"{row.key}: height and width {found}, recorded {sides}")
