"""Images of an image folder, one stored object each: how they are written and published.

On disk they are written to a staging folder, which is renamed into place directory by directory. In a bucket each is
uploaded to its final name at once, because staging would take three requests an image instead of one. A late image from
a worker of an overwritten build is replaced when this build writes the same name; any other is found when the objects
are compared with the receipts, before the manifest is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from dataprep.build.claim import removed_names
from dataprep.build.open_build import OpenBuild
from dataprep.build.plan import Plan, PlannedSplit
from dataprep.build.read_ahead import threads
from dataprep.build.receipts import receipt_file
from dataprep.dataset.records import NO_LABEL, Sample, ShardPlan, ShardReceipt
from dataprep.errors import BuildError, ConflictError
from dataprep.formats import FORMATS
from dataprep.formats.imagefolder import REPEATED, image_file, image_suffix, repeat_links
from dataprep.host.heartbeat import beat
from dataprep.storage import ObjectInfo, Storage, open_storage
from dataprep.storage.checksums import crc32c_text
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
        self._aside = f"{build.root}/folder/" if build.storage.is_local else ""
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


@lru_cache(maxsize=1)
def _removed_before(build: OpenBuild) -> frozenset[str]:
    """Return the names that `--overwrite` removed before this build began."""
    return removed_names(build.storage)


# When all shards are done


class ImagesToPlace(Protocol):
    """The work that is left for single images when all shards are done."""

    def expect(self, receipt: ShardReceipt, rows: pa.Table) -> None:
        """Remember that the images of a receipt must exist."""

    def place(self) -> None:
        """Publish the images; a second call finds them published."""


def images_to_place(build: OpenBuild) -> ImagesToPlace:
    """Return the work that is left for the images of a build; it depends on its format and storage."""
    if not FORMATS[build.plan.options.format].one_file_per_image:
        return _PackedImages()
    storage = build.storage
    return _ImagesOnDisk(build, storage) if isinstance(storage, LocalStorage) else _ImagesInBucket(build)


class _PackedImages:
    """Shards in one file, which need no more work: their workers have published them."""

    def expect(self, receipt: ShardReceipt, rows: pa.Table) -> None:
        pass

    def place(self) -> None:
        pass


class _ImagesOnDisk:
    """Images on disk: renames the folders that the workers have filled into place, and creates links."""

    def __init__(self, build: OpenBuild, storage: LocalStorage) -> None:
        self._build, self._storage = build, storage

    def expect(self, receipt: ShardReceipt, rows: pa.Table) -> None:
        pass

    def place(self) -> None:
        build, storage = self._build, self._storage
        aside = f"{build.root}/folder"
        images = storage.root / aside / REPEATED
        folders = sorted(path.name for path in images.iterdir()) if images.is_dir() else []
        repeated = [split for split in build.plan.splits if split.repeat_stored > 1]
        links = [link for split in repeated for link in repeat_links(folders, split.repeat_count, split=split.name)]
        storage.place_folders(aside, links)


class _ImagesInBucket:
    """Images in a bucket: compares the existing objects with the receipts.

    A late image of an overwritten build may be among the objects: under a name that was free for a moment, or under one
    that this build does not have.
    """

    def __init__(self, build: OpenBuild) -> None:
        self._build = build
        self._expected: dict[str, tuple[int, str, int]] = {}

    def expect(self, receipt: ShardReceipt, rows: pa.Table) -> None:
        columns = [rows.column(name).to_pylist() for name in ("key", "label", "image_bytes", "image_crc32c")]
        split, _ = self._build.plan.locate(receipt.index)
        names = image_names(self._build.plan, split, columns[0], columns[1])
        for name, num_bytes, crc32c in zip(names, *columns[2:], strict=True):
            self._expected[name] = (num_bytes, crc32c_text(crc32c), receipt.index)

    def place(self) -> None:
        """Remove late images of an overwritten build, and the receipts of shards whose images differ from them.

        Raises:
            BuildError: Some images differ; the same command writes them again.
        """
        strange, missing = self._compared()
        self._remove_late(strange)
        if not missing:
            return
        storage: Storage = self._build.storage
        for index in sorted({expected[2] for expected in missing.values()}):
            storage.delete(receipt_file(index, self._build.root))
        raise BuildError(
            f"{storage.url}: {len(missing):,} images are missing or not those of this build, such as "
            f"{min(missing)}: another build has written there; run the same command again, which writes them again"
        )

    def _compared(self) -> tuple[list[ObjectInfo], dict[str, tuple[int, str, int]]]:
        """Return the objects that no receipt has, and the images that are absent or differ from their receipt."""
        missing = dict(self._expected)
        strange: list[ObjectInfo] = []
        for split in self._build.plan.splits:
            for info in self._build.storage.list(f"{split.name}/"):
                expected = self._expected.get(info.name)
                if expected is None:
                    strange.append(info)
                elif expected[:2] == (info.num_bytes, info.crc32c):
                    del missing[info.name]
        return strange, missing

    def _remove_late(self, strange: list[ObjectInfo]) -> None:
        if not strange:
            return
        storage = self._build.storage
        removed = removed_names(storage)
        self._build.check()
        for info in strange:
            if info.name in removed:
                storage.delete_exactly(info)
