"""One shard against the manifest, its rows of the index, and with deep checks its images: read once, as a stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from dataprep.checks.findings import Findings
from dataprep.checks.hashes import NO_HASHES, name_hashes
from dataprep.checksums import HashingWriter, crc32c_of
from dataprep.errors import FormatError
from dataprep.formats.base import ShardFormat, StoredSample
from dataprep.images import ImagePolicy, check_image
from dataprep.index import ParquetTable, open_index
from dataprep.records import NO_LABEL, Event, Manifest, SplitManifest
from dataprep.storage import Storage, open_storage

NO_COUNTS: NDArray[np.int64] = np.empty(0, np.int64)
_CHUNK = 1 << 20
_DECODE, _HEADER = (ImagePolicy(check=check, on_bad="reject") for check in ("decode", "header"))


@dataclass(slots=True)
class ShardResult:
    """What one shard turned out to hold."""

    index: int
    """Position among all shards of all splits."""
    findings: Findings = field(default_factory=Findings)
    samples: int = 0
    num_bytes: int = 0
    """Read from the shard."""
    keys: NDArray[np.uint64] = field(default_factory=lambda: NO_HASHES)
    """Hashes of the samples' keys in lower case."""
    labels: NDArray[np.int64] = field(default_factory=lambda: NO_COUNTS)
    """Samples by class, shape (classes,)."""
    files: NDArray[np.uint64] = field(default_factory=lambda: NO_HASHES)
    """Of an image folder: hashes of its files' names, shape (files,)."""
    sizes: NDArray[np.int64] = field(default_factory=lambda: NO_COUNTS)
    """Bytes of each of `files`, as the index has them."""
    folders: frozenset[str] = frozenset()
    """First component of the names of `files` below the split."""
    statuses: Counter[str] = field(default_factory=Counter)
    """Of a table of URLs: rows by status, less what rows that were tried again had before."""
    reasons: Counter[str] = field(default_factory=Counter)
    """The same by reason."""

    def count(self, keys: list[str], labels: list[int], num_classes: int) -> None:
        """Note the samples that were found."""
        self.samples = len(keys)
        self.keys = name_hashes(key.lower() for key in keys)
        known = np.asarray([label for label in labels if 0 <= label < num_classes], np.int64)
        self.labels = np.bincount(known, minlength=num_classes)


class Row(NamedTuple):
    """One row of the index; the fields are its columns."""

    key: str
    shard: int
    record_offset: int
    record_bytes: int
    image_offset: int
    image_bytes: int
    image_crc32c: int
    label: int
    height: int | None
    width: int | None


@lru_cache(maxsize=4)
def _open_index(url: str, split: str, sha256: str) -> ParquetTable:
    """Opened once a process; the digest tells a dataset from the next one at the same URL."""
    return open_index(open_storage(url), split)


def read_rows(storage: Storage, split: SplitManifest, number: int, findings: Findings) -> list[Row] | None:
    """The rows of a shard in an index of the right digest and counts, or None where they prove nothing."""
    where = f"{split.index['file']} row group {number}"
    try:
        table = _open_index(storage.url, split.name, split.index["sha256"]).read_group(number)
    except FormatError as error:
        findings.add("format", where, str(error))
        return None
    if table.column("image_crc32c").null_count:
        findings.add("format", where, "values of image_crc32c are missing; build it again")
        return None
    rows = [Row(*row) for row in zip(*(table.column(name).to_pylist() for name in Row._fields), strict=True)]
    for position, row in enumerate(rows):
        if row.shard != number:
            findings.add("index", f"{where} row {position}", f"shard {row.shard}, expected {number}")
            return None
    return rows


def check_shard_file(
    storage: Storage,
    manifest: Manifest,
    shard_format: ShardFormat,
    shard: dict[str, Any],
    rows: list[Row] | None,
    *,
    deep: bool,
    result: ShardResult,
) -> None:
    """A shard that is one file: size, digests, and record by record what the index says of it."""
    where = shard["file"]
    info = storage.stat(where)
    if info is None:
        result.findings.add("missing", where, f"no such file, expected a shard of {shard['bytes']:,} bytes")
        return
    same_size = info.num_bytes == shard["bytes"]
    if not same_size:
        result.findings.add("size", where, f"{info.num_bytes:,} bytes, expected {shard['bytes']:,}")
    digest = HashingWriter(None)
    with storage.open(where) as stream:
        records = shard_format.read_shard(cast(BinaryIO, _Tee(stream, digest)), classes=manifest.classes)
        _check_records(records, manifest, shard, rows, deep, result)
        while same_size and (chunk := stream.read(_CHUNK)):  # what follows a record that could not be read
            digest.write(chunk)
    result.num_bytes = digest.num_bytes
    if same_size:
        check_digests(digest, shard, result.findings)


class _Tee:
    """Passes on what is read and digests it."""

    def __init__(self, stream: BinaryIO, digest: HashingWriter) -> None:
        self._stream, self._digest = stream, digest

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._digest.write(data)
        return data


def check_digests(digest: HashingWriter, shard: dict[str, Any], findings: Findings) -> None:
    """The digests of what was read against those of the manifest."""
    for name in ("sha256", "crc32c"):
        found, expected = getattr(digest, name), shard[name]
        if found != expected:
            findings.add("digest", shard["file"], f"{name} {found[:16]}, expected {expected[:16]}")


def _check_records(
    records: Iterator[StoredSample],
    manifest: Manifest,
    shard: dict[str, Any],
    rows: list[Row] | None,
    deep: bool,
    result: ShardResult,
) -> None:
    where, expected, findings = shard["file"], shard["samples"], result.findings
    keys: list[str] = []
    labels: list[int] = []
    try:
        for position, stored in enumerate(records):
            if position == expected:
                findings.add("count", where, f"more records than the {expected:,} of the manifest")
                break
            sample = stored.sample
            keys.append(sample.key)
            labels.append(sample.label)
            difference = _difference(rows[position], stored) if rows is not None else ""
            if difference:
                findings.add("record", f"{where} record {position}", difference)
            if deep:
                sides = recorded_sides(manifest, sample.height, sample.width)
                check_pixels(f"{where} record {position}", sample.key, sample.image, sides, findings, decode=True)
        else:
            if len(keys) != expected:
                findings.add("count", where, f"{len(keys):,} records, the manifest has {expected:,}")
    except FormatError as error:
        findings.add("format", where, str(error))
    result.count(keys, labels, len(manifest.classes))


def _difference(row: Row, stored: StoredSample) -> str:
    """Where a record differs from its row of the index; empty where it does not."""
    sample, place = stored.sample, stored.placement
    found = (
        sample.key,
        row.shard,
        place.record_offset,
        place.record_bytes,
        place.image_offset,
        place.image_bytes,
        crc32c_of(sample.image),
        sample.label,
        sample.height or None,
        sample.width or None,
    )
    if found == row:
        return ""
    pairs = zip(Row._fields, found, row, strict=True)
    return "; ".join(f"{name} {_shown(got)}, the index has {_shown(due)}" for name, got, due in pairs if got != due)


def recorded_sides(manifest: Manifest, height: int | None, width: int | None) -> tuple[int, int] | None:
    """Height and width as they are recorded, in pixels; None where the build did not look at the image."""
    unknown = manifest.checked == "none" and not (height or width)
    return None if unknown else (height or 0, width or 0)


def check_pixels(
    where: str, key: str, image: bytes, sides: tuple[int, int] | None, findings: Findings, *, decode: bool
) -> None:
    """Decode one image completely, or read its header alone, and compare its sides with the recorded ones."""
    checked = check_image(key, image, _DECODE if decode else _HEADER)
    if isinstance(checked, Event):
        got = f"{key}: {checked.reason}: {checked.detail}"
        findings.add("image", where, f"{got}; expected an RGB or grey JPEG{' that decodes whole' if decode else ''}")
    elif sides is not None and (checked.height, checked.width) != sides:
        got = f"{key}: height and width {(checked.height, checked.width)}"
        findings.add("image", where, f"{got}, recorded {sides}")


def class_name_of(label: int, classes: tuple[str, ...]) -> str | None:
    """The class of a label, empty where there are no classes; None for a label that none has."""
    if not classes:
        return "" if label == NO_LABEL else None
    return classes[label] if 0 <= label < len(classes) else None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 210 else text[:207] + "..."
