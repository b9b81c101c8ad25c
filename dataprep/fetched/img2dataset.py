"""The layout of adopted output of img2dataset, for trying its failed rows again.

Columns and keys come from its parquet files, the format of images from the records. The options by which images were
made come from the user (making.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from dataprep.dataset.index import open_index
from dataprep.dataset.records import Manifest, SplitManifest
from dataprep.errors import FormatError, UsageError
from dataprep.fetched.collect import DIGESTS
from dataprep.fetched.encode import ENCODE_FORMATS, EncodeFormat
from dataprep.fetched.layout import Layout, Replacement
from dataprep.fetched.names import ShardNames
from dataprep.fetched.shard import RESULT_FIELDS, ShardSchema
from dataprep.formats.example import features_of
from dataprep.formats.img2dataset import IMG2DATASET, SHARD, reason_of, sidecars_of
from dataprep.formats.img2dataset_tfds import grown, texts_in
from dataprep.formats.tfds import DATASET_INFO, FEATURES, MAX_DESCRIPTION_BYTES
from dataprep.formats.ustar import BLOCK_BYTES
from dataprep.formats.wire import FRAME_HEAD_BYTES, FRAME_TAIL_BYTES
from dataprep.sources.laion import Row
from dataprep.sources.tables import Column, Kind, Value
from dataprep.storage import Storage
from dataprep.storage.base import read_bounded
from dataprep.storage.parquet import read_columns

if TYPE_CHECKING:
    import pyarrow as pa

_RESULTS = frozenset(column.name for column in RESULT_FIELDS) | set(DIGESTS)
_NEEDED = ("key", "url", "status", "error_message")
_MAX_KEY_DIGITS = 7
_NAME_BYTES = 100
"""Size of the name in a tar header."""


def img2dataset_layout(storage: Storage, manifest: Manifest) -> Layout:
    """Return the layout of img2dataset's output.

    Args:
        storage: Where the dataset lies.
        manifest: Manifest of an adopted dataset, without faults.

    Raises:
        UsageError: The rows cannot be tried again; the text says why.
        FormatError: A parquet file is damaged.
    """
    split, numbers, folder, digits = _shards(storage, manifest)
    parquet_files = [sidecars_of(shard["file"])[0] for shard in split.shards]
    table = next(filter(len, (read_columns(storage, name) for name in parquet_files)))
    missing = [name for name in _NEEDED if name not in table.column_names]
    key = str(table.column("key")[0]) if not missing else ""
    key_digits = len(key) - digits
    if missing or not key.isdecimal() or not 0 <= key_digits <= _MAX_KEY_DIGITS:
        problem = f"no column {missing[0]}" if missing else f"key {key[:40]}, expected numbers of shard and row"
        raise UsageError(f"{storage.url}: {problem}; its rows are not those that img2dataset writes")
    is_described = any(entry["file"] == DATASET_INFO for entry in manifest.files)
    texts = texts_in(_description(storage, FEATURES)) if is_described else frozenset()
    schema = _schema(storage, table.schema, _image_name(storage, manifest, split), texts)
    suffix = ".tar" if manifest.format == "webdataset" else ".tfrecord"

    def described(larger: SplitManifest) -> dict[str, Replacement]:
        if not is_described:
            return {}
        existing = _description(storage, DATASET_INFO)
        return {DATASET_INFO: Replacement(existing, grown(existing, larger))}

    return Layout(
        parquet_files=parquet_files,
        numbers=numbers,
        key_digits=key_digits,
        names=ShardNames(
            samples=f"{folder}{{}}{suffix}",
            sidecar=f"{folder}{{}}",
            digits=digits,
            offset=numbers[-1] + 1 - len(numbers),
        ),
        shard_rows=10**key_digits,
        schema=schema,
        row_of=_row_reader(schema),
        reason_of=reason_of,
        described=described,
    )


def _description(storage: Storage, name: str) -> bytes:
    """Read a file that describes the shards for TFDS. Raises FormatError."""
    advice = "adopt the data again with --overwrite"
    data = read_bounded(storage, name, MAX_DESCRIPTION_BYTES, advice=advice)
    if data is None:
        raise FormatError(f"{storage.url_of(name)}: not found, the manifest lists it; {advice}")
    return data


def _shards(storage: Storage, manifest: Manifest) -> tuple[SplitManifest, list[int], str, int]:
    """Return the split, the numbers of its shards, their folder, and the digits of a number. Raises UsageError."""
    adopted = manifest.options["adopted"]
    split = manifest.splits[0]
    matches = [SHARD.fullmatch(shard["file"]) for shard in split.shards]
    problem = ""
    if adopted.get("kind") != IMG2DATASET:
        problem = f"adopted {adopted.get('kind')} data have no table of rows; expected those of img2dataset"
    elif adopted.get("data_url") is not None:
        problem = "its shards lie elsewhere, but new ones must lie beside them; adopt them without --index"
    elif len(manifest.splits) != 1:
        problem = f"{len(manifest.splits)} splits, expected one; adopt the folder of each"
    elif not split.statuses:
        problem = (
            "the statuses of its rows are not known; put the parquet files and stats beside the shards, and adopt it "
            "with --overwrite"
        )
    elif not all(matches):
        odd = next(shard["file"] for shard, match in zip(split.shards, matches, strict=True) if not match)
        problem = f"shard {odd}, expected numbers such as 00000"
    found = [(match[1], int(match[2]), len(match[2])) for match in matches if match]
    numbers = [number for _, number, _ in found]
    if not problem and (numbers != sorted(set(numbers)) or len({folder for folder, *_ in found}) > 1):
        problem = "shards in several folders, or numbers that are not ascending; adopt each folder"
    if problem:
        raise UsageError(f"{storage.url}: {problem}")
    return split, numbers, found[0][0], found[0][2]


def _schema(storage: Storage, arrow: pa.Schema, image_name: EncodeFormat, texts: frozenset[str]) -> ShardSchema:
    columns = [Column(field.name, _kind_of(storage, field)) for field in arrow]
    carried = [column for column in columns if column.name not in _RESULTS]
    results = [column for column in columns if column.name in _RESULTS]
    if any(column.kind != "string" for column in results if column.name in ("url", "caption")):
        raise UsageError(f"{storage.url}: url or caption is no text in its parquet files; build it again")
    return ShardSchema(
        image_name=image_name,
        carried=tuple(carried),
        duplicates=False,
        results=tuple(results),
        arrow_types=tuple(str(arrow.field(column.name).type) for column in (*carried, *results)),
        json_nulls=True,
        texts=texts,
    )


def _kind_of(storage: Storage, field: pa.Field) -> Kind:
    import pyarrow as pa

    if pa.types.is_boolean(field.type) or pa.types.is_integer(field.type):
        return "int"
    if pa.types.is_floating(field.type):
        return "float"
    if pa.types.is_string(field.type) or pa.types.is_large_string(field.type) or pa.types.is_null(field.type):
        return "string"
    raise UsageError(
        f"{storage.url}: column {field.name} of {field.type} in its parquet files; expected texts and numbers"
    )


def _row_reader(schema: ShardSchema) -> Callable[[dict[str, Value]], Row]:
    roles = [column.name for column in schema.results if column.name in ("url", "caption")]
    carried = [column.name for column in schema.carried]

    def row_of(fields: dict[str, Value]) -> Row:
        values = tuple(_finite(fields[name]) for name in carried)
        return Row(str(fields["key"]), {role: fields[role] for role in roles}, values)

    return row_of


def _finite(value: Value) -> Value:
    """Return a value, but None for NaN, which pandas writes for a missing value."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _image_name(storage: Storage, manifest: Manifest, split: SplitManifest) -> EncodeFormat:
    """Return the name of the first sample's image: `jpg`, `png` or `webp`. Raises FormatError."""
    place = next(place for place, shard in enumerate(split.shards) if shard["samples"])
    file = split.shards[place]["file"]
    row = open_index(storage, split).read_group(place).slice(0, 1).to_pylist()[0]
    if manifest.format == "webdataset":
        header = storage.read_range(file, row["image_offset"] - BLOCK_BYTES, _NAME_BYTES)
        names = {header.partition(b"\0")[0].decode("utf-8", "replace").rpartition(".")[2]}
    else:
        record = storage.read_range(file, row["record_offset"], row["record_bytes"])
        stop = len(record) - FRAME_TAIL_BYTES
        names = set(features_of(lambda offset, count: record[offset : offset + count], FRAME_HEAD_BYTES, stop))
    found = next((name for name in ENCODE_FORMATS if name in names), None)
    if found is None:
        raise FormatError(
            f"{storage.url_of(file)}: images that are no {', '.join(ENCODE_FORMATS)}; expected one of them"
        )
    return found
