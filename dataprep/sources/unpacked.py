"""Image bytes that are unpacked from parquet files, because they have no byte range of their own there.

Each parquet file with images gets one file directly in `<output>/_build/`, which holds its images one after the other
and then their sizes:

    image 0 | image 1 | ... | sizes, 8 bytes each | number of images, 8 bytes | MAGIC

So an image is a range of bytes again: a reference names the parquet file, and an offset among its images. That is a
function of the original alone, wherever the output lies. The file's name is a hash of the original's name, size and
digest, so an original that has changed never meets the images of the old one. It is published whole or not at all,
stays until the dataset is finished, and a rerun uses it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from dataprep.dataset.paths import UNPACKED
from dataprep.dataset.records import PlannedSource, SourceFile
from dataprep.errors import SourceError
from dataprep.storage.base import Storage
from dataprep.storage.checksums import crc32c_of, crc32c_text
from dataprep.storage.disk_errors import disk_errors

PARQUET = ".parquet"
IMAGE_FILES = "*"
"""Name in a plan's sources for all files that tables name by path; then none of the tables holds images itself."""
MAGIC = b"dp-unp-1"
_NUMBER_BYTES = 8
_TAIL_BYTES = _NUMBER_BYTES + len(MAGIC)


def unpacked_name(file: SourceFile) -> str:
    """Return the name below the output under which the images of a parquet file are unpacked."""
    identity = json.dumps([file.name, file.num_bytes, file.sha256]).encode()
    return f"{UNPACKED}{hashlib.sha256(identity).hexdigest()[:32]}"


def unpacked_sources(sources: Iterable[PlannedSource]) -> list[PlannedSource]:
    """Return those of a split's sources whose images are unpacked."""
    found = list(sources)
    if any(entry["name"] == IMAGE_FILES for entry in found):
        return []
    return [entry for entry in found if "sha256" in entry and entry["name"].lower().endswith(PARQUET)]


@contextmanager
def unpacking(storage: Storage, name: str) -> Iterator[Callable[[bytes], None]]:
    """Write a file of images; the context's function appends one. The file is published when the block has ended.

    Raises:
        StorageError: The file cannot be written; nothing of it is visible then.
    """
    sizes, checksum, num_bytes = array("q"), 0, 0
    spool = storage.spool_path(name)
    try:
        with storage.sending(spool, name) as grown, disk_errors(spool), spool.open("r+b") as file:

            def append(data: bytes) -> None:
                nonlocal checksum, num_bytes
                file.write(data)
                checksum = crc32c_of(data, checksum)
                num_bytes += len(data)

            def add(image: bytes) -> None:
                sizes.append(len(image))
                append(image)
                file.flush()
                grown(num_bytes)

            yield add
            append(_little_endian(sizes).tobytes())
            append(len(sizes).to_bytes(_NUMBER_BYTES, "little") + MAGIC)
            file.flush()
            grown(num_bytes)
        storage.publish(spool, name, crc32c_text(checksum))
    except BaseException:
        spool.unlink(missing_ok=True)
        raise


def unpacked_sizes(storage: Storage, name: str) -> array[int] | None:
    """Return the sizes of the images in a file; None if it does not exist or is not whole."""
    info = storage.stat(name)
    if info is None or info.num_bytes < _TAIL_BYTES:
        return None
    tail = storage.read_range(name, info.num_bytes - _TAIL_BYTES, _TAIL_BYTES)
    count = int.from_bytes(tail[:_NUMBER_BYTES], "little")
    sizes_at = info.num_bytes - _TAIL_BYTES - count * _NUMBER_BYTES
    if tail[_NUMBER_BYTES:] != MAGIC or sizes_at < 0:
        return None
    sizes = array("q", storage.read_range(name, sizes_at, count * _NUMBER_BYTES))
    sizes = _little_endian(sizes)
    return sizes if sum(sizes) == sizes_at and min(sizes, default=0) >= 0 else None


def _little_endian(sizes: array[int]) -> array[int]:
    """Return numbers as they are stored; the same function reads them back."""
    if sys.byteorder == "little":
        return sizes
    swapped = array("q", sizes)
    swapped.byteswap()
    return swapped


class UnpackedImages:
    """The originals of a build, in which the images of parquet files are read from the files that they were unpacked
    to.

    Args:
        originals: The source root.
        output: Storage of the output, which holds the unpacked images.
        sources: Sources of the plan whose images are unpacked.
    """

    def __init__(self, originals: Storage, output: Storage, sources: Iterable[PlannedSource]) -> None:
        self._originals, self._output = originals, output
        files = [SourceFile(entry["name"], entry["bytes"], entry["sha256"]) for entry in sources]
        self._names: Mapping[str, str] = {file.name: unpacked_name(file) for file in files}
        self.reads_in_flight = (output if self._names else originals).reads_in_flight

    def url_of(self, name: str) -> str:
        """Return the full URL or path of an original file."""
        return self._originals.url_of(name)

    def read_range(self, name: str, offset: int, num_bytes: int) -> bytes:
        """Return a range of an original file, or of the images in a parquet file.

        Raises:
            SourceError: The unpacked images are gone.
        """
        unpacked = self._names.get(name)
        if unpacked is None:
            return self._originals.read_range(name, offset, num_bytes)
        try:
            return self._output.read_range(unpacked, offset, num_bytes)
        except FileNotFoundError as error:
            raise SourceError(
                f"{self._output.url_of(unpacked)} is gone; it held the images of {self.url_of(name)}: start over with "
                "--overwrite"
            ) from error
