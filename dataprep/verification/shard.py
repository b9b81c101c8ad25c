"""Checks a shard against the manifest and its rows of the index and, with --deep, decodes its images; a shard is
streamed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import BinaryIO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from dataprep.builder.images import ImagePolicy, check_image
from dataprep.dataset.hashes import NO_HASHES, name_hashes
from dataprep.dataset.index import Index, open_index
from dataprep.dataset.paths import named
from dataprep.dataset.records import Event, Manifest, ShardEntry, SplitManifest
from dataprep.errors import FormatError
from dataprep.formats import FORMATS
from dataprep.formats.base import StoredSample
from dataprep.messages import quoted
from dataprep.storage import Storage, open_storage
from dataprep.storage.checksums import HashingWriter, crc32c_hex, crc32c_of
from dataprep.verification.findings import Findings

NO_COUNTS: NDArray[np.int64] = np.empty(0, np.int64)
_CHUNK = 1 << 20
_DECODE, _HEADER = (ImagePolicy(check=check, on_bad="reject") for check in ("decode", "header"))


@dataclass(slots=True)
class ShardResult:
    """What was found in one shard."""

    index: int
    """Position among all shards of all splits."""
    findings: Findings = field(default_factory=Findings)
    samples: int = 0
    num_bytes: int = 0
    """Bytes read from the shard."""
    keys: NDArray[np.uint64] = field(default_factory=lambda: NO_HASHES)
    """Hashes of the samples' keys in lower case."""
    labels: NDArray[np.int64] = field(default_factory=lambda: NO_COUNTS)
    """Number of samples of each class, shape (classes,)."""
    files: NDArray[np.uint64] = field(default_factory=lambda: NO_HASHES)
    """Hashes of the names of an image folder's files, shape (files,)."""
    sizes: NDArray[np.int64] = field(default_factory=lambda: NO_COUNTS)
    """Size in bytes of each of `files`, as the index has it."""
    folders: frozenset[str] = frozenset()
    """First components of the names of `files` below the split."""
    statuses: Counter[str] = field(default_factory=Counter)
    """Number of fetched rows by status, minus the earlier statuses of rows that were tried again."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Number of fetched rows by reason, minus the earlier reasons of rows that were tried again."""

    def count(self, keys: list[str], labels: list[int], num_classes: int) -> None:
        """Store the number, keys and labels of the samples that were found."""
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
    annotations_crc32c: int | None = None
    """CRC32C of the annotations; None if the dataset has no features."""


@dataclass(frozen=True, slots=True)
class _Indexed:
    """A split whose index is opened once in each process; its digest distinguishes datasets that follow each other at
    one URL."""

    url: str
    name: str
    sha256: str
    split: SplitManifest = field(compare=False)


@lru_cache(maxsize=4)
def _open_index(indexed: _Indexed) -> Index:
    return open_index(open_storage(indexed.url), indexed.split)


def read_rows(storage: Storage, split: SplitManifest, number: int, findings: Findings) -> list[Row] | None:
    """Return a shard's rows in an index whose digest and counts are right; None if the rows themselves are faulty."""
    where = split.index["file"]
    try:
        index = _open_index(_Indexed(storage.url, split.name, split.index["sha256"], split))
        file, group = index.place(number)
        where = f"{file} row group {group}"
        table = index.read_group(number)
    except FormatError as error:
        findings.add("format", where, str(error))
        return None
    if table.column("image_crc32c").null_count:
        findings.add("format", where, "values of image_crc32c are missing; build it again")
        return None
    names = [name for name in Row._fields if name in table.column_names]
    rows = [Row(*row) for row in zip(*(table.column(name).to_pylist() for name in names), strict=True)]
    for position, row in enumerate(rows):
        if row.shard != number:
            findings.add("index", f"{where} row {position}", f"shard {row.shard}, expected {number}")
            return None
    return rows


@dataclass(frozen=True, slots=True)
class CheckedShard:
    """A shard of a finished dataset: the argument of a check."""

    storage: Storage
    manifest: Manifest
    """The manifest, which has no faults."""
    split: SplitManifest
    number: int
    """Position in the split."""
    rows: list[Row] | None
    """Rows of the shard in the index; None if the index or these rows are faulty."""
    deep: bool
    """Whether to decode every image."""

    @property
    def entry(self) -> ShardEntry:
        """Entry of the shard in the manifest: `{file, samples, bytes, sha256, crc32c}`."""
        return self.split.shards[self.number]


def check_archive_shard(shard: CheckedShard, result: ShardResult) -> None:
    """Check a shard, of any format, of a dataset that was built from archives or folders."""
    from dataprep.verification.folder import check_folder_shard

    check = check_folder_shard if FORMATS[shard.manifest.format].one_file_per_image else check_shard_file
    check(shard, result)


def check_shard_file(shard: CheckedShard, result: ShardResult) -> None:
    """Check a shard that is one file: its size and digests, and each record against its row of the index."""
    entry, storage = shard.entry, shard.storage
    where = entry["file"]
    info = storage.stat(where)
    if info is None:
        result.findings.add("missing", where, f"no such file, expected a shard of {entry['bytes']:,} bytes")
        return
    same_size = info.num_bytes == entry["bytes"]
    if not same_size:
        result.findings.add("size", where, f"{info.num_bytes:,} bytes, expected {entry['bytes']:,}")
    digest = HashingWriter(None)
    with storage.open(where) as stream:
        read = FORMATS[shard.manifest.format].read_shard
        reader = cast(BinaryIO, DigestingReader(stream, digest))
        fault = _check_records(
            read(reader, classes=shard.manifest.classes, features=shard.manifest.features), shard, result
        )
        while same_size and (chunk := stream.read(_CHUNK)):  # the bytes after a record that could not be read
            digest.write(chunk)
    result.num_bytes = digest.num_bytes
    if not same_size:
        return  # the other size explains why the records end early or late, and other digests
    if fault:
        result.findings.add(fault[0], where, fault[1])
    check_digests(digest, entry, result.findings)


class DigestingReader:
    """Reads from a stream, and digests the bytes that were read."""

    def __init__(self, stream: BinaryIO, digest: HashingWriter) -> None:
        self._stream, self._digest = stream, digest

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._digest.write(data)
        return data


def check_digests(digest: HashingWriter, shard: ShardEntry, findings: Findings) -> None:
    """Compare the digests of the bytes that were read with those of the manifest."""
    for name in ("sha256", "crc32c"):
        found, expected = getattr(digest, name), shard[name]
        if found != expected:
            got, due = (found[:16], expected[:16]) if name == "sha256" else map(crc32c_hex, (found, expected))
            findings.add("digest", shard["file"], f"{name} {got}, expected {due}")


def _check_records(records: Iterator[StoredSample], shard: CheckedShard, result: ShardResult) -> tuple[str, str] | None:
    """Compare each record with its row of the index; return kind and text of the fault of all together, if any."""
    fault = None
    where, expected, findings = shard.entry["file"], shard.entry["samples"], result.findings
    manifest, rows = shard.manifest, shard.rows
    keys: list[str] = []
    labels: list[int] = []
    try:
        for position, stored in enumerate(records):
            if position == expected:
                fault = "count", f"more records than the {expected:,} of the manifest"
                break
            sample = stored.sample
            keys.append(sample.key)
            labels.append(sample.label)
            row = rows[position] if rows is not None else None
            place = f"{where} record {position} ({named(sample.key if row is None else row.key)})"
            difference = _difference(row, stored) if row is not None else ""
            if difference:
                findings.add("record", place, difference)
            if shard.deep:
                sides = recorded_sides(manifest, sample.height, sample.width)
                check_pixels(place, sample.image, sides, findings, decode=True)
        else:
            if len(keys) != expected:
                fault = "count", f"{len(keys):,} records, the manifest has {expected:,}"
    except FormatError as error:
        fault = "format", str(error)
    result.count(keys, labels, len(manifest.classes))
    return fault


def _difference(row: Row, stored: StoredSample) -> str:
    """Return how a record differs from its row of the index; an empty text if it does not."""
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
        crc32c_of(sample.annotations) if sample.annotations else None,
    )
    if found == row:
        return ""
    pairs = zip(Row._fields, found, row, strict=True)
    return "; ".join(
        f"{name} {_shown(name, got)}, the index has {_shown(name, due)}" for name, got, due in pairs if got != due
    )


def _shown(column: str, value: object) -> str:
    """Return a value of a column of the index for a message."""
    return crc32c_hex(value) if column.endswith("crc32c") and isinstance(value, int) else quoted(value, 200)


def recorded_sides(manifest: Manifest, height: int | None, width: int | None) -> tuple[int, int] | None:
    """Return the recorded height and width, in pixels; None if the build did not check the image."""
    unknown = manifest.checked == "none" and not (height or width)
    return None if unknown else (height or 0, width or 0)


def check_pixels(where: str, image: bytes, sides: tuple[int, int] | None, findings: Findings, *, decode: bool) -> None:
    """Decode one image completely, or read only its header, and compare its sides with the recorded ones."""
    checked = check_image("", image, _DECODE if decode else _HEADER)
    if isinstance(checked, Event):
        got = f"{checked.reason}: {checked.detail}"
        findings.add("image", where, f"{got}; expected an RGB or grey JPEG{' that decodes whole' if decode else ''}")
    elif sides is not None and (checked.height, checked.width) != sides:
        got = f"height and width {(checked.height, checked.width)}"
        findings.add("image", where, f"{got}, recorded {sides}")
