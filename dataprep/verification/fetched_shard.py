"""Checks a fetched shard: the samples against the parquet file of all rows, record by record.

Each record is rendered again from its row in the parquet file and from the image at the index's offset, and compared.
So every byte of the samples file is checked, whatever columns the table has.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from dataprep.arrays import pa
from dataprep.dataset.paths import named
from dataprep.dataset.records import NO_LABEL, Manifest
from dataprep.errors import FormatError
from dataprep.fetched.plan import laion_options, sidecars_of
from dataprep.fetched.shard import (
    MAX_RECORD_BYTES,
    MAX_SIDECAR_BYTES,
    RENDERERS,
    SHARD_ENDS,
    Renderer,
    ShardSchema,
    arrow_schema,
    stats_json,
)
from dataprep.formats.img2dataset import SUCCESS
from dataprep.formats.pictures import UnusableImageError, load_image, open_image
from dataprep.messages import one_line
from dataprep.storage import Storage
from dataprep.storage.checksums import HashingWriter, crc32c_of
from dataprep.storage.parquet import table_in
from dataprep.verification.findings import Findings
from dataprep.verification.shard import CheckedShard, DigestingReader, Row, ShardResult, check_digests, check_pixels

_CHUNK = 1 << 20


def check_fetched_shard(shard: CheckedShard, result: ShardResult) -> None:
    """Check a shard and its sidecars."""
    storage, manifest, entry, findings = shard.storage, shard.manifest, shard.entry, result.findings
    schema = laion_options(manifest).schema
    parquet_name, stats_name = sidecars_of(manifest, shard.number)
    parquet, stats = (_read(storage, _entry(manifest, name), findings) for name in (parquet_name, stats_name))
    table = None if parquet is None else _table(parquet, schema, parquet_name, findings)
    if table is not None:
        _check_stats(table, stats, stats_name, result)
    info = storage.stat(entry["file"])
    if info is None or info.num_bytes != entry["bytes"]:
        found = f"{info.num_bytes:,} bytes" if info else "no such file"
        findings.add("size" if info else "missing", entry["file"], f"{found}, expected {entry['bytes']:,} bytes")
        return
    digest = HashingWriter()
    with storage.open(entry["file"]) as stream:
        if table is not None and shard.rows is not None:
            _check_records(DigestingReader(stream, digest), shard, shard.rows, table, schema, result)
        while chunk := stream.read(_CHUNK):
            digest.write(chunk)
    result.num_bytes = digest.num_bytes
    check_digests(digest, entry, findings)


def _entry(manifest: Manifest, name: str) -> Mapping[str, Any]:
    """Return the manifest's entry of a file; the entries are sorted by name."""
    return manifest.files[bisect_left(manifest.files, name, key=itemgetter("file"))]


def _read(storage: Storage, entry: Mapping[str, Any], findings: Findings) -> bytes | None:
    """Return the content of a sidecar; None if it differs from its entry in the manifest."""
    from dataprep.verification.files import check_file

    if entry["bytes"] > MAX_SIDECAR_BYTES:
        findings.add("size", entry["file"], f"{entry['bytes']:,} bytes, expected at most {MAX_SIDECAR_BYTES:,}")
        return None
    return storage.read(entry["file"]) if check_file(storage, entry, findings) else None


def _table(data: bytes, schema: ShardSchema, name: str, findings: Findings) -> pa.Table | None:
    try:
        table = table_in(data)
        table.validate(full=True)
    except (pa.ArrowException, ValueError, OSError, MemoryError, OverflowError) as error:
        findings.add("format", name, f"not a readable parquet file ({one_line(error)})")
        return None
    if not table.schema.remove_metadata().equals(arrow_schema(schema)):
        columns = ", ".join(f"{field.name} {field.type}" for field in table.schema)[:200]
        findings.add("format", name, f"columns {columns}; expected the columns that the options give")
        return None
    return table


def _check_stats(table: pa.Table, stats: bytes | None, name: str, result: ShardResult) -> None:
    """Compare the counts of the stats with the rows of the parquet file, and store them for the split's sums."""
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
        result.findings.add("count", name, "its counts differ from the rows in the parquet file")


def _check_records(
    stream: DigestingReader,
    shard: CheckedShard,
    rows: list[Row],
    table: pa.Table,
    schema: ShardSchema,
    result: ShardResult,
) -> None:
    where, keys = shard.entry["file"], []
    render = RENDERERS[shard.manifest.format]
    try:
        offset = 0
        for position, (row, values) in enumerate(_paired(rows, table, schema)):
            if row.record_offset != offset or not 0 < row.record_bytes <= MAX_RECORD_BYTES:
                found = f"record {position} at {row.record_offset:,} with {row.record_bytes:,} bytes"
                raise FormatError(f"{found}, expected at {offset:,} and at most {MAX_RECORD_BYTES:,}")
            record = stream.read(row.record_bytes)
            offset += row.record_bytes
            place = f"{where} record {position} ({named(row.key)})"
            fault = _record_fault(record, row, values, schema, render)
            if fault:
                result.findings.add("record", place, fault)
            keys.append(row.key)
            if shard.deep:
                _check_image(place, record, row, schema, result.findings)
        end = SHARD_ENDS[shard.manifest.format]
        if stream.read(len(end) + 1) != end:
            raise FormatError(f"after {len(keys):,} records, got other bytes than the end of a shard")
    except FormatError as error:
        result.findings.add("format", where, str(error))
    result.count(keys, [], 0)


def _paired(rows: list[Row], table: pa.Table, schema: ShardSchema) -> Iterator[tuple[Row, Sequence[Any]]]:
    """Yield rows of the index, each with its row of the parquet file. Raises FormatError if their numbers differ."""
    columns = [table.column(column.name).to_pylist() for column in schema.columns]
    status = [column.name for column in schema.columns].index("status")
    successes = [values for values in zip(*columns, strict=True) if values[status] == SUCCESS]
    if len(successes) != len(rows):
        raise FormatError(f"{len(rows):,} rows of the index, {len(successes):,} successes in the parquet file")
    yield from zip(rows, successes, strict=True)


def _record_fault(record: bytes, row: Row, values: Sequence[Any], schema: ShardSchema, render: Renderer) -> str:
    """Return the difference between a record and its rows in index and parquet file; empty if there is none."""
    fields = dict(zip((column.name for column in schema.columns), values, strict=True))
    start = row.image_offset - row.record_offset
    image = record[start : start + row.image_bytes] if start >= 0 else b""
    try:
        expected = render(values, image, schema)
    except (FormatError, ValueError, TypeError, OverflowError, AttributeError) as error:
        return f"no record can be made of its row in the parquet file ({error})"
    due = (fields["key"], fields["height"], fields["width"], NO_LABEL, len(expected.head), crc32c_of(image))
    if (row.key, row.height, row.width, row.label, start, row.image_crc32c) != due:
        return "index and parquet file contradict each other about it"
    return "" if b"".join(expected) == record else "its bytes are not those that its row in the parquet file gives"


def _check_image(where: str, record: bytes, row: Row, schema: ShardSchema, findings: Findings) -> None:
    start = row.image_offset - row.record_offset
    image = record[start : start + row.image_bytes]
    sides = (row.height or 0, row.width or 0)
    if schema.image_name == "jpg":
        check_pixels(where, image, sides, findings, decode=True)
        return
    try:
        with open_image(image) as opened:
            found = (opened.height, opened.width)
            if opened.format != schema.image_name.upper():
                raise UnusableImageError("no-image", f"a {opened.format}, expected a {schema.image_name.upper()}")
            if found == sides:
                load_image(opened, image)
            else:
                findings.add("image", where, f"height and width {found}, recorded {sides}")
    except UnusableImageError as error:
        findings.add("image", where, f"{error.fault}: {error}")
