"""Reads labels, keys, sides and fields of samples from values of other tools.

Labels are integers, which are kept, or texts, which become classes once all are known:

a shard ─▶ LabelReader: the texts of the shard, numbered as they occur
all shards ─▶ text_classes: the sorted texts, which are the names of the classes
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import count
from pathlib import Path

from dataprep.dataset.features import MAX_FEATURES, WRITTEN_BY_BUILDS
from dataprep.dataset.hashes import name_hash
from dataprep.errors import SourceError, UsageError
from dataprep.formats.base import MAX_CLASS_NAME_CHARS, MAX_SIDE, is_key
from dataprep.formats.tars import ByteReader, damaged
from dataprep.messages import counted, shown
from dataprep.sources.keys import IMAGE_SUFFIXES, key_of, name_bytes
from dataprep.storage.checksums import crc32c_of

MAX_CLASSES = 1_000_000
"""Maximum number of classes without a class list: a larger label is taken for an identifier."""
NO_LABELS = "none"
"""Value of `labels` for data whose labels are to be ignored."""
_FEW_TEXTS = 5
"""Number of different texts that are classes even if no two samples share one."""
_DISTINCT_SHARE = 0.9
"""Maximum number of different texts, as a share of the samples, for texts to be classes. Captions hardly ever recur,
but 1,000 samples of ImageNet in random order have at most 640 classes."""
_INTEGER = re.compile(r"\s*-?\d{1,18}\s*")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE)
_UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
FROM_ONE = "put a first line for class 0, such as background, into the file of `class_names`"
"""Advice for labels that begin at 1, as in the TFRecords of ImageNet for TPUs."""
_ADVICE = f"name the field that holds it with `labels` FIELD, or ignore labels with `labels` {NO_LABELS}"
_SHOWABLE = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,100}")


class LabelReader:
    """Reads the labels of one shard.

    Args:
        field: Field that holds the label; None for the usual fields.
        num_classes: Number of classes, if they are known: labels are integers below it. None: labels may be integers
            below MAX_CLASSES, or texts.
    """

    def __init__(self, field: str | None, num_classes: int | None) -> None:
        self.field = field
        self._most = MAX_CLASSES if num_classes is None else num_classes
        self._may_be_text = num_classes is None
        self._numbers: dict[str, int] = {}
        self._integer: int | None = None

    def label(self, value: object, name: str) -> int:
        """Return the label for a stored value; -1 means no label. A text has its position among `labels().texts`.
        Raises SourceError if the value is not a label, or the shard has both integers and texts; the error's text is a
        clause.

        Args:
            value: The value that was stored: an integer, the text of one, or the text of a class.
        """
        label = int(value) if isinstance(value, str) and _INTEGER.fullmatch(value) else value
        if isinstance(label, int) and not isinstance(label, bool) and -1 <= label < self._most:
            if label >= 0 and self._integer is None:
                self._integer = label
                self._refuse_both()
            return label
        text = value.strip() if isinstance(value, str) else ""
        if not self._may_be_text or not _is_class(text):
            texts = (
                ", or the text of a class" if self._may_be_text else f", as there are {counted(self._most, 'class')}"
            )
            first = f"if the labels begin at 1, {FROM_ONE}; else " if label == self._most else ""
            raise SourceError(
                f"label {shown(str(value))} in {shown(name)}, expected an integer from 0 to {self._most - 1:,}{texts}: "
                f"{first}{_ADVICE}"
            )
        number = self._numbers.setdefault(text, len(self._numbers))
        self._refuse_both()
        return number

    def labels(self) -> ShardLabels:
        """Return the kind of labels that were read."""
        return ShardLabels(tuple(self._numbers), self._integer)

    def _refuse_both(self) -> None:
        if self._numbers and self._integer is not None:
            raise SourceError(_both(self._integer, next(iter(self._numbers))))


@dataclass(frozen=True, slots=True)
class ShardLabels:
    """The kind of a shard's labels."""

    texts: tuple[str, ...] = ()
    """The different texts: a row's number is a position here; empty if labels are integers."""
    integer: int | None = None


def text_classes(found: Iterable[ShardLabels], samples: int, *, where: str) -> tuple[str, ...]:
    """Return the sorted texts of all shards, which are the names of the classes; nothing if labels are integers. Raises
    SourceError if some labels are integers and others texts, or nearly every sample has a different text.

    Args:
        samples: Number of samples that have a label.
    """
    texts: set[str] = set()
    integer: int | None = None
    for labels in found:
        texts.update(labels.texts)
        integer = labels.integer if integer is None else integer
    if texts and integer is not None:
        raise SourceError(f"{where}: {_both(integer, min(texts))}")
    if len(texts) > MAX_CLASSES or (len(texts) > _FEW_TEXTS and len(texts) > _DISTINCT_SHARE * samples):
        raise too_many_texts(texts, samples, where=where)
    return tuple(sorted(texts))


def too_many_texts(texts: set[str], samples: int, *, where: str) -> SourceError:
    listed = ", ".join(map(shown, nsmallest(3, texts)))
    return SourceError(
        f"{where}: labels are text with {len(texts):,} different values for {samples:,} samples ({listed}, ...): "
        f"captions or names rather than classes; ignore them with `labels` {NO_LABELS}, or name the field of the "
        "classes with `labels` FIELD"
    )


def read_class_names(path: Path) -> tuple[str, ...]:
    """Read the names of classes from a text file: the name of class k in line k, counted from 0. Raises UsageError if
    the file cannot be read, a line is not a name, or a name occurs twice."""
    try:
        lines = path.read_text(encoding="utf-8-sig").rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as text ({error})") from error
    first: dict[str, int] = {}
    for number, name in enumerate((line.strip() for line in lines), start=1):
        if not 0 < len(name) <= MAX_CLASS_NAME_CHARS or _UNFIT.search(name):
            raise UsageError(f"{path}: line {number:,} is {shown(name)}, expected the name of class {number - 1:,}")
        if first.setdefault(name, number) != number:
            raise UsageError(
                f"{path}: line {number:,} is {shown(name)}, as line {first[name]:,} is; expected another name for each "
                "class"
            )
    return tuple(first)


def key_from(text: str) -> str:
    """Return the key for the name that another tool gave a sample: unchanged if it is a valid key, else escaped.

    Args:
        text: The name, with `/` between folders; an image's extension is removed.
    """
    *folders, last = [part for part in text.split("/") if part] or [""]
    stem, dot, suffix = last.rpartition(".")
    if not (dot and stem and suffix.lower() in IMAGE_SUFFIXES):
        stem = last
    path = "/".join([*folders, stem])
    return path if not path or is_key(path) else key_of([*folders, f"{stem}."])


def key_in_shard(shard: str, key: str) -> str:
    return _fitted(f"{_prefix(shard)}/{key}")


def shard_prefixes(shards: Sequence[str]) -> list[str]:
    """Return a prefix of keys for each shard, so that keys of two shards differ. It is the shard's name; if another
    shard, or a folder of one, has the same name, ignoring case, `=00` and the shard's number follow. Keys made from
    names never contain `=00`.
    """
    prefixes = [_prefix(shard) for shard in shards]
    alike, first = set[str](), ""
    for prefix in sorted(f"{prefix.lower()}/" for prefix in prefixes):
        if first and prefix.startswith(first):
            alike |= {first, prefix}
        else:
            first = prefix
    return [
        f"{prefix}=00{number}" if f"{prefix.lower()}/" in alike else prefix for number, prefix in enumerate(prefixes)
    ]


def distinct_keys(row_key: str, prefix: str, file: str, again: int) -> Iterator[str]:
    """Yield other keys for a sample whose key occurs more than once in its split, ignoring case; the first one that no
    other sample has is taken.

    Args:
        prefix: Prefix of the keys of the sample's shard; see `shard_prefixes`.
        file: For an image folder, the file, used instead of the shard: it distinguishes `a.jpg`, `a.png` and `A.jpg`.
        again: Number of earlier samples of the shard with this key.
    """
    key, first = f"{prefix}/{row_key}", again
    if file:
        key, first = f"{row_key}=00{crc32c_of(name_bytes(file)):08X}", 0
    for number in count(first):
        yield _fitted(f"{key}=00{number}" if number else key)


def key_hash(key: str) -> int:
    """Return a hash that is equal for keys that differ in case only."""
    return name_hash(key.lower())


def side_from(value: object) -> int | None:
    """Return a height or width in pixels; None for an impossible one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_SIDE else None


def listed_fields(fields: Counter[str]) -> Counter[str]:
    """Return the fields to list, with the number of samples that have each: the most frequent ones. Fields that every
    dataset has, such as height, and names that messages cannot show are left out."""
    named = {
        name: count for name, count in fields.items() if name not in WRITTEN_BY_BUILDS and _SHOWABLE.fullmatch(name)
    }
    return Counter(dict(Counter(named).most_common(MAX_FEATURES)))


def crc32c_number(text: str | None) -> int | None:
    """Read a CRC32C that Cloud Storage wrote."""
    return int.from_bytes(base64.b64decode(text), "big") if text else None


def read_small(reader: ByteReader, offset: int, num_bytes: int, most: int, *, member: str) -> bytes:
    """Read a text that is stored with an image. Raises SourceError if it has more than `most` bytes."""
    if num_bytes > most:
        raise damaged(reader, offset, f"{num_bytes:,} bytes, expected at most {most:,}", member=member)
    return reader.read(offset, num_bytes)


def _is_class(text: str) -> bool:
    """Return whether a text can name a class: one line of 1 to 1,000 characters that is not a number."""
    fits = 0 < len(text) <= MAX_CLASS_NAME_CHARS
    return fits and not _NUMBER.fullmatch(text) and not _UNFIT.search(text)


def _both(integer: int, text: str) -> str:
    return f"some labels are integers ({integer}) and others are text ({shown(text)}), expected one kind: {_ADVICE}"


def _prefix(shard: str) -> str:
    """Return the name of a shard's file without extension, escaped like a key."""
    stem = shard.removesuffix(".tar").removesuffix(".tfrecord")
    return key_of([*stem.split("/"), "_"])[:-2]


def _fitted(key: str) -> str:
    """Return the key; one that is too long is shortened and ends with a hash."""
    return key if is_key(key) else key_of(key.split("/"))
