"""Checks a shard of an image folder: every file that the index names, its bytes, and the digest over all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from dataprep.builder.finished import image_root
from dataprep.dataset.hashes import name_hashes
from dataprep.dataset.manifest import built_as
from dataprep.dataset.paths import named
from dataprep.dataset.records import class_name_of
from dataprep.errors import FormatError, StorageError
from dataprep.formats.checked import MAX_IMAGE_BYTES
from dataprep.formats.imagefolder import image_file, image_suffix
from dataprep.storage import Storage
from dataprep.storage.checksums import HashingWriter, crc32c_hex, crc32c_of
from dataprep.verification.listing import KNOWN_FAULT
from dataprep.verification.shard import (
    CheckedShard,
    Row,
    ShardResult,
    check_digests,
    check_pixels,
    recorded_sides,
)

# Number of concurrent requests: in a bucket every image is one request of about 50 ms.
READS_IN_FLIGHT = 64
READ_AHEAD_BYTES = 64 << 20


class _Fault(NamedTuple):
    kind: str
    detail: str


def check_folder_shard(shard: CheckedShard, result: ShardResult) -> None:
    """Read every file of a shard, and compare it with its row of the index; without rows there is nothing to
    compare."""
    if shard.rows is None:
        return
    storage, manifest, entry, rows = shard.storage, shard.manifest, shard.entry, shard.rows
    named = list(_named(shard, rows, result))
    digest = HashingWriter(None)
    sizes = np.asarray([row.image_bytes for row, _ in named], np.int64)
    for at, ((row, name), data) in enumerate(zip(named, _read_ahead(storage, named), strict=True)):
        if isinstance(data, _Fault):
            result.findings.add(data.kind, name, data.detail)
            if data.kind == "size":
                sizes[at] = KNOWN_FAULT
            continue
        digest.write(data)
        if crc32c_of(data) != row.image_crc32c:
            got = f"crc32c {crc32c_hex(crc32c_of(data))}, the index has {crc32c_hex(row.image_crc32c)}"
            result.findings.add("digest", name, got)
            continue
        sides = recorded_sides(manifest, row.height, row.width)
        if shard.deep or sides is not None:  # no record holds the sides here: only the image's header does
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
            result.findings.add("index", place, f"{got}; expected a class and a whole file")
            continue
        try:
            name = image_file(root, row.key, class_name, suffix)
        except FormatError as error:
            result.findings.add("index", place, str(error))
            continue
        yield row, name


def _read_ahead(storage: Storage, named: list[tuple[Row, str]]) -> Iterator[bytes | _Fault]:
    """Yield the files' bytes in order; from a bucket many are read at once, in bounded memory."""
    if storage.is_local:
        for row, name in named:
            yield _read(storage, name, row.image_bytes)
        return
    ahead: deque[tuple[int, Future[bytes | _Fault]]] = deque()
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


def _read(storage: Storage, name: str, num_bytes: int) -> bytes | _Fault:
    try:
        return storage.read_range(name, 0, num_bytes)
    except FileNotFoundError:
        return _Fault("missing", f"no such file, expected an image of {num_bytes:,} bytes")
    except StorageError as error:
        info = storage.stat(name)
        if info is not None and info.num_bytes < num_bytes:
            return _Fault("size", f"{info.num_bytes:,} bytes, the index has {num_bytes:,}")
        return _Fault("unread", str(error))
