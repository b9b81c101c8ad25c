"""Images of an image folder, one stored object each: how they are written and published.

On disk they are written to a staging folder, which is renamed into place directory by directory. In a bucket each is
uploaded to its final name at once, because staging would take three requests an image instead of one. A late image from
a worker of an overwritten build is replaced when this build writes the same name; any other is found when the objects
are compared with the receipts (published.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import TYPE_CHECKING

from dataprep.builder.claim import removed_names
from dataprep.builder.open_build import OpenBuild
from dataprep.builder.plan import Plan, PlannedSplit
from dataprep.builder.read_ahead import threads
from dataprep.dataset.records import NO_LABEL, Sample, ShardPlan, ShardReceipt
from dataprep.errors import ConflictError
from dataprep.formats import FORMATS
from dataprep.formats.imagefolder import REPEATED, image_file, image_suffix, repeat_links
from dataprep.host.heartbeat import beat
from dataprep.storage import open_storage
from dataprep.storage.checksums import crc32c_number
from dataprep.storage.local import LocalStorage

if TYPE_CHECKING:
    import pyarrow as pa

WRITES_IN_FLIGHT = 32
WRITES_BETWEEN_CHECKS = 64
"""Images written to a bucket between two checks that this build still owns the output; a check is one request."""


def image_names(plan: Plan, split: PlannedSplit, keys: Sequence[str], labels: Sequence[int]) -> Iterator[str]:
    """Yield the file names of some images of a split."""
    root = FORMATS[plan.options.format].image_root(split.name, split.repeat_stored)
    suffix = image_suffix(plan.options.dataset)
    for key, label in zip(keys, labels, strict=True):
        yield image_file(root, key, "" if label == NO_LABEL else plan.classes[label], suffix)


def link_names(folders: Iterable[str], split: str, count: int) -> Iterator[str]:
    """Yield the names of the links that show the images of these folders `count` times."""
    yield from (link for link, _ in repeat_links(sorted(folders), count, split=split))


# While shards are built


class ImageWriter:
    """Writes the images of one shard as objects, many at a time."""

    def __init__(self, build: OpenBuild, shard: ShardPlan) -> None:
        self._build = build
        self._storage = build.storage if build.storage.is_local else open_storage(build.storage.url)
        self._aside = f"{_aside(build)}/" if build.storage.is_local else ""
        split, _ = build.plan.locate(shard.index)
        self._root = FORMATS[build.plan.options.format].image_root(split.name, split.repeat_stored)
        self._suffix = image_suffix(build.plan.options.dataset)
        self._pool = threads(WRITES_IN_FLIGHT)
        self._pending: deque[Future[None]] = deque()
        self._number = 0

    def add(self, sample: Sample) -> None:
        """Begin to write one image to a free name; waits while too many writes are in flight.

        Raises:
            OvertakenError: Another build owns the output now.
            StorageError: An earlier image could not be written.
        """
        if self._number % WRITES_BETWEEN_CHECKS == 0 and not self._build.storage.is_local:
            self._build.check()
        self._number += 1
        name = image_file(self._root, sample.key, sample.class_name, self._suffix)
        self._pending.append(self._pool.submit(self._put, name, sample.image))
        if len(self._pending) >= 2 * WRITES_IN_FLIGHT:
            self._await_first()

    def close(self) -> None:
        """Wait until all images are written."""
        while self._pending:
            self._await_first()

    def _await_first(self) -> None:
        self._pending.popleft().result()
        beat()

    def _put(self, name: str, data: bytes) -> None:
        try:
            self._storage.create(self._aside + name, data)
        except ConflictError:
            if self._storage.is_local or name not in _removed_before(self._build):
                raise
            existing = self._storage.stat(name)
            self._build.check()  # after the stat: an image that a later build puts here has another generation
            if existing is not None:
                self._storage.delete_exactly(existing)
            self._storage.create(name, data)


def new_files_of(build: OpenBuild, receipt: ShardReceipt, rows: pa.Table) -> Iterator[tuple[str, int, int]]:
    """Yield name, size and CRC32C of the files on a disk of a shard that has no receipt yet."""
    aside = f"{_aside(build)}/" if FORMATS[build.plan.options.format].one_file_per_image else ""
    for name, num_bytes, crc32c in files_of(build, receipt, rows):
        yield f"{aside}{name}", num_bytes, crc32c


def _aside(build: OpenBuild) -> str:
    """Return the staging folder on a disk."""
    return f"{build.root}/folder"


@lru_cache(maxsize=1)
def _removed_before(build: OpenBuild) -> frozenset[str]:
    """Return the names that `--overwrite` removed before this build began."""
    return removed_names(build.storage)


# When all shards are done


def place_images(build: OpenBuild) -> None:
    """Rename the folders that the workers of an image folder on disk have filled into place, and create links; a second
    call finds them in place."""
    storage = build.storage
    if not FORMATS[build.plan.options.format].one_file_per_image or not isinstance(storage, LocalStorage):
        return
    aside = _aside(build)
    images = storage.root / aside / REPEATED
    folders = sorted(path.name for path in images.iterdir()) if images.is_dir() else []
    repeated = [split for split in build.plan.splits if split.repeat_stored > 1]
    links = [link for split in repeated for link in repeat_links(folders, split.repeat_count, split=split.name)]
    storage.place_folders(aside, links)


def files_of(build: OpenBuild, receipt: ShardReceipt, rows: pa.Table) -> Iterator[tuple[str, int, int]]:
    """Yield name, size and CRC32C of the files of a finished shard: one, or one for each image."""
    if not FORMATS[build.plan.options.format].one_file_per_image:
        yield receipt.file, receipt.num_bytes, crc32c_number(receipt.crc32c)
        return
    keys, labels, *columns = (rows.column(name).to_pylist() for name in ("key", "label", "image_bytes", "image_crc32c"))
    split, _ = build.plan.locate(receipt.index)
    yield from zip(image_names(build.plan, split, keys, labels), *columns, strict=True)
