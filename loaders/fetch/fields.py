"""The fields of a sample that a loader delivers besides image and label: from its record, or from its image folder."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dataprep.dataset.features import Features, Values, annotation_values
from dataprep.dataset.records import Manifest, SplitManifest
from dataprep.errors import DataprepError, UsageError, VerificationError
from dataprep.formats import FORMATS
from dataprep.formats.fields import check_fields, check_record_fields, read_fields
from dataprep.formats.imagefolder import annotations_of, metadata_file
from dataprep.storage.base import Storage, TooLargeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loaders.fetch.index import SplitIndex


MAX_ANNOTATIONS_BYTES = 2**32
"""Maximum size of the annotations of an image folder's split, which are kept in memory."""


class FieldReader(Protocol):
    """Reads the fields of one split; safe in many threads."""

    def read(self, record: bytes, shard: int, sample: int) -> Values:
        """Return the values of a sample's fields, by name.

        Args:
            record: Bytes of the sample in its shard; of an image folder, the image.
            shard: Number of the shard.
            sample: Number of the sample in it.

        Raises:
            FormatError: A field does not exist, or what holds it is damaged.
        """


def open_fields(storage: Storage, manifest: Manifest, split: SplitManifest, names: tuple[str, ...]) -> FieldReader:
    """Return a reader of fields, which reads nothing before it is asked.

    Raises:
        UsageError: The dataset has no such fields.
    """
    check_fields(manifest.format, names, manifest.features)
    if FORMATS[manifest.format].one_file_per_image:
        return _FolderFields(storage, manifest, split, names)
    return _RecordFields(manifest.format, names, manifest.features)


def check_stored_fields(
    storage: Storage, manifest: Manifest, split: SplitManifest, index: SplitIndex, names: tuple[str, ...]
) -> None:
    """Raise UsageError if the samples have no fields of these names; the message lists those that they have.

    What the manifest does not describe is looked for in the records: in the first one and, if it is not there, in up to
    two others. A record that cannot be read is left to whoever loads it.
    """
    unknown = [name for name in names if name not in manifest.features]
    if not unknown or FORMATS[manifest.format].one_file_per_image:
        return
    filled = [number for number, shard in enumerate(split.shards) if shard["samples"]]
    missing: UsageError | None = None
    for shard in dict.fromkeys((filled[0], filled[len(filled) // 2], filled[-1])):
        try:
            record = _first_record(storage, index, shard)
            check_record_fields(manifest.format, record, unknown, manifest.features)
        except UsageError as error:
            missing = missing or error
        except (DataprepError, OSError):
            return
        else:
            return
    if missing is not None:
        raise UsageError(f"{storage.url}: {missing}") from missing


def _first_record(storage: Storage, index: SplitIndex, shard: int) -> bytes:
    entries = index.shard(shard)
    offset, num_bytes = int(entries.record_offset[0]), int(entries.record_bytes[0])
    return storage.read_range(index.file_of(shard, entries, 0), offset, num_bytes)


class _RecordFields:
    """Reads fields from the records of a packed format."""

    def __init__(self, format_name: str, names: tuple[str, ...], features: Features) -> None:
        self._format, self._names, self._features = format_name, names, features

    def read(self, record: bytes, shard: int, sample: int) -> Values:
        return read_fields(self._format, record, self._names, self._features)


class _FolderFields:
    """Reads fields of an image folder from its file of annotations, which is read whole once and kept."""

    def __init__(self, storage: Storage, manifest: Manifest, split: SplitManifest, names: tuple[str, ...]) -> None:
        self._storage, self._names, self._features = storage, names, manifest.features
        self._name = metadata_file(split.name)
        self._entry = next((entry for entry in manifest.files if entry["file"] == self._name), None)
        counts = [shard["samples"] for shard in split.shards]
        self._first_lines = np.concatenate([[0], np.cumsum(counts)])
        self._lock = threading.Lock()
        self._data = b""
        self._starts: NDArray[np.int64] | None = None

    def read(self, record: bytes, shard: int, sample: int) -> Values:
        if not self._names:
            return {}
        starts = self._line_starts()
        line = int(self._first_lines[shard]) + sample
        _, annotations = annotations_of(self._data[starts[line] : starts[line + 1]], self._features)
        values = annotation_values(self._features, annotations)
        return {name: values[name] for name in self._names}

    def _line_starts(self) -> NDArray[np.int64]:
        """Return where each line starts, and where the last one stops; the file is compared with the manifest.

        Raises:
            VerificationError: It is not the file of the manifest, which is no fault of a single image.
        """
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
                        f"{where}: missing, the manifest lists it; restore it or build again"
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
