"""Finds samples with the same key among any number of references, in bounded memory.

Hashes of 64 bits are sorted; where two are equal, the keys themselves are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from dataprep.dataset.columns import from_numpy, to_numpy
from dataprep.dataset.paths import path_of
from dataprep.dataset.records import References, SampleRef
from dataprep.dataset.spill import SpilledTable, in_order_of_words, refs_of_rows, spilled
from dataprep.errors import SourceError
from dataprep.messages import shown
from dataprep.sources.keys import is_file_of_image
from dataprep.sources.problems import Problems

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Names = Callable[[pa.RecordBatch], Sequence[str]]

T = TypeVar("T")
Chunk = tuple[Sequence[str], Callable[[int], T]]
"""Names of some values, and a function that returns the value of a position."""
CHUNK_ITEMS = 1 << 13
COMPARED_HASHES = 1_000
"""Number of equal hashes whose names are compared in one reading of all references."""


def refuse_duplicates(where: str, refs: References) -> None:
    """Raise SourceError if samples have the same key, ignoring case. Its text begins with `where` and names both of the
    first pairs."""
    problems = Problems(where)
    for first, second, _ in same_names(refs, keys_in_lower_case):
        problems.add(
            SourceError(
                f"{where}: two images have the key {first.key}, ignoring case: {_place(first)} and {_place(second)}; "
                "expected every name once: remove or rename one"
            )
        )
    problems.refuse()


def keys_in_lower_case(batch: pa.RecordBatch) -> list[str]:
    """Return the key of each reference in lower case."""
    import pyarrow.compute as pc

    keys: list[str] = pc.ascii_lower(batch.column("key")).to_pylist()
    return keys


def same_names(refs: References, names: Names) -> Iterator[tuple[SampleRef, SampleRef, str]]:
    """Yield the references of equal names: the first of a name, another one, and the name.

    Args:
        refs: References in any number.
        names: Returns the name of each reference of a batch with the columns of `spill_schema`.
    """
    found = spilled(refs)

    def chunks() -> Iterator[Chunk[SampleRef]]:
        for batch in found.batches():
            yield names(batch), partial(_ref_at, batch)

    return _pairs(chunks)


def same_items(items: Iterable[T], name_of: Callable[[T], str]) -> Iterator[tuple[T, T, str]]:
    """Yield the items of equal names: the first of a name, another one, and the name.

    Args:
        items: Items in any number, which can be read several times.
        name_of: Returns the name of an item.
    """

    def chunks() -> Iterator[Chunk[T]]:
        waiting = iter(items)
        while some := list(islice(waiting, CHUNK_ITEMS)):
            yield list(map(name_of, some)), some.__getitem__

    return _pairs(chunks)


def _ref_at(batch: pa.RecordBatch, position: int) -> SampleRef:
    return next(refs_of_rows(batch.slice(position, 1)))


def _pairs(chunks: Callable[[], Iterator[Chunk[T]]]) -> Iterator[tuple[T, T, str]]:
    """Yield the values of equal names, of which there are any number.

    Args:
        chunks: Returns all of them, in their order; called several times.
    """
    equal = _equal_hashes(chunks)
    while hashes := set(islice(equal, COMPARED_HASHES)):
        seen: dict[str, T] = {}
        for name, value in _with_hashes(chunks, hashes):
            first = seen.setdefault(name, value)
            if first is not value:
                yield first, value, name


def _hashes(names: Sequence[str]) -> NDArray[np.uint64]:
    """Return hashes that differ from process to process, so that nobody can foresee equal ones."""
    import numpy as np

    return np.fromiter(map(hash, names), np.int64, len(names)).view(np.uint64)


def _equal_hashes(chunks: Callable[[], Iterator[Chunk[T]]]) -> Iterator[int]:
    """Yield each hash that two names have."""
    import numpy as np
    import pyarrow as pa

    rows = SpilledTable(pa.schema([("hash", pa.uint64())]), "the list of names")
    for names, _ in chunks():
        rows.add(pa.RecordBatch.from_arrays([from_numpy(_hashes(names))], names=["hash"]))
    # Equal numbers are always in the same part.
    for part in in_order_of_words(rows, lambda _, batch: to_numpy(batch.column(0))):
        hashes = to_numpy(part.column(0))
        yield from np.unique(hashes[1:][hashes[1:] == hashes[:-1]]).tolist()


def _with_hashes(chunks: Callable[[], Iterator[Chunk[T]]], hashes: set[int]) -> Iterator[tuple[str, T]]:
    """Yield the values whose names have one of these hashes, in their order."""
    import numpy as np

    wanted = np.array(sorted(hashes), np.uint64)
    for names, value_at in chunks():
        for position in np.flatnonzero(np.isin(_hashes(names), wanted)).tolist():
            yield names[position], value_at(position)


def _place(ref: SampleRef) -> str:
    if is_file_of_image(ref.source):
        return shown(ref.source)
    return f"{shown(path_of(ref.key))} in {shown(ref.source)} at byte {ref.offset:,}"
