"""References of a split, any number of them: they are added one by one, and read in batches.

A list of a million `SampleRef`s takes 281 to 900 MB. Here they wait in a temporary file, and memory holds one batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from dataprep.dataset.columns import from_numpy, numbers, strings, table_of, to_numpy
from dataprep.dataset.records import References, SampleRef
from dataprep.dataset.spill import SpilledTable
from dataprep.dataset.spread import spread

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 1 << 15
"""Maximum number of references that wait in memory as Python objects."""
_BATCH_BYTES = 1 << 24
"""Maximum size of their annotations."""
_SAMPLED_BATCHES = 16
"""Batches from which a sample of references is taken; to read one of BATCH_ROWS takes a few milliseconds."""


@cache
def spill_schema() -> pa.Schema:
    """Return the columns of references in a temporary file: annotations are canonical JSON, empty without features, and
    a checksum is null where it is not known."""
    import pyarrow as pa

    return pa.schema(
        [
            ("key", pa.string()),
            ("source", pa.string()),
            ("offset", pa.int64()),
            ("num_bytes", pa.int64()),
            ("label", pa.int32()),
            ("annotations", pa.large_string()),
            ("crc32c", pa.uint32()),
            ("version", pa.int64()),
        ]
    )


class SpilledReferences:
    """References in the order in which they are added."""

    def __init__(self) -> None:
        self._rows = SpilledTable(spill_schema(), "the list of samples")
        self._added: list[SampleRef] = []
        self._added_bytes = 0

    def add(self, ref: SampleRef) -> None:
        """Add a reference at the end. Raises StorageError if the temporary folder is full."""
        self._added.append(ref)
        self._added_bytes += len(ref.annotations)
        if len(self._added) >= BATCH_ROWS or self._added_bytes >= _BATCH_BYTES:
            self._flush()

    def add_rows(self, rows: pa.RecordBatch) -> None:
        """Add many references at the end, as rows with the columns of `spill_schema`."""
        self._flush()
        self._rows.add(rows)

    def relabelled(self, ranks: Sequence[int]) -> SpilledReferences:
        """Return these references with other labels: each label, a position in `ranks`, becomes the number there."""
        import numpy as np

        found, table = SpilledReferences(), np.array(ranks, np.int32)
        position = spill_schema().get_field_index("label")
        for batch in self.batches():
            labels = from_numpy(table[to_numpy(batch.column(position))])
            found.add_rows(batch.set_column(position, batch.schema.field(position), labels))
        return found

    def __len__(self) -> int:
        return self._rows.num_rows + len(self._added)

    def __iter__(self) -> Iterator[SampleRef]:
        for batch in self.batches():
            yield from refs_of_rows(batch)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all references as rows with the columns of `spill_schema`."""
        return self.rows().batches()

    def sample(self, most: int) -> list[SampleRef]:
        """Return about `most` references that are spread over all, or all if they are fewer; few of them are read."""
        import numpy as np

        batches = self.rows().some_batches(min(most, _SAMPLED_BATCHES))
        found: list[SampleRef] = []
        for batch in batches:
            positions = spread(batch.num_rows, -(-most // len(batches)))
            found.extend(refs_of_rows(batch.take(from_numpy(np.array(positions, np.int64)))))
        return found

    def rows(self) -> SpilledTable:
        """Return all references as a table with the columns of `spill_schema`."""
        self._flush()
        return self._rows

    def _flush(self) -> None:
        if self._added:
            self._rows.add(rows_of_refs(self._added))
            self._added, self._added_bytes = [], 0


def spilled(refs: References) -> SpilledReferences:
    """Return references that can be read in batches: these, or a copy of a list."""
    if isinstance(refs, SpilledReferences):
        return refs
    found = SpilledReferences()
    for ref in refs:
        found.add(ref)
    return found


def rows_of_refs(refs: Sequence[SampleRef]) -> pa.RecordBatch:
    """Return references as rows with the columns of `spill_schema`, in their order."""
    columns = [[getattr(ref, name) for ref in refs] for name in ("key", "source", "offset", "num_bytes", "label")]
    annotations = [ref.annotations.decode() for ref in refs]
    sums, versions = [ref.crc32c for ref in refs], [ref.version for ref in refs]
    return table_of([*columns, annotations, sums, versions], spill_schema()).to_batches()[0]


def spill_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return stored references as rows with the columns of `spill_schema`.

    Args:
        rows: The same columns, of which text may be encoded by a dictionary, and annotations, checksums and versions
            be missing.

    Raises:
        pyarrow.ArrowException, KeyError, ValueError: A column is missing, of another type, or has missing values.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = []
    for field in spill_schema():
        if field.name == "annotations" and field.name not in rows.schema.names:
            columns.append(strings([""] * rows.num_rows, large=True))
            continue
        if field.name == "crc32c" and field.name not in rows.schema.names:
            columns.append(numbers([None] * rows.num_rows, field.type))
            continue
        if field.name == "version" and field.name not in rows.schema.names:
            columns.append(numbers([0] * rows.num_rows, field.type))
            continue
        columns.append(pc.cast(rows.column(field.name), field.type))
        if columns[-1].null_count and field.name != "crc32c":
            raise ValueError(f"values of {field.name} are missing")
    return pa.RecordBatch.from_arrays(columns, schema=spill_schema())


def refs_of_rows(rows: pa.RecordBatch) -> Iterator[SampleRef]:
    """Yield the references of rows with the columns of `spill_schema`."""
    columns = [rows.column(name).to_pylist() for name in spill_schema().names]
    for key, source, offset, num_bytes, label, text, crc32c, version in zip(*columns, strict=True):
        yield SampleRef(key, source, offset, num_bytes, label, text.encode(), crc32c, version)


def enumeration_sha256(refs: References) -> str:
    """Return the hash of the references found in the originals, in their order.

    Each has a line of its fields with tabs between them: key, source, offset, bytes, label, and annotations if it has
    any; checksum and version are not among them.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    digest, kind = hashlib.sha256(), pa.large_string()
    tab, end, nothing = strings(["\t", "\n", ""], large=True)  # pa.scalar would import pandas
    for batch in spilled(refs).batches():
        *fields, texts = (pc.cast(column, kind) for column in batch.columns[:-2])
        before = pc.if_else(pc.equal(texts, nothing), nothing, tab)
        lines = pc.binary_join_element_wise(pc.binary_join_element_wise(*fields, tab), before, texts, end, nothing)
        digest.update(_text_of(lines))
    return digest.hexdigest()


def _text_of(texts: pa.LargeStringArray) -> memoryview:
    """Return the bytes of all texts, one after the other."""
    _, ends, data = texts.buffers()
    bounds = memoryview(ends).cast("q")
    return memoryview(data)[bounds[texts.offset] : bounds[texts.offset + len(texts)]]
