"""Finds samples with the same key among any number of references, in bounded memory.

Hashes of 64 bits are sorted; where two are equal, the keys themselves are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from dataprep.dataset.columns import from_numpy, to_numpy
from dataprep.dataset.records import References, SampleRef
from dataprep.dataset.references import SpilledReferences, refs_of_rows, spilled
from dataprep.dataset.spill import SpilledTable, in_order_of_words
from dataprep.errors import SourceError
from dataprep.messages import shown

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Names = Callable[[pa.RecordBatch], Sequence[str]]

COMPARED_HASHES = 1_000
"""Number of equal hashes whose names are compared in one reading of all references."""


def refuse_duplicates(where: str, refs: References) -> None:
    """Raise SourceError if two samples have the same key, ignoring case. Its text begins with `where` and names
    both."""
    for first, second, _ in same_names(refs, keys_in_lower_case):
        raise SourceError(
            f"{where}: two images have the key {first.key}, ignoring case: {_place(first)} and {_place(second)}; "
            "expected every name once: remove or rename one"
        )


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
    equal = _equal_hashes(found, names)
    while hashes := set(islice(equal, COMPARED_HASHES)):
        seen: dict[str, SampleRef] = {}
        for name, ref in _with_hashes(found, names, hashes):
            first = seen.setdefault(name, ref)
            if first is not ref:
                yield first, ref, name


def _hashes(names: Sequence[str]) -> NDArray[np.uint64]:
    """Return hashes that differ from process to process, so that nobody can foresee equal ones."""
    import numpy as np

    return np.fromiter(map(hash, names), np.int64, len(names)).view(np.uint64)


def _equal_hashes(refs: SpilledReferences, names: Names) -> Iterator[int]:
    """Yield each hash that the names of two references have."""
    import numpy as np
    import pyarrow as pa

    rows = SpilledTable(pa.schema([("hash", pa.uint64())]), "the list of names")
    for batch in refs.batches():
        rows.add(pa.RecordBatch.from_arrays([from_numpy(_hashes(names(batch)))], names=["hash"]))
    # Equal numbers are always in the same part.
    for part in in_order_of_words(rows, lambda _, batch: to_numpy(batch.column(0))):
        hashes = to_numpy(part.column(0))
        yield from np.unique(hashes[1:][hashes[1:] == hashes[:-1]]).tolist()


def _with_hashes(refs: SpilledReferences, names: Names, hashes: set[int]) -> Iterator[tuple[str, SampleRef]]:
    """Yield the references whose names have one of these hashes, in their order."""
    import numpy as np

    wanted = np.array(sorted(hashes), np.uint64)
    for batch in refs.batches():
        named = names(batch)
        positions = np.flatnonzero(np.isin(_hashes(named), wanted))
        if len(positions):
            chosen = [named[position] for position in positions.tolist()]
            yield from zip(chosen, refs_of_rows(batch.take(from_numpy(positions))), strict=True)


def _place(ref: SampleRef) -> str:
    return f"{ref.key} in {shown(ref.source)} at byte {ref.offset:,}"
