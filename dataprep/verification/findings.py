"""Findings of a verification: each has a place, and a kind from a small vocabulary.

manifest    dataset.json cannot be read, contradicts itself, or names files that no build would
missing     a file that the manifest or the index names does not exist
extra       an unlisted file exists where a reader would take it for a part of the dataset
size        a file has another size than listed
digest      a file has the right size and another SHA-256 or CRC32C
format      a shard, index or events file cannot be read as what it is
record      one sample differs from its row in the index
index       the index differs from the manifest or from the layout of an index
duplicate   a key occurs twice in a split, ignoring case
count       the number of samples, classes or events differs from the manifest
published   counts or classes differ from what the dataset's authors published
metadata    dataset_info.json, features.json or label.labels.txt contradicts the manifest
link        a link of a physically repeated image folder is missing or leads elsewhere
image       an image cannot be decoded, or has other sides than recorded (deep checks; sides in image folders always)
view        a view of this revision cannot be read, or its rows contradict its counts
column      a file of a column is missing, or is not the one that the column lists
unread      the disk or bucket could not be read: nothing is known about its bytes
leftover    files of a build or retry still exist: a warning, the dataset is complete
labels      readers of an image folder number its classes differently: a warning
card        README.md, croissant.json or _info.json was edited, or belongs to another revision: a warning, as users may
            write their own
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

KINDS = (
    "manifest", "missing", "extra", "size", "digest", "format", "record", "index", "duplicate", "count", "published",
    "metadata", "link", "image", "view", "column", "unread", "leftover", "labels", "card",
)  # fmt: skip
WARNINGS = frozenset({"leftover", "labels", "card"})
UNPROVED = frozenset({"unread"})

MAX_LISTED = 1_000
"""Maximum number of listed findings; the rest is only counted."""
MAX_LISTED_PER_PART = 50
"""Maximum number of listed findings of one shard: a shard of noise must not hide the faults of the others."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a dataset."""

    kind: str
    """Kind: one of KINDS."""
    where: str
    """Name of a file relative to the dataset's root, and the record in it, if any."""
    detail: str
    """Found and expected values, on one line."""


class Findings:
    """Collects findings in bounded memory: lists the first ones by position, and counts all."""

    def __init__(self, max_listed: int = MAX_LISTED_PER_PART) -> None:
        self._max_listed = max_listed
        self._entries: list[tuple[int, Finding]] = []
        self.counts: Counter[str] = Counter()

    def add(self, kind: str, where: str, detail: str, *, position: int = 0) -> None:
        """Add one finding; `position` is the position of its part of the dataset among all parts."""
        self._entries.append((position, Finding(kind, where, detail)))
        self.counts[kind] += 1
        self._bound()

    def extend(self, other: Findings, position: int) -> None:
        """Add the findings of one part."""
        self._entries += ((position, finding) for finding in other.listed)
        self.counts += other.counts
        self._bound()

    @property
    def listed(self) -> list[Finding]:
        """Findings in the order of their parts, independent of the order in which they were added."""
        self._cut()
        return [finding for _, finding in self._entries]

    def _bound(self) -> None:
        if len(self._entries) >= 2 * self._max_listed:
            self._cut()

    def _cut(self) -> None:
        self._entries.sort(key=lambda entry: entry[0])
        del self._entries[self._max_listed :]
