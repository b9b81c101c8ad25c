"""Checks a shard, streamed once, against manifest and index; with `deep` also decodes its images."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import BinaryIO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from dataprep.builder.finished import image_root
from dataprep.builder.images import ImagePolicy, check_image
from dataprep.dataset.hashes import name_hashes, no_hashes
from dataprep.dataset.index import Index, open_index
from dataprep.dataset.manifest import built_as
from dataprep.dataset.paths import named
from dataprep.dataset.records import Event, Manifest, Sample, ShardEntry, SplitManifest, class_name_of
from dataprep.errors import FormatError, StorageError
from dataprep.formats import FORMATS
from dataprep.formats.base import MAX_FIELD_BYTES, MAX_IMAGE_BYTES, ShardWriter, StoredSample, sample_fault
from dataprep.formats.imagefolder import image_file, image_suffix
from dataprep.messages import quoted
from dataprep.storage import Storage, open_storage
from dataprep.storage.checksums import HashingWriter, crc32c_hex, crc32c_of
from dataprep.verification.files import KNOWN_FAULT
from dataprep.verification.findings import Findings

NO_COUNTS: NDArray[np.int64] = np.empty(0, np.int64)
_CHUNK = 1 << 20
_DECODE, _HEADER = (ImagePolicy(check=check, on_bad="reject") for check in ("decode", "header"))
# Number of concurrent requests: in a bucket every image is one request of about 50 ms.
READS_IN_FLIGHT = 64
READ_AHEAD_BYTES = 64 << 20
ORIENTATIONS = range(1, 9)


@dataclass(slots=True)
class ShardResult:
    """Findings and counts of one shard."""

    index: int
    """Position among all shards of all splits."""
    findings: Findings = field(default_factory=Findings)
    samples: int = 0
    num_bytes: int = 0
    """Bytes read from the shard."""
    keys: NDArray[np.uint64] = field(default_factory=no_hashes)
    """Hashes of the samples' keys in lower case."""
    labels: NDArray[np.int64] = field(default_factory=lambda: NO_COUNTS)
    """Number of samples of each class, shape (classes,)."""
    files: NDArray[np.uint64] = field(default_factory=no_hashes)
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


def read_rows(storage: Storage, split: SplitManifest, number: int, findings: Findings) -> list[Row] | None:
    """Return a shard's rows of an index with correct digest and counts; None if the rows themselves are faulty."""
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
    shards = table.column("shard").to_pylist()
    for position, shard in enumerate(shards):
        if shard != number:
            findings.add("index", f"{where} row {position}", f"shard {shard}, expected {number}")
            return None
    return list(map(Row, *(table.column(name).to_pylist() for name in names)))


@dataclass(frozen=True, slots=True)
class CheckedShard:
    """A shard of a finished dataset: the argument of a check."""

    storage: Storage
    manifest: Manifest
    """The manifest, already checked."""
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
    elif _is_as_built(shard, result):
        return
    digest = HashingWriter()
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
        return  # a wrong size explains records that end early or late, and wrong digests
    if fault:
        result.findings.add(fault[0], where, fault[1])
    check_digests(digest, entry, result.findings)


def _is_as_built(shard: CheckedShard, result: ShardResult) -> bool:
    """Return whether a shard has the bytes that a build writes for its rows of the index and the images in it.

    This takes a third of the time of reading each record. Any other shard is read record by record, to find the
    difference.
    """
    entry, manifest, rows = shard.entry, shard.manifest, shard.rows
    if rows is None or shard.deep or manifest.features:
        return False
    digest, at = HashingWriter(), 0
    with shard.storage.open(entry["file"]) as stream:
        reader = DigestingReader(stream, digest)
        writer = FORMATS[manifest.format].open_writer(stream, has_classes=bool(manifest.classes))
        for row in rows:
            fits = 0 < row.record_bytes <= min(entry["bytes"] - at, MAX_IMAGE_BYTES + MAX_FIELD_BYTES)
            if row.record_offset != at or not fits or not _is_as_written(reader, row, writer, manifest.classes):
                return False
            at += row.record_bytes
        if reader.read(len(writer.end)) != writer.end:
            return False
    found = len(rows), digest.num_bytes, digest.sha256, digest.crc32c
    if found != (entry["samples"], at + len(writer.end), entry["sha256"], entry["crc32c"]):
        return False
    result.num_bytes = digest.num_bytes
    result.count([row.key for row in rows], [row.label for row in rows], len(manifest.classes))
    return True


def _is_as_written(reader: DigestingReader, row: Row, writer: ShardWriter, classes: tuple[str, ...]) -> bool:
    """Return whether the next record is what a writer would write for a row of the index and the image in it."""
    record = reader.read(row.record_bytes)
    image_at = row.image_offset - row.record_offset
    image = record[image_at : image_at + row.image_bytes]
    class_name = class_name_of(row.label, classes)
    if class_name is None or crc32c_of(image) != row.image_crc32c or 0 in (row.height, row.width):
        return False
    fields = row.key, image, row.label, class_name, row.height or 0, row.width or 0
    if sample_fault(Sample(*fields, orientation=1), has_classes=bool(classes)) is not None:
        return False
    for orientation in ORIENTATIONS:  # which the index does not have
        head, tail = writer.around(Sample(*fields, orientation))
        if len(head) == image_at and record == b"".join((head, image, tail)):
            return True
    return False


class DigestingReader:
    """Reads a stream in large pieces and digests them, because a record is read in nine parts, most of them small."""

    def __init__(self, stream: BinaryIO, digest: HashingWriter) -> None:
        self._stream, self._digest = stream, digest
        self._piece, self._at = b"", 0

    def read(self, size: int) -> bytes:
        if self._at + size > len(self._piece):
            left = self._piece[self._at :]
            more = self._stream.read(max(_CHUNK, size - len(left)))
            self._digest.write(more)
            self._piece, self._at = left + more, 0
        data = self._piece[self._at : self._at + size]
        self._at += len(data)
        return data


def check_digests(digest: HashingWriter, shard: ShardEntry, findings: Findings) -> None:
    """Compare the digests of the bytes that were read with the manifest."""
    for name in ("sha256", "crc32c"):
        found, expected = getattr(digest, name), shard[name]
        if found != expected:
            got, due = (found[:16], expected[:16]) if name == "sha256" else map(crc32c_hex, (found, expected))
            findings.add("digest", shard["file"], f"{name} {got}, expected {due}")


def recorded_sides(manifest: Manifest, height: int | None, width: int | None) -> tuple[int, int] | None:
    """Return the recorded height and width, in pixels; None if the build did not check the image."""
    unknown = manifest.checked == "none" and not (height or width)
    return None if unknown else (height or 0, width or 0)


def check_pixels(where: str, image: bytes, sides: tuple[int, int] | None, findings: Findings, *, decode: bool) -> None:
    """Decode one image completely, or read only its header, and compare its sides with the recorded ones."""
    checked = check_image("", image, _DECODE if decode else _HEADER)
    if isinstance(checked, Event):
        got = f"{checked.reason}: {checked.detail}"
        expected = f"an RGB or grey JPEG{' that decodes completely' if decode else ''}"
        findings.add("image", where, f"{got}; expected {expected}")
    elif sides is not None and (checked.height, checked.width) != sides:
        got = f"height and width {(checked.height, checked.width)}"
        findings.add("image", where, f"{got}, recorded {sides}")


def check_folder_shard(shard: CheckedShard, result: ShardResult) -> None:
    """Read every file of a shard, and compare it with its row of the index, if there are rows."""
    if shard.rows is None:
        return
    storage, manifest, entry, rows = shard.storage, shard.manifest, shard.entry, shard.rows
    named = list(_named(shard, rows, result))
    digest = HashingWriter()
    sizes = np.asarray([row.image_bytes for row, _ in named], np.int64)
    for at, ((row, name), data) in enumerate(zip(named, _read_ahead(storage, named), strict=True)):
        if isinstance(data, tuple):
            kind, fault = data
            result.findings.add(kind, name, fault)
            if kind == "size":
                sizes[at] = KNOWN_FAULT
            continue
        digest.write(data)
        if crc32c_of(data) != row.image_crc32c:
            got = f"crc32c {crc32c_hex(crc32c_of(data))}, the index has {crc32c_hex(row.image_crc32c)}"
            result.findings.add("digest", name, got)
            continue
        sides = recorded_sides(manifest, row.height, row.width)
        if shard.deep or sides is not None:  # image folders have no records: only the image's header has the sides
            check_pixels(name, data, sides, result.findings, decode=shard.deep)
    result.num_bytes = digest.num_bytes
    if sum(row.image_bytes for row in rows) != entry["bytes"]:
        result.findings.add("index", entry["file"], f"its images do not have {entry['bytes']:,} bytes in all")
    elif digest.num_bytes == entry["bytes"]:
        check_digests(digest, entry, result.findings)
    result.count([row.key for row in rows], [row.label for row in rows], len(manifest.classes))
    result.files = name_hashes(name for _, name in named)
    result.sizes = sizes
    result.folders = frozenset(name.split("/")[1] for _, name in named)


@dataclass(frozen=True, slots=True)
class _Indexed:
    """A split whose index is opened once in each process. The digest distinguishes successive datasets at one URL."""

    url: str
    name: str
    sha256: str
    split: SplitManifest = field(compare=False)


@lru_cache(maxsize=4)
def _open_index(indexed: _Indexed) -> Index:
    return open_index(open_storage(indexed.url), indexed.split)


def _check_records(records: Iterator[StoredSample], shard: CheckedShard, result: ShardResult) -> tuple[str, str] | None:
    """Compare each record with its row of the index; return kind and text of a fault of the shard itself, if any."""
    fault = None
    where, expected, findings = shard.entry["file"], shard.entry["samples"], result.findings
    manifest, rows = shard.manifest, shard.rows
    keys: list[str] = []
    labels: list[int] = []
    try:
        for position, stored in enumerate(records):
            if position == expected:
                fault = "count", f"more records than the {expected:,} in the manifest"
                break
            sample = stored.sample
            keys.append(sample.key)
            labels.append(sample.label)
            row = rows[position] if rows is not None else None
            difference = _difference(row, stored) if row is not None else ""
            if not difference and not shard.deep:
                continue
            place = f"{where} record {position} ({named(sample.key if row is None else row.key)})"
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
    """Return the difference between a record and its row of the index; empty if there is none."""
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


def _named(shard: CheckedShard, rows: list[Row], result: ShardResult) -> Iterator[tuple[Row, str]]:
    """Yield the valid rows, each with its file's name."""
    manifest, where = shard.manifest, shard.entry["file"]
    root, suffix = image_root(manifest, shard.split), image_suffix(built_as(manifest))
    for position, row in enumerate(rows):
        place = f"{where} row {position} ({named(row.key)})"
        class_name = class_name_of(row.label, manifest.classes)
        whole = row.record_offset == row.image_offset == 0 and row.record_bytes == row.image_bytes
        if class_name is None or not whole or not 0 < row.image_bytes <= MAX_IMAGE_BYTES:
            got = f"label {row.label}, image at {row.image_offset} of {row.image_bytes} bytes"
            result.findings.add("index", place, f"{got}; expected a class and a complete file")
            continue
        try:
            name = image_file(root, row.key, class_name, suffix)
        except FormatError as error:
            result.findings.add("index", place, str(error))
            continue
        yield row, name


def _read_ahead(storage: Storage, named: list[tuple[Row, str]]) -> Iterator[bytes | tuple[str, str]]:
    """Yield the files' bytes in order; from a bucket many are read at once, in bounded memory."""
    if storage.is_local:
        for row, name in named:
            yield _read(storage, name, row.image_bytes)
        return
    ahead: deque[tuple[int, Future[bytes | tuple[str, str]]]] = deque()
    waiting, ahead_bytes = iter(named), 0
    following = next(waiting, None)
    with ThreadPoolExecutor(READS_IN_FLIGHT, thread_name_prefix="dataprep-verify") as pool:
        try:
            while ahead or following is not None:
                while following is not None and (not ahead or ahead_bytes < READ_AHEAD_BYTES):
                    row, name = following
                    ahead.append((row.image_bytes, pool.submit(_read, storage, name, row.image_bytes)))
                    ahead_bytes += row.image_bytes
                    following = next(waiting, None)
                num_bytes, future = ahead.popleft()
                yield future.result()
                ahead_bytes -= num_bytes
        finally:
            for _, future in ahead:
                future.cancel()


def _read(storage: Storage, name: str, num_bytes: int) -> bytes | tuple[str, str]:
    """Return the bytes of a file, or kind and text of the finding about it."""
    try:
        return storage.read_range(name, 0, num_bytes)
    except FileNotFoundError:
        return "missing", f"no such file, expected an image of {num_bytes:,} bytes"
    except StorageError as error:
        info = storage.stat(name)
        if info is not None and info.num_bytes < num_bytes:
            return "size", f"{info.num_bytes:,} bytes, the index has {num_bytes:,}"
        return "unread", str(error)
