"""Finds images that a dataset has more than once: with the same bytes, or of the same appearance.

Shards can be built in any order and by any process, because each knows only its own rows. Within a shard the later one
of two duplicates may be dropped. Across shards, `find_duplicates` reports them from the hashes in the sidecars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from dataprep.errors import FormatError, UsageError
from dataprep.fetched.names import MAX_SIDECAR_BYTES
from dataprep.storage.base import read_bounded
from dataprep.storage.parquet import table_in

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dataprep.storage.base import Storage

    Words = NDArray[np.uint64]
    Hashes = tuple[NDArray[np.int64], Words]
    """Row numbers, ascending, and the hashes of those rows."""

DuplicateAction = Literal["keep", "report", "drop"]
ACTIONS: tuple[DuplicateAction, ...] = ("keep", "report", "drop")
# Number of rows of one pass over the hashes; each takes 24 bytes during sorting.
ROWS_IN_MEMORY = 16_000_000
_HASH_BITS = 64
_RESTORE = "restore it"


@dataclass(frozen=True, kw_only=True, slots=True)
class DuplicatePolicy:
    """What to do with a row whose image equals or resembles that of an earlier row of its shard."""

    exact: DuplicateAction = "keep"
    """What to do with files that have the same SHA-256."""
    perceptual: DuplicateAction = "keep"
    """What to do with images whose dHashes differ in at most `max_distance` bits."""
    max_distance: int = 0
    """Number of the 64 bits that may differ. Even at 0, different plain surfaces or logos on white have equal
    dHashes."""

    def __post_init__(self) -> None:
        for name in ("exact", "perceptual"):
            if getattr(self, name) not in ACTIONS:
                raise UsageError(f"--{name}-duplicates {getattr(self, name)!r}: expected one of {', '.join(ACTIONS)}")
        if not 0 <= self.max_distance < _HASH_BITS:
            raise UsageError(f"--duplicate-distance must be 0 to {_HASH_BITS - 1} bits, got {self.max_distance}")

    @property
    def looks(self) -> bool:
        """Whether duplicates are searched at all; then the columns `dhash` and `duplicate_of` are written."""
        return (self.exact, self.perceptual) != ("keep", "keep")


class Duplicate(NamedTuple):
    """A row whose image equals or resembles that of an earlier row."""

    position: int
    first: int
    """Position of that earlier row, the first of its kind."""
    action: DuplicateAction
    reason: str


def duplicates_of(sha256s: Sequence[str], dhashes: Sequence[int], policy: DuplicatePolicy) -> Iterator[Duplicate]:
    """Yield the duplicates of earlier rows, in order, each with the first matching row that is no duplicate itself; a
    file that is dropped may also equal that of a duplicate which is only reported.

    Args:
        sha256s: Hashes of the files, in the order of the rows.
        dhashes: Hashes of the images, in the same order.
        policy: What to look for.
    """
    import numpy as np

    seen: dict[str, int] = {}
    firsts = np.empty(len(dhashes), np.uint64)
    positions: list[int] = []
    for position, (sha256, dhash) in enumerate(zip(sha256s, dhashes, strict=True)):
        if policy.exact != "keep" and sha256 in seen:
            yield Duplicate(position, seen[sha256], policy.exact, "exact duplicate")
            continue
        if policy.perceptual != "keep":
            near = np.bitwise_count(firsts[: len(positions)] ^ np.uint64(dhash)) <= policy.max_distance
            if near.any():
                yield Duplicate(position, positions[int(near.argmax())], policy.perceptual, "perceptual duplicate")
                if (policy.exact, policy.perceptual) == ("drop", "report"):  # it stays, so equal files follow it
                    seen.setdefault(sha256, position)
                continue
        seen.setdefault(sha256, position)
        firsts[len(positions)] = dhash
        positions.append(position)


def find_duplicates(
    hashes: Callable[[], Iterable[Hashes]], rows: int, rows_in_memory: int = ROWS_IN_MEMORY
) -> Iterator[tuple[int, int]]:
    """Yield rows with equal hashes over a whole dataset. Several passes, each over a share of the hashes, bound the
    memory.

    The result depends on the rows only, not on their division into shards or passes.

    Args:
        hashes: Called once in each pass; returns row numbers, ascending, and their 64-bit hashes, some at a time.
        rows: Approximate number of rows.
        rows_in_memory: Approximate maximum number of rows of one pass.

    Yields:
        Number of a row, and of the first one with its hash; sorted by hash within a pass.
    """
    passes = max(1, -(-rows // rows_in_memory))
    for share in range(passes):
        yield from _equal_in_share(hashes(), share, passes)


def sidecar_hashes(storage: Storage, files: Mapping[int, str], rows_per_shard: int, column: str) -> Iterator[Hashes]:
    """Yield the hashes from the parquet sidecars of the shards, for `find_duplicates`.

    Args:
        storage: Where the dataset lies.
        files: The parquet file of each shard, by the shard's number, ascending.
        rows_per_shard: Number of rows of a shard: a row's number is its shard's number times this, plus its position in
            the shard.
        column: `sha256`, of which the first 64 bits are taken, or `dhash`.
    """
    import numpy as np

    for shard, name in files.items():
        data = read_bounded(storage, name, MAX_SIDECAR_BYTES, advice=_RESTORE)
        if data is None:
            raise FormatError(f"{storage.url_of(name)}: not found; {_RESTORE}")
        table = table_in(data, ("status", column))
        values = zip(table.column("status").to_pylist(), table.column(column).to_pylist(), strict=True)
        found = [(row, int(text[:16], 16)) for row, (status, text) in enumerate(values) if status == "success"]
        numbers = np.array([row for row, _ in found], np.int64) + shard * rows_per_shard
        yield numbers, np.array([word for _, word in found], np.uint64)


def _equal_in_share(hashes: Iterable[Hashes], share: int, passes: int) -> Iterator[tuple[int, int]]:
    import numpy as np

    kept_numbers, kept_hashes = [], []
    for numbers, words in hashes:
        mine = words % np.uint64(passes) == share
        kept_numbers.append(numbers[mine])
        kept_hashes.append(words[mine])
    if not kept_numbers:
        return
    numbers, words = np.concatenate(kept_numbers), np.concatenate(kept_hashes)
    order = np.argsort(words, kind="stable")
    numbers, words = numbers[order], words[order]
    starts = np.flatnonzero(np.concatenate(([True], words[1:] != words[:-1])))
    counts = np.diff(np.append(starts, len(words)))
    for start, count in zip(starts[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True):
        first, *others = numbers[start : start + count].tolist()
        for number in others:
            yield number, first
