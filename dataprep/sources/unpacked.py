"""Image bytes that are unpacked from parquet files, because they are not byte ranges there.

Each parquet file with images gets one file directly in `<output>/_build/`, which holds its images one after the other
and then a list of them:

    image 0 | image 1 | ... | sizes, 8 bytes each | CRC32Cs, 4 bytes each | CRC32C of the list, 4 bytes
    | number of images, 8 bytes | MAGIC

So an image is a range of bytes again: a reference names the parquet file and an offset among its images, which depends
on the original alone. The file's name is a hash of the original's name, size and digest, so images of an earlier
version of the original are never used. The file is published completely or not at all, stays until the dataset is
finished, and is used by reruns. References have the CRC32C of each image, so bytes that have changed since never get
into a dataset.
"""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

from dataprep.dataset.paths import UNPACKED, named
from dataprep.dataset.records import ALL_FILES, PlannedSource, SampleRef, SourceFile
from dataprep.errors import SourceError
from dataprep.storage.base import NO_VERSION, ObjectInfo, Storage
from dataprep.storage.checksums import crc32c_hex, crc32c_of, crc32c_text
from dataprep.storage.errors import disk_errors
from dataprep.storage.local import LocalStorage

PARQUET = ".parquet"
MAGIC = b"dp-unp-2"
NO_IMAGE = -1
"""Size for a row without an image."""
_SIZE_BYTES, _CRC32C_BYTES, _COUNT_BYTES = 8, 4, 8
_TAIL_BYTES = _CRC32C_BYTES + _COUNT_BYTES + len(MAGIC)


class UnpackedList(NamedTuple):
    """The images in a file, in their order."""

    sizes: array[int]
    crc32cs: array[int]
    """CRC32C of each image."""

    def row_of(self, ref: SampleRef) -> int | None:
        """Return the number of an image's row, from 1; None if no image is at its place."""
        offset = 0
        for row, num_bytes in enumerate(self.sizes, 1):
            if (offset, num_bytes) == (ref.offset, ref.num_bytes):
                return row
            offset += max(0, num_bytes)
        return None


def unpacked_name(file: SourceFile) -> str:
    """Return the name below the output under which the images of a parquet file are unpacked."""
    identity = json.dumps([file.name, file.num_bytes, file.sha256]).encode()
    return f"{UNPACKED}{hashlib.sha256(identity).hexdigest()[:32]}"


def unpacking_note(size: str) -> str:
    """Return the message that images of some size are unpacked for a build."""
    return (
        f"images are in parquet files: {size} are unpacked below the output's _build/, and removed when the dataset is "
        "complete"
    )


def unpacked_sources(sources: Iterable[PlannedSource]) -> list[PlannedSource]:
    """Return the sources of a split whose images are unpacked."""
    found = list(sources)
    if any(entry["name"] == ALL_FILES for entry in found):
        return []
    return [entry for entry in found if "sha256" in entry and entry["name"].lower().endswith(PARQUET)]


@contextmanager
def unpacking(storage: Storage, name: str) -> Iterator[Callable[[bytes | None], int]]:
    """Write a file of images and publish it at the end of the block.

    The context's function appends an image, or None for a row without one, and returns its CRC32C. Raises StorageError
    if the file cannot be written; nothing of it is visible then.
    """
    sizes, crc32cs, checksum, num_bytes = array("q"), array("I"), 0, 0
    spool = storage.spool_path(name)
    try:
        with storage.sending(spool, name) as grown, disk_errors(spool), spool.open("r+b") as file:

            def append(data: bytes) -> None:
                nonlocal checksum, num_bytes
                file.write(data)
                checksum = crc32c_of(data, checksum)
                num_bytes += len(data)
                file.flush()
                grown(num_bytes)

            def add(image: bytes | None) -> int:
                sizes.append(NO_IMAGE if image is None else len(image))
                crc32cs.append(crc32c_of(image or b""))
                append(image or b"")
                return crc32cs[-1]

            yield add
            listed = _little_endian(sizes).tobytes() + _little_endian(crc32cs).tobytes()
            append(listed)
            append(_crc32c_bytes(listed) + len(sizes).to_bytes(_COUNT_BYTES, "little") + MAGIC)
        storage.publish(spool, name, crc32c_text(checksum))
    except BaseException:
        spool.unlink(missing_ok=True)
        raise


def unpacked_list(storage: Storage, name: str) -> UnpackedList | None:
    """Return the list of the images in a file; None if it does not exist.

    An incomplete file, or one with a damaged list, is removed.
    """
    info = storage.stat(name)
    if info is None:
        return None
    try:
        found = _list_in(storage, info)
    except FileNotFoundError:  # removed by another process in the meantime
        return None
    if found is None:
        storage.delete_exactly(info)
    return found


def _list_in(storage: Storage, info: ObjectInfo) -> UnpackedList | None:
    """Read the list at the end of a file; None if there is none."""
    if info.num_bytes < _TAIL_BYTES:
        return None
    tail = storage.read_range(info.name, info.num_bytes - _TAIL_BYTES, _TAIL_BYTES)
    checksum, count = tail[:_CRC32C_BYTES], int.from_bytes(tail[_CRC32C_BYTES : -len(MAGIC)], "little")
    list_at = info.num_bytes - _TAIL_BYTES - count * (_SIZE_BYTES + _CRC32C_BYTES)
    if not tail.endswith(MAGIC) or list_at < 0:
        return None
    listed = storage.read_range(info.name, list_at, info.num_bytes - _TAIL_BYTES - list_at)
    sizes = _little_endian(array("q", listed[: count * _SIZE_BYTES]))
    crc32cs = _little_endian(array("I", listed[count * _SIZE_BYTES :]))
    num_bytes = sum(size for size in sizes if size != NO_IMAGE)
    is_whole = _crc32c_bytes(listed) == checksum and num_bytes == list_at and min(sizes, default=0) >= NO_IMAGE
    return UnpackedList(sizes, crc32cs) if is_whole else None


def _crc32c_bytes(data: bytes) -> bytes:
    return crc32c_of(data).to_bytes(_CRC32C_BYTES, "little")


def _little_endian(numbers: array[int]) -> array[int]:
    """Convert numbers to or from the stored byte order."""
    if sys.byteorder == "little":
        return numbers
    swapped = array(numbers.typecode, numbers)
    swapped.byteswap()
    return swapped


class UnpackedImages:
    """Reads a build's originals. Images inside parquet files are read from their unpacked copies."""

    def __init__(self, originals: Storage, output: Storage, sources: Iterable[PlannedSource]) -> None:
        self._originals, self._output = originals, output
        files = [SourceFile(entry["name"], entry["bytes"], entry["sha256"]) for entry in sources]
        self._names: Mapping[str, str] = {file.name: unpacked_name(file) for file in files}
        self.reads_in_flight = (output if self._names else originals).reads_in_flight

    def url_of(self, name: str) -> str:
        """Return the full URL or path of an original file."""
        return self._originals.url_of(name)

    def read_range(self, name: str, offset: int, num_bytes: int, version: int = NO_VERSION) -> bytes:
        """Return a range of an original, or of a parquet file's images. Raises SourceError if these are gone."""
        unpacked = self._names.get(name)
        if unpacked is None:
            return self._originals.read_range(name, offset, num_bytes, version)
        try:
            return self._output.read_range(unpacked, offset, num_bytes)
        except FileNotFoundError as error:
            raise SourceError(
                f"{self._output.url_of(unpacked)} is gone; it held the images of {self.url_of(name)}: run the same "
                "command once more to unpack them again"
            ) from error

    def reading(self, name: str, version: int = NO_VERSION) -> AbstractContextManager[Callable[[int, int], bytes]]:
        """Open an original to read ranges of one version."""
        if name in self._names or not isinstance(self._originals, LocalStorage):
            return nullcontext(partial(self.read_range, name, version=version))
        return self._originals.reading(name, version)

    def refuse_damaged(self, ref: SampleRef, crc32c: int | None) -> None:
        """Refuse an unpacked image whose bytes do not have the checksum of its reference.

        The file that holds it is removed, so that a rerun unpacks it again. Raises SourceError if the image was
        unpacked; other images are left to the caller.
        """
        unpacked = self._names.get(ref.source)
        if unpacked is None:
            return
        listed = unpacked_list(self._output, unpacked)
        row = None if listed is None else listed.row_of(ref)
        which = named(ref.key) if row is None else f"row {row} ({named(ref.key)})"
        self._output.delete(unpacked)
        raise SourceError(
            f"{self.url_of(ref.source)}: the image of {which} had CRC32C {crc32c_hex(ref.crc32c)} when it was unpacked "
            f"to {self._output.url_of(unpacked)}, it has {crc32c_hex(crc32c)} there now: that file is damaged or was "
            "changed, and is removed; run the same command once more to unpack it again"
        )
