"""The interface of a format, the checks of samples for every format, and exact reads from an untrusted stream.

A format turns samples into the bytes of one shard, and back. It does not know where bytes are stored.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO, ClassVar, NamedTuple

from dataprep.dataset.features import NO_FEATURES, Features
from dataprep.dataset.paths import named
from dataprep.dataset.records import MAX_KEY_BYTES, NO_LABEL, Placement, Sample
from dataprep.errors import FormatError, UsageError

MAX_IMAGE_BYTES = 256 << 20
MAX_FIELD_BYTES = 64 << 10
"""Maximum size of everything in a record except the image."""
MAX_SIDE = 65_535  # pixels: a JPEG header has 16 bits for each side
MAX_LABEL = 2**31 - 1
MAX_CLASS_NAME_CHARS = 1_000
# `__` at the start of a folder or file name marks it as metadata: webdataset and Hugging Face datasets skip such
# members silently. The quantifiers are possessive, so that a hostile key costs linear time.
_COMPONENT = r"(?!__)(?:[A-Za-z0-9_-]++|=[0-9A-F]{2})++"
_KEY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*+")
_CLASS_FOLDER = re.compile(r"(?!\.\.?\Z)[^/\\\x00-\x1f\x7f\ud800-\udfff]+")
_PIECE_BYTES = 8 << 20  # most memory that a false length can cost
TFDS_VERSION = "1.0.0"


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetInfo:
    """Facts about the whole dataset that a format's own metadata files repeat."""

    name: str
    """Name as users write it, e.g. `coco-dup5`; formats derive their own spelling."""
    description: str
    citation: str
    licence: str
    classes: tuple[str, ...]
    shard_samples: Mapping[str, Sequence[int]]
    """By split, the number of samples of each shard, in order."""
    split_bytes: Mapping[str, int]
    features: Features = field(default_factory=dict)
    """Types of each sample's values other than image, key and label."""
    version: str = TFDS_VERSION
    built_shards: Mapping[str, int] = field(default_factory=dict)
    """Number of shards with which a split was built, for splits that have changed since. Their `shard_samples` are by
    the number in a shard's name: 0 where no shard has it any more."""


class StoredSample(NamedTuple):
    """A sample as it was read back from a shard, and its place there."""

    sample: Sample
    placement: Placement


class ShardWriter:
    """Writes samples one after the other to a stream that it does not own: `around` returns the bytes of a sample's
    record before and after its image, and `end` follows the last record."""

    def __init__(
        self, stream: BinaryIO, around: Callable[[Sample], tuple[bytes, bytes]], *, has_classes: bool, end: bytes = b""
    ) -> None:
        self._stream, self.around, self._has_classes, self.end = stream, around, has_classes, end
        self._offset = 0

    def write(self, sample: Sample) -> Placement:
        """Append a sample's bytes, which depend on it alone; return its place. Raises FormatError if that is
        impossible."""
        check_sample(sample, has_classes=self._has_classes)
        head, tail = self.around(sample)
        # Three writes: joining 110 kB of image with its header costs 3 us more.
        self._stream.write(head)
        self._stream.write(sample.image)
        self._stream.write(tail)
        offset, image_bytes = self._offset, len(sample.image)
        self._offset += len(head) + image_bytes + len(tail)
        return Placement(offset, self._offset - offset, offset + len(head), image_bytes)

    def close(self) -> None:
        """Write the end of a shard. The stream stays open."""
        if self.end:
            self._stream.write(self.end)


class ShardFormat(ABC):
    """Conversion of a shard's samples to bytes: one packed file, or for an image folder a file for each."""

    name: ClassVar[str]
    one_file_per_image: ClassVar[bool] = False
    """Whether every image is a separate object, and a shard only a named group of images."""

    @abstractmethod
    def shard_file(self, dataset: str, split: str, index: int, total: int) -> str:
        """Return the shard's name relative to the dataset's root (the docstring of dataprep/dataset)."""

    def stored_files(self, shard_file: str) -> tuple[str, ...]:
        """Return the stored objects that follow from a shard's name: the file itself; none for an image folder."""
        return (shard_file,)

    def image_root(self, split: str, stored: int) -> str:
        """Return the folder with the images of a split, one file each, if so many passes of an epoch are stored."""
        return split

    def passes_written(self, stored: int) -> int:
        """Return how many stored passes are written as bytes; an image folder writes one, and links for the rest."""
        return stored

    def placed(self, features: Features, members: Mapping[str, str]) -> Features:
        """Return features with their places in a sample; only WebDataset has a choice, which is a suffix for each
        feature. Raises UsageError if the format has no members."""
        if members:
            raise UsageError(f"`members`: {self.name} has none; leave it out, or choose `format` webdataset")
        return {name: replace(feature, member="") for name, feature in features.items()}

    @abstractmethod
    def open_writer(self, stream: BinaryIO, *, has_classes: bool, features: Features = NO_FEATURES) -> ShardWriter:
        """Return a writer at the start of an empty stream."""

    @abstractmethod
    def read_shard(
        self, stream: BinaryIO, *, classes: tuple[str, ...], features: Features = NO_FEATURES
    ) -> Iterator[StoredSample]:
        """Yield the samples of one shard in order, in bounded memory. Raises FormatError if the bytes are not what the
        writer would have written: they end early, a checksum is wrong, a field is missing, repeated or unknown, or a
        length is impossible. The text names the offset."""

    @abstractmethod
    def metadata_files(self, info: DatasetInfo) -> dict[str, bytes]:
        """Return the dataset's own metadata files, name to content; empty where the format has none."""


def is_key(key: str) -> bool:
    """Return whether every format, and every library that reads it, keeps this key unchanged."""
    return len(key) <= MAX_KEY_BYTES and _KEY.fullmatch(key) is not None


def sample_fault(sample: Sample, *, has_classes: bool) -> str | None:
    """Return why a sample cannot be written to a shard, as got and expected; None if it can."""
    if not is_key(sample.key):
        return (
            f"key {sample.key[:MAX_KEY_BYTES]!r}, expected at most {MAX_KEY_BYTES} bytes of [A-Za-z0-9_-] "
            'and =XX in folders separated by "/", none of which starts with "__" (readers skip those)'
        )
    if not 0 < len(sample.image) <= MAX_IMAGE_BYTES:
        return f"{named(sample.key)}: image of {len(sample.image):,} bytes, expected 1 to {MAX_IMAGE_BYTES:,}"
    sides_fit = 0 <= sample.height <= MAX_SIDE and 0 <= sample.width <= MAX_SIDE
    if not (sides_fit and 1 <= sample.orientation <= 8):
        return (
            f"{named(sample.key)}: height {sample.height}, width {sample.width}, orientation {sample.orientation}; "
            f"expected sides of 0 to {MAX_SIDE:,} and an orientation of 1 to 8"
        )
    label_fits = 0 <= sample.label <= MAX_LABEL if has_classes else sample.label == NO_LABEL
    if not label_fits or bool(sample.class_name) != has_classes:
        got = f"label {sample.label}, class name {sample.class_name[:40]!r}"
        expected = "a label from 0 and its name" if has_classes else "-1 and none, as there are no classes"
        return f"{named(sample.key)}: {got}, expected {expected}"
    if len(sample.class_name) > MAX_CLASS_NAME_CHARS:
        return (
            f"{named(sample.key)}: class name of {len(sample.class_name):,} characters, expected at most "
            f"{MAX_CLASS_NAME_CHARS:,}"
        )
    return None


def check_sample(sample: Sample, *, has_classes: bool) -> None:
    """Raise FormatError for a sample that this project's reader, or another library's, would not read back unchanged:
    key, image size, sides, orientation or label are not what a shard can hold."""
    fault = sample_fault(sample, has_classes=has_classes)
    if fault is not None:
        raise FormatError(f"{fault}; correct the source that made this sample")


def check_class_folder(class_name: str) -> None:
    """Refuse a class name that cannot be one line of a text file and one folder's name. Raises FormatError if the name
    is empty, `.` or `..`, has a slash or a control character, or blanks around it."""
    if class_name != class_name.strip() or not _CLASS_FOLDER.fullmatch(class_name):
        raise FormatError(
            f"class name {class_name[:40]!r}, expected one that can name a folder: no slash, no control "
            "character, no blanks around it; rename the class in the source"
        )


class CheckedStream:
    """Wrapper of an untrusted stream: counts the offset, and reads exact numbers of bytes in bounded memory."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.offset = 0
        """Number of bytes read so far."""

    def take(self, num_bytes: int) -> bytes:
        """Take exactly `num_bytes` bytes. Raises FormatError if the stream ends earlier."""
        data = self.take_unless_at_end(num_bytes)
        if len(data) != num_bytes:
            raise self.error("the end of the file", f"{num_bytes:,} more bytes", at=self.offset)
        return data

    def take_unless_at_end(self, num_bytes: int) -> bytes:
        """Take exactly `num_bytes` bytes, or none at the end of the stream. Raises FormatError for fewer bytes."""
        data = self._stream.read(min(num_bytes, _PIECE_BYTES))
        if len(data) != num_bytes and data:
            data = self._take_in_pieces(data, num_bytes)
        self.offset += len(data)
        return data

    def _take_in_pieces(self, first: bytes, num_bytes: int) -> bytes:
        pieces, missing = [first], num_bytes - len(first)
        while missing:
            piece = self._stream.read(min(missing, _PIECE_BYTES))
            if not piece:
                end = self.offset + num_bytes - missing
                raise self.error("the end of the file", f"{missing:,} more bytes", at=end)
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def error(self, got: str, expected: str, *, at: int) -> FormatError:
        """Return the error to raise for the bytes at offset `at`."""
        return FormatError(
            f"offset {at:,}: {got}, expected {expected}; the shard is damaged or was not written by a build: "
            "build it again"
        )
