"""A finished dataset as loaders read it: its manifest, one split, the storage of index and shards, and its fields.

Fields are values that a loader delivers in addition to image and label. They come from a sample's record, or from the
annotations of an image folder.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias

from dataprep.arrays import NDArray, np
from dataprep.dataset.adopted import (
    MAX_LISTED_IN_BUCKET,
    MAX_LISTED_ON_DISK,
    check_named,
    is_adopted,
    open_data,
    refuse_changed,
)
from dataprep.dataset.column_files import OpenedColumn, find_column, opened_column
from dataprep.dataset.features import Values, annotation_values
from dataprep.dataset.manifest import no_dataset, read_manifest, refuse_other_sizes
from dataprep.dataset.paths import HEAD_SPLIT
from dataprep.dataset.records import NO_LABEL, Head, Manifest, SplitManifest, ViewedSplit
from dataprep.dataset.views import OpenedView, address, read_view
from dataprep.errors import DataprepError, FormatError, SourceError, UsageError, VerificationError
from dataprep.formats import FORMATS
from dataprep.formats.fields import check_fields, check_record_fields, read_fields
from dataprep.formats.imagefolder import annotations_of, metadata_file
from dataprep.storage import absolute, open_storage
from dataprep.storage.base import Storage, TooLargeError
from dataprep.storage.local import LocalStorage
from loaders.fetch.columns import ColumnIndex, mean_value_bytes
from loaders.fetch.fetcher import ColumnReads, Fetcher, FetchSettings, open_fetcher
from loaders.fetch.index import DEADLINE_S, MAX_INDEX_BYTES, SplitIndex, with_deadline
from loaders.order import HEDGED_SHARE, Order, bytes_held

if TYPE_CHECKING:
    from loaders.fetch.plain import Growth

MAX_ANNOTATIONS_BYTES = 2**32
"""Maximum size of the annotations of an image folder's split, which are kept in memory."""


ReadFields: TypeAlias = Callable[[bytes, int, int], Values]
"""Returns the values of a sample's fields, by name, in any thread. It takes the sample's record (for an image folder,
the image), the number of its shard, and its number there. Raises FormatError if the record or file is damaged."""


class _FolderFields:
    """Reads fields of an image folder from its file of annotations, which is read once and kept."""

    def __init__(self, storage: Storage, manifest: Manifest, split: SplitManifest, names: tuple[str, ...]) -> None:
        self._storage, self._names, self._features = storage, names, manifest.features
        self._name = metadata_file(split.name)
        self._entry = next((entry for entry in manifest.files if entry["file"] == self._name), None)
        self._kept = split.kept if isinstance(split, ViewedSplit) else None
        counts = self._kept.stored if self._kept else [shard["samples"] for shard in split.shards]
        self._numbers = lru_cache(maxsize=256)(self._kept.numbers) if self._kept else None
        self._first_lines = np.concatenate([[0], np.cumsum(counts)])
        self._lock = threading.Lock()
        self._data = b""
        self._starts: NDArray[np.int64] | None = None

    def read(self, record: bytes, shard: int, sample: int) -> Values:
        if not self._names:
            return {}
        starts = self._line_starts()
        line = int(self._first_lines[shard]) + (int(self._numbers(shard)[sample]) if self._numbers else sample)
        _, annotations = annotations_of(self._data[starts[line] : starts[line + 1]], self._features)
        values = annotation_values(self._features, annotations)
        return {name: values[name] for name in self._names}

    def _line_starts(self) -> NDArray[np.int64]:
        """Return the start of each line, and the end of the last one; the file is compared with the manifest. Raises
        VerificationError if the file is not the one in the manifest, so no single image is at fault."""
        with self._lock:
            if self._starts is None:
                where = self._storage.url_of(self._name)
                num_bytes = self._entry["bytes"] if self._entry is not None else 0
                try:
                    data = self._storage.read(self._name, min(num_bytes, MAX_ANNOTATIONS_BYTES))
                except TooLargeError as error:
                    raise VerificationError(f"{error}; not the file that the manifest lists; build again") from error
                except FileNotFoundError as error:
                    raise VerificationError(
                        f"{where}: missing, but the manifest lists it; restore it or build again"
                    ) from error
                if self._entry is None or hashlib.sha256(data).hexdigest() != self._entry["sha256"]:
                    raise VerificationError(f"{where}: not the file that the manifest lists; restore it or build again")
                stops = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
                if len(stops) != self._first_lines[-1]:
                    raise VerificationError(
                        f"{where}: {len(stops):,} lines, expected {self._first_lines[-1]:,}; build again"
                    )
                self._data, self._starts = data, np.concatenate([[0], stops])
            return self._starts


COLUMNS_SHARE = 1 / 4
"""Largest share of the fetcher's memory for columns that are kept, or for blocks of columns on a disk."""
MIXTURE_SUFFIX = ".json"
"""Suffix of a file that describes a mixture."""
DATASET_FIELD = "dataset"
"""Field of a mixture's batches: the name of the dataset that each row is from."""


class Origin(NamedTuple):
    """The dataset that an image of a mixture is from."""

    name: str
    labels: tuple[int, ...] | None
    """Label in the mixture for each of the dataset's own; None: labels stay as they are."""

    def label_of(self, label: int) -> int:
        """Return the label in the mixture for one of the dataset's own. Raises FormatError if the dataset has no class
        of this label."""
        if self.labels is None or label == NO_LABEL:
            return label
        if not 0 <= label < len(self.labels):
            raise FormatError(
                f"label {label}, expected one of the {len(self.labels)} classes of {self.name}; run "
                '"dataprep verify" to see what else is wrong, or make the mixture with labels="own"'
            )
        return self.labels[label]


@dataclass(frozen=True)
class Dataset:
    """One split of a dataset; picklable, for a loader's worker processes."""

    url: str
    manifest: Manifest
    split: SplitManifest
    named: bool
    """Whether the user named the place of adopted data, so that links in them may lead anywhere."""
    growth: Growth | None = field(default=None, kw_only=True)
    """Maker of larger indexes of a folder whose images are not all known; only the loader itself has it."""
    view: OpenedView | None = field(default=None, kw_only=True)
    """The view whose samples are loaded; None: all samples."""
    columns: Mapping[str, OpenedColumn] = field(default_factory=dict, kw_only=True)
    """Columns that are loaded as fields, by name; each has values for all shards."""
    column_reads: ColumnReads = field(default="piece", kw_only=True)
    """Values that a fetcher reads at once; see `reading_columns`."""

    @property
    def heads(self) -> tuple[Head, ...]:
        """Samples that the index lists first, so that a loader can start with them."""
        found = self.manifest.options["adopted"].get("heads", ()) if is_adopted(self.manifest) else ()
        return tuple(found) if self.split.name == HEAD_SPLIT else ()

    @property
    def plan(self) -> str:
        """Hash of everything that determines the order of the known samples."""
        return self.manifest.plan_hash if self.growth is None else self.heads[-1]["plan"]

    @cached_property
    def storage(self) -> Storage:
        """Storage of the shards."""
        return open_data(self._index_storage, self.manifest, named=self.named)

    @property
    def data_url(self) -> str:
        """URL of the data, for messages; `url` is the place of their index, which may be in the user's cache."""
        named = self.storage.url if is_adopted(self.manifest) else self.url
        return named if self.view is None else f"{named}@{self.view.view.name}"

    @property
    def is_local(self) -> bool:
        """Whether all shards are on a local disk."""
        return self.storage.is_local

    @property
    def origin_of(self) -> Callable[[int], Origin] | None:
        """Function that says which dataset of a mixture a shard belongs to; None for a single dataset."""
        return None

    @property
    def passes(self) -> int:
        """Passes over the stored samples in one epoch."""
        return self.split.repeats["count"] // self.split.repeats["stored"]

    def with_columns(self, names: tuple[str, ...], deadline_s: float) -> Self:
        """Return the dataset with the columns among these names of fields. Raises UsageError if a column lacks values
        for shards of the split, because it is older than they are."""
        storage, found = with_deadline(self._index_storage, deadline_s), dict[str, OpenedColumn]()
        for name in names:
            if name in self.manifest.features:
                continue
            with suppress(UsageError):  # not a name that a column can have
                if (known := find_column(storage, name)) is not None:
                    found[name] = opened_column(storage, self.manifest, *known)
        for column in found.values():
            for number in column.lacking(self.split.name):
                column.shard(self.split.name, number)
        return replace(self, columns=found) if found else self

    def column_bytes(self, name: str) -> float:
        """Return the mean size of a column's values."""
        return mean_value_bytes(self.columns[name], self.split)

    def reading_columns(self, order: Order, world_size: int, image_bytes: float, budget: float) -> Self:
        """Return the dataset with the `column_reads` that need the fewest reads within the fetcher's memory, in bytes.
        The fetcher also holds images of this mean size, 0 on a disk; otherwise arguments are those of `bytes_held`."""
        value_bytes = sum(map(self.column_bytes, self.columns))
        stored, held = value_bytes * self.split.samples, bytes_held(order, world_size, value_bytes)
        beside = bytes_held(order, world_size, image_bytes)
        if stored <= COLUMNS_SHARE * budget and stored + beside <= budget * (1 - HEDGED_SHARE):
            return replace(self, column_reads="once")
        if self.is_local and held > COLUMNS_SHARE * budget:
            return replace(self, column_reads="sample")
        return self

    def check_fields(self, names: tuple[str, ...]) -> None:
        """Raise UsageError if the dataset cannot have fields of these names."""
        if stored := self.stored_fields(names):
            check_fields(self.manifest.format, stored, self.manifest.features)

    def check_stored_fields(self, names: tuple[str, ...], index: SplitIndex, deadline_s: float) -> None:
        """Raise UsageError if the samples have no fields of these names; the message lists those that they have.

        Fields that the manifest does not describe are searched in the first record and, if they are not there, in up to
        two others. A record that cannot be read raises an error only when it is loaded.
        """
        manifest = self.manifest
        unknown = [name for name in self.stored_fields(names) if name not in manifest.features]
        if not unknown or FORMATS[manifest.format].one_file_per_image:
            return
        storage = with_deadline(self.storage, deadline_s)
        filled = [number for number, shard in enumerate(self.split.shards) if shard["samples"]]
        missing: UsageError | None = None
        for shard in dict.fromkeys((filled[0], filled[len(filled) // 2], filled[-1])):
            try:
                entries = index.shard(shard)
                offset, num_bytes = int(entries.record_offset[0]), int(entries.record_bytes[0])
                record = storage.read_range(index.file_of(shard, entries, 0), offset, num_bytes)
                check_record_fields(manifest.format, record, unknown, manifest.features)
            except UsageError as error:
                missing = missing or error
            except (DataprepError, OSError):
                return
            else:
                return
        if missing is not None:
            raise UsageError(f"{storage.url}: {missing}") from missing

    def stored_fields(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the fields of a loader that are stored with the images: all except columns."""
        return tuple(name for name in names if name not in self.columns)

    def open_index(self, deadline_s: float, max_bytes: int = MAX_INDEX_BYTES) -> SplitIndex:
        """Open a reader of the split's index, as `SplitIndex` says; a loader opens one and shares it."""
        return SplitIndex(self._index_storage, self.manifest, self.split, max_bytes=max_bytes, deadline_s=deadline_s)

    def url_of(self, shard: int, file: str) -> str:
        """Return the URL of a file that belongs to a shard."""
        return self.storage.url_of(file)

    def open_fetcher(self, index: SplitIndex, settings: FetchSettings) -> Fetcher:
        """Start a fetcher for the samples of the split, and their values of columns."""
        settings = replace(settings, column_reads=self.column_reads)
        columns = [
            ColumnIndex(self._index_storage, column, self.split, settings.deadline_s)
            for column in self.columns.values()
        ]
        return open_fetcher(self.storage, index, settings, columns)

    def open_fields(self, names: tuple[str, ...]) -> ReadFields:
        """Return a reader of fields that are stored with each image, such as a caption. It reads nothing before its
        first call. Raises UsageError if the dataset has no such fields."""
        name, features = self.manifest.format, self.manifest.features
        check_fields(name, names, features)
        if FORMATS[name].one_file_per_image:
            return _FolderFields(self.storage, self.manifest, self.split, names).read
        return lambda record, shard, sample: read_fields(name, record, names, features)

    @cached_property
    def _index_storage(self) -> Storage:
        return open_storage(self.url)

    def __getstate__(self) -> dict[str, object]:
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"growth": None}


@dataclass(frozen=True)
class PlainData:
    """Settings for indexing data that are not a dataset of `dataprep build`."""

    index: str | None = None
    """Folder or gs:// URL that keeps the index; None: a folder in the user's cache."""
    grows: bool = False
    """Whether to open the known part of a large folder while the rest is indexed; see `Dataset.growth`."""
    fields: tuple[str, ...] = ()
    """Fields that the copy of parquet files must have."""


_INDEXED_WHOLE = PlainData()


def open_dataset(
    url: str,
    split: str,
    region_policy: str = "refuse",
    *,
    deadline_s: float = DEADLINE_S,
    compare: bool = True,
    plain: PlainData = _INDEXED_WHOLE,
) -> Dataset:
    """Read the manifest of a dataset, or index plain data. The cost of reading a bucket is checked first.

    If reading the URL would cost money, a copy in `replicas.json` that costs less from this machine is opened instead.

    Args:
        url: Folder or URL.
        split: Name of a split.
        region_policy: What to do about a bucket whose reading costs money: `refuse`, `warn`, or `off`.
        deadline_s: Seconds without an answer from the bucket after which opening fails.
        compare: Whether adopted data are compared with a listing, unless there are too many files; see
            `dataprep.dataset.adopted`.
        plain: How plain data are indexed.

    Raises:
        UsageError: The dataset or split does not exist; its data are at a place that the user did not name, or have
            changed since they were adopted; or reading it from here costs money and the policy refuses that.
        StorageError: The bucket does not answer.
    """
    named, view_name = address(url)
    named = url = absolute(named)
    if not open_storage(url).is_local:
        from dataprep.cloud.placement import url_to_read
        from dataprep.storage.hub import is_hub, pinned

        url = pinned(url).url if is_hub(url) else url_to_read(url, region_policy)
    storage = with_deadline(open_storage(url), deadline_s)
    _guard(storage, region_policy)
    manifest, growth = None if plain.index else _manifest(storage), None
    if manifest is None and view_name:
        raise no_dataset(storage)
    if manifest is None:
        refuse_mixture(url)
        from loaders.fetch.plain import indexed  # here, so that opening a dataset does not load what makes an index

        grows, compare = plain.grows and split == HEAD_SPLIT, False
        url, growth = indexed(storage, plain.index, grows=grows, fields=plain.fields)
        storage = with_deadline(open_storage(url), deadline_s)
        _guard(storage, region_policy)
        if (manifest := _manifest(storage)) is None:
            raise no_dataset(storage)
    view = read_view(open_storage(named), manifest, view_name) if view_name else None
    manifest = manifest if view is None else view.of(manifest)
    found = {each.name: each for each in manifest.splits}
    if split not in found:
        where = open_data(storage, manifest, named=False).url
        raise UsageError(f"{where}: no split {split!r}; it has {', '.join(found)}")
    if view is not None and not found[split].samples:
        raise UsageError(f"{named}@{view_name}: the view keeps no sample of {split}")
    dataset = Dataset(url, manifest, found[split], check_named(storage, manifest), growth=growth, view=view)
    _guard(dataset.storage, region_policy)  # adopted data may be in another bucket than their index
    if not is_adopted(manifest):
        # Shards whose sizes differ from the manifest are refused; a bucket is not listed for this.
        if isinstance(dataset.storage, LocalStorage) and not FORMATS[manifest.format].one_file_per_image:
            refuse_other_sizes(dataset.storage, dataset.split)
    elif compare:
        max_listed = MAX_LISTED_ON_DISK if dataset.storage.is_local else MAX_LISTED_IN_BUCKET
        refuse_changed(storage, with_deadline(dataset.storage, deadline_s), manifest, max_listed)
    return dataset


def grown(known: Dataset) -> Dataset:
    """Wait for a larger index of a folder whose images are not all known, and open it. Raises SourceError if the data
    cannot be indexed, or have changed since they were listed for the smaller index."""
    assert known.growth is not None
    url = known.growth.next()
    dataset = open_dataset(url, known.split.name, "off", compare=False)
    if known.heads[-1] not in dataset.heads or dataset.manifest.classes != known.manifest.classes:
        raise SourceError(
            f"{known.storage.url}: files have changed since a loader began with the first {known.split.samples:,}; "
            "open it again, without a state of this run"
        )
    return replace(dataset, growth=None if known.growth.has_ended else known.growth)


def _manifest(storage: Storage) -> Manifest | None:
    manifest = read_manifest(storage, sidecars=False)
    return read_manifest(storage) if manifest and FORMATS[manifest.format].one_file_per_image else manifest


def refuse_mixture(url: str) -> None:
    """Raise UsageError if a URL, expected to name a dataset, names the file of a mixture, such as `mix.json`."""
    if url.endswith(MIXTURE_SUFFIX):
        raise UsageError(
            f"{url}: expected a dataset, got what looks like the file of a mixture, which only `loaders.mixture` and "
            "training without --diagnose read; give one of its datasets"
        )


def _guard(storage: Storage, region_policy: str) -> None:
    if not storage.is_local:
        from dataprep.cloud.placement import guard

        guard(storage.url, region_policy)
