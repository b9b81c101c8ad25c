"""Reads the originals of a shard ahead, while earlier images are checked."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING

from dataprep.dataset.paths import named
from dataprep.dataset.records import MISSING, SampleRef
from dataprep.errors import SourceError
from dataprep.sources.unpacked import UnpackedImages, unpacked_sources
from dataprep.storage.base import NO_VERSION, ChangedError, Originals, Storage
from dataprep.storage.checksums import crc32c_hex, crc32c_of
from dataprep.storage.gcs import expected

if TYPE_CHECKING:
    import pyarrow as pa

    from dataprep.builder.plan import Plan

# Bytes of images read ahead of the one being checked. 128 requests of 110 kB in flight are 14 MB; the rest allows for
# larger images, and leaves a worker below its 400 MB.
READ_AHEAD_BYTES = 32 * 2**20
# Reads in flight, relative to those that a storage asks for: 128 from Cloud Storage. With 64 and a latency of 50 ms a
# worker would get 1,280 images/s at most, and less with every read that takes longer; a core decodes about as many.
READS_FACTOR = 2


def read_refs(source: Originals, refs: Sequence[SampleRef]) -> Iterator[tuple[SampleRef, bytes | None]]:
    """Yield the originals of some references, in their order, read ahead in bounded memory; None for a missing one.

    Raises:
        SourceError: A file is gone or has changed, or an image does not have the checksum of its reference.
    """
    if source.reads_in_flight == 1:
        for ref in refs:
            yield ref, _checked(source, ref, _read(source, ref))
        return
    pool = threads(READS_FACTOR * source.reads_in_flight)
    ahead: deque[tuple[SampleRef, Future[bytes | None]]] = deque()
    ahead_bytes, waiting = 0, iter(refs)
    next_ref = next(waiting, None)
    try:
        while ahead or next_ref is not None:
            while next_ref is not None and (not ahead or ahead_bytes + next_ref.num_bytes <= READ_AHEAD_BYTES):
                ahead.append((next_ref, pool.submit(_read, source, next_ref)))
                ahead_bytes += next_ref.num_bytes
                next_ref = next(waiting, None)
            ref, future = ahead.popleft()
            yield ref, _checked(source, ref, future.result())
            ahead_bytes -= ref.num_bytes
    finally:
        for _, future in ahead:
            future.cancel()


@lru_cache(maxsize=2)
def threads(count: int) -> ThreadPoolExecutor:
    """Return this process's threads for reading or writing `count` objects at once."""
    return ThreadPoolExecutor(count, thread_name_prefix="dataprep-io")


def _read(source: Originals, ref: SampleRef) -> bytes | None:
    if ref.offset == MISSING:
        return None
    try:
        return source.read_range(ref.source, ref.offset, ref.num_bytes, ref.version)
    except FileNotFoundError as error:
        raise SourceError(
            f"{source.url_of(ref.source)} is gone; it held {named(ref.key)} when the build was planned. "
            "If its place is not mounted, mount it and run the same command again; else start over with --overwrite"
        ) from error
    except ChangedError as error:
        raise changed(error) from error


def changed(error: ChangedError) -> SourceError:
    """Return the error for an original that is another version than the build has listed."""
    return SourceError(
        f"{error.what}. A build reads only the files that it listed, and no copies of them: start over with "
        "--overwrite, or, if they were copied elsewhere, give their first place"
    )


class SameOriginals:
    """Compares originals with the versions that were listed, once more when all shards are done.

    Args:
        source: The originals.
        plan: The plan of the build.
    """

    def __init__(self, source: Storage, plan: Plan) -> None:
        self._source = expected(source)
        self._unpacked = {entry["name"] for split in plan.splits for entry in unpacked_sources(split.sources)}

    def check(self, references: pa.Table) -> None:
        """Raise SourceError if an original of one shard is gone or has changed."""
        sources, versions = (references.column(name).to_pylist() for name in ("source", "version"))
        listed = {
            name: version
            for name, version in zip(sources, versions, strict=True)
            if version != NO_VERSION and name not in self._unpacked
        }
        for (name, version), info in zip(listed.items(), self._source.stats(list(listed)), strict=True):
            if info is None or info.version != version:
                raise changed(ChangedError(self._source.url_of(name)))


def _checked(source: Originals, ref: SampleRef, data: bytes | None) -> bytes | None:
    """Return an image that was read, in the order of the references: once a damaged file is removed, later reads fail.

    Raises:
        SourceError: The image does not have the checksum of its reference.
    """
    if data is None or ref.crc32c is None:
        return data
    found = crc32c_of(data)
    if found == ref.crc32c:
        return data
    if isinstance(source, UnpackedImages):
        source.refuse_damaged(ref, found)
    where = f"{source.url_of(ref.source)}: the image {named(ref.key)} at byte {ref.offset:,}"
    raise SourceError(
        f"{where} has CRC32C {crc32c_hex(found)}, the index of its dataset has {crc32c_hex(ref.crc32c)}: it is "
        'damaged or was changed; restore it, or see what else is wrong with "dataprep verify"'
    )
