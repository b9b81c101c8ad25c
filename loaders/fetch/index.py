"""The index of one split, read shard by shard: place, label, size and key of every sample."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from dataprep.arrays import NDArray, np, pa
from dataprep.dataset.adopted import is_adopted
from dataprep.dataset.columns import numbers_or_zero
from dataprep.dataset.index import Index, are_ranges_inside
from dataprep.dataset.manifest import built_as
from dataprep.dataset.paths import named
from dataprep.dataset.records import Manifest, SplitManifest, ViewedSplit, class_name_of
from dataprep.errors import FormatError, UsageError
from dataprep.formats import FORMATS
from dataprep.formats.imagefolder import image_file, image_suffix
from dataprep.storage import Storage

MAX_INDEX_BYTES = 256 * 2**20
"""Memory for index entries: some 2.5 million samples with keys of 30 characters; all of ImageNet takes half of it."""
DEADLINE_S = 5.0
"""Seconds without an answer from the bucket after which reading fails."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Many strings in two buffers, without a Python object for each."""

    stops: NDArray[np.int64]
    """Byte of `joined` at which each string ends, shape (strings,)."""
    joined: bytes
    """All strings one after the other, UTF-8."""

    def __getitem__(self, number: int) -> str:
        text = self.joined[self._start(number) : self.stops[number]]
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"the index has a key or file that is not UTF-8, {text[:80]!r}; build again") from error

    def part(self, first: int, stop: int) -> Texts:
        """Return the strings from `first` to `stop`."""
        start = self._start(first)
        stops = self.stops[first:stop] - start
        return Texts(stops, self.joined[start:][: stops[-1] if len(stops) else 0])

    @property
    def num_bytes(self) -> int:
        """Memory that the buffers take."""
        return self.stops.nbytes + len(self.joined)

    def _start(self, number: int) -> int:
        return int(self.stops[number - 1]) if number else 0


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """Index entries of consecutive samples of one shard, all of them or some; every array has shape (samples,)."""

    record_offset: NDArray[np.int64]
    """Offset from the start of the stored object, bytes."""
    record_bytes: NDArray[np.int64]
    image_offset: NDArray[np.int64]
    image_bytes: NDArray[np.int64]
    image_crc32c: NDArray[np.uint32] | None
    """None if the dataset has no checksums of its images."""
    label: NDArray[np.int64]
    """Class number; -1 without a label."""
    height: NDArray[np.int32]
    """Pixels; height and width are 0 if they are not known."""
    width: NDArray[np.int32]
    keys: Texts
    files: Texts | None
    """Stored object of each image in an adopted image folder; None if shard or key determine it."""

    def __len__(self) -> int:
        return len(self.label)

    def key(self, entry: int) -> str:
        """Return the sample's name, which is unique in its split."""
        return self.keys[entry]

    def part(self, first: int, stop: int) -> ShardIndex:
        """Return a copy of entries `first` to `stop`, so that the memory of the others can be freed."""
        cut: dict[str, NDArray[Any]] = {name: getattr(self, name)[first:stop].copy() for name in _ALWAYS}
        crc32c = None if self.image_crc32c is None else self.image_crc32c[first:stop].copy()
        files = None if self.files is None else self.files.part(first, stop)
        return ShardIndex(**cut, image_crc32c=crc32c, keys=self.keys.part(first, stop), files=files)

    @property
    def num_bytes(self) -> int:
        """Memory that all entries take."""
        arrays: list[NDArray[Any] | None] = [getattr(self, name) for name in _COLUMNS]
        texts = self.keys.num_bytes + (0 if self.files is None else self.files.num_bytes)
        return texts + sum(array.nbytes for array in arrays if array is not None)


_COLUMNS: dict[str, type[np.generic]] = {
    "record_offset": np.int64,
    "record_bytes": np.int64,
    "image_offset": np.int64,
    "image_bytes": np.int64,
    "image_crc32c": np.uint32,
    "label": np.int64,
    "height": np.int32,
    "width": np.int32,
}


_ALWAYS = tuple(name for name in _COLUMNS if name != "image_crc32c")
"""Columns that every index has."""


class SplitIndex:
    """Reader of one split's index, which reads each shard when it is first needed; safe in many threads.

    Args:
        storage: Storage of the index; the data may be elsewhere.
        manifest: Manifest of the dataset.
        split: One of its splits.
        max_bytes: Memory for entries that are kept; the least recently used shards go first.
        deadline_s: Seconds without an answer from the bucket after which reading fails.
    """

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        split: SplitManifest,
        *,
        max_bytes: int = MAX_INDEX_BYTES,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._storage = with_deadline(storage, deadline_s)
        self._manifest, self._split, self._max_bytes = manifest, split, max_bytes
        self.one_file_per_image = FORMATS[manifest.format].one_file_per_image
        """Whether every image is a stored object of its own."""
        self.digest = f"{manifest.plan_hash} {split.index['sha256']}"
        """Identity of the data: another digest means other bytes at the same offsets."""
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Future[ShardIndex]] = OrderedDict()
        self._kept_bytes = 0
        self._index = Index(self._storage, split, compare=True)

    def shard(self, shard: int) -> ShardIndex:
        """Return the entries of one shard; they are read once, however many threads ask for them.

        Raises:
            FormatError: The index is missing or damaged, or is not the one that the manifest lists.
            StorageError: The index cannot be read.
        """
        with self._lock:
            found = self._kept.get(shard)
            if found is not None:
                self._kept.move_to_end(shard)
            else:
                mine = self._kept[shard] = Future()
        if found is not None:
            return found.result()
        try:
            entries = self._read(shard)
        except BaseException as error:
            with self._lock:
                del self._kept[shard]
            mine.set_exception(error)
            raise
        mine.set_result(entries)
        self._keep(entries)
        return entries

    def file(self, shard: int, sample: int) -> str:
        """Return the stored object that holds a sample."""
        return self.file_of(shard, self.shard(shard), sample) if self.one_file_per_image else self.shard_file(shard)

    def file_of(self, shard: int, entries: ShardIndex, entry: int) -> str:
        """Return the stored object that holds one of these entries of a shard.

        Raises:
            FormatError: The label has no class.
            UsageError: The index has no column of files although the dataset needs one.
        """
        if not self.one_file_per_image:
            return self.shard_file(shard)
        if entries.files is not None:
            return entries.files[entry]
        key, label = entries.key(entry), int(entries.label[entry])
        class_name = class_name_of(label, self._manifest.classes)
        if class_name is None:
            raise FormatError(
                f"{self._index_url}: {named(key)} has label {label}, expected one of {len(self._manifest.classes)} "
                'classes; run "dataprep verify" to see what else is wrong, and build it again'
            )
        if is_adopted(self._manifest):
            raise UsageError(
                f"{self._index_url}: no column of files, which an image folder of {self._manifest.name!r} needs; "
                "adopt the data again with --overwrite"
            )
        root = FORMATS[self._manifest.format].image_root(self._split.name, self._split.repeats["stored"])
        return image_file(root, key, class_name, image_suffix(built_as(self._manifest)))

    def file_bytes(self, shard: int, entries: ShardIndex, entry: int) -> int:
        """Return the size of the stored object that holds one of these entries of a shard."""
        return int(entries.image_bytes[entry] if self.one_file_per_image else self._split.shards[shard]["bytes"])

    def claims_sizes(self, shard: int) -> bool:
        """Whether a shard's heights and widths come from another tool and were never compared with the images."""
        return is_adopted(self._manifest)

    def mean_image_bytes(self) -> float:
        """Return the mean image size of the first shard that is not empty: the same in every format and place.

        In a view, where blocks are read with the images left out between, these are counted, too.
        """
        counts = [entry["samples"] for entry in self._split.shards]
        stored = self._split.kept.stored if isinstance(self._split, ViewedSplit) else counts
        spread = sum(each for each, kept in zip(stored, counts, strict=True) if kept) / max(1, sum(counts))
        for shard, samples in enumerate(counts):
            if samples:
                entries = self.shard(shard)
                return int(entries.image_bytes.sum()) / len(entries) * spread
        raise FormatError(f"{self._index_url}: no sample in any shard; build it again")

    @property
    def _index_url(self) -> str:
        return self._storage.url_of(self._split.index["file"])

    def shard_file(self, shard: int) -> str:
        """Return the name of a shard's file."""
        file: str = self._split.shards[shard]["file"]
        return file

    def _keep(self, entries: ShardIndex) -> None:
        with self._lock:
            self._kept_bytes += entries.num_bytes
            for shard, other in list(self._kept.items())[:-1]:
                if self._kept_bytes <= self._max_bytes:
                    break
                if other.done():
                    del self._kept[shard]
                    self._kept_bytes -= other.result().num_bytes

    def _read(self, shard: int) -> ShardIndex:
        try:
            entries = _entries_of(self._index.read_group(shard, without="shard"))
        except FileNotFoundError as error:
            raise FormatError(f"{error}: missing, but the manifest lists it; restore it or build again") from error
        samples, num_bytes = (self._split.shards[shard][name] for name in ("samples", "bytes"))
        if len(entries) != samples or not _is_sound(entries, num_bytes):
            file, group = self._index.place(shard)
            raise FormatError(
                f"{self._storage.url_of(file)}: row group {group} of {len(entries):,} samples does not describe "
                f"{self.shard_file(shard)} of {samples:,} in {num_bytes:,} bytes; build it again"
            )
        return entries


def with_deadline(storage: Storage, deadline_s: float) -> Storage:
    """Return the same storage, with reads from a bucket that fail after `deadline_s` seconds without an answer."""
    if storage.is_local:
        return storage
    from dataprep.storage.gcs import GCSStorage
    from dataprep.storage.gcs_client import Deadlines
    from dataprep.storage.remote import RemoteStorage

    if isinstance(storage, GCSStorage | RemoteStorage):
        return type(storage)(storage.url, Deadlines(deadline_s))
    return storage


def _entries_of(table: pa.Table) -> ShardIndex:
    columns = {name: numbers_or_zero(table.column(name), kind) for name, kind in _COLUMNS.items()}
    crc32c: NDArray[np.uint32] | None = columns.pop("image_crc32c")
    if table.column("image_crc32c").null_count:
        crc32c = None
    files = _texts(table.column("file")) if "file" in table.column_names else None
    return ShardIndex(**columns, image_crc32c=crc32c, keys=_texts(table.column("key")), files=files)


def _texts(column: pa.ChunkedArray) -> Texts:
    values = column.combine_chunks()
    if not len(values):
        return Texts(np.empty(0, np.int64), b"")
    _, offsets, text = values.buffers()
    stops = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    return Texts(stops[1:] - stops[0], text[stops[0] : stops[-1]].to_pybytes())


def _is_sound(entries: ShardIndex, shard_bytes: int) -> bool:
    ranges = (entries.record_offset, entries.record_bytes, entries.image_offset, entries.image_bytes)
    return are_ranges_inside(*ranges, shard_bytes=shard_bytes)
