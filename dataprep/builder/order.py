"""The order of a split: which samples are in which shard, and where in it. In bounded memory, whatever their number.

The order is that of `dataprep.dataset.randomness.permutation`: a stable sort by random words. So the references are
sorted by these words in parts (dataprep/dataset/spill.py), once for their sizes alone, which decide where shards begin,
and once to write them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from dataprep.builder.plan import BuildOptions, physical_key
from dataprep.builder.references import refs_schema, stored_rows
from dataprep.dataset.columns import strings, to_numpy
from dataprep.dataset.randomness import philox_words
from dataprep.dataset.spill import SpilledReferences, SpilledTable, in_order_of_words
from dataprep.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Shuffle:
    """The random order of a split's samples, one for each stored pass."""

    seed: int
    split: str
    permutes: bool = True
    """Whether samples are put into random order; otherwise they keep theirs."""

    def tables(self, rows: SpilledTable, pass_index: int) -> Iterator[pa.Table]:
        """Yield rows, one for each sample, in the order of a pass."""
        if not self.permutes:
            return _as_they_are(rows)
        return in_order_of_words(rows, partial(self._words, pass_index))

    def _words(self, pass_index: int, first: int, batch: pa.RecordBatch) -> NDArray[np.uint64]:
        purpose = f"build/{self.split}"
        return philox_words(batch.num_rows, seed=self.seed, purpose=purpose, pass_index=pass_index, start=first)


@dataclass(frozen=True, slots=True)
class OrderedSplit:
    """The references of a split, and their order in its shards."""

    refs: SpilledReferences
    shuffle: Shuffle
    shard_samples: tuple[int, ...]
    """Samples of each shard, one stored pass after the other."""
    passes: int
    """Passes that are written as bytes."""
    source_bytes: int
    """Bytes of the original images of one pass."""
    annotated: bool

    def shards(self, *, checked: bool = False) -> Iterator[pa.Table]:
        """Yield the references of each shard, with the columns of `refs_schema`.

        Args:
            checked: Whether the checksums of the images are among them.
        """
        rows = self.refs.rows()
        schema = refs_schema(with_annotations=self.annotated, with_crc32c=checked)
        shards_a_pass = len(self.shard_samples) // self.passes
        for pass_index in range(self.passes):
            due = self.shard_samples[pass_index * shards_a_pass : (pass_index + 1) * shards_a_pass]
            for table in _regrouped(self.shuffle.tables(rows, pass_index), rows.schema, due):
                yield _planned(table, pass_index if self.passes > 1 else None, schema)


def order_split(
    refs: SpilledReferences, options: BuildOptions, split: str, passes: int, *, annotated: bool
) -> OrderedSplit:
    """Divide one split into shards.

    Every stored pass is permuted with a key of its own and cut at equal shares of the source bytes, so that shards
    have nearly the same size and their number depends on the bytes alone.

    Args:
        passes: Number of passes to write: 5 for `--repeat physical` of a dataset repeated five times, else 1.
        annotated: Whether the samples have features.
    """
    sizes = _sizes(refs)
    count, total = len(refs), sum(int(chunk.sum()) for chunk in _numbers(sizes.batches()))
    shards = options.num_shards or max(1, -(-total // options.shard_bytes))
    if options.num_shards is not None and shards > max(1, count):
        raise UsageError(f"--num-shards {shards}: split {split} has only {count:,} samples; ask for fewer shards")
    shuffle = Shuffle(options.seed, split, permutes=options.converted is None or options.converted.shuffle)
    shard_samples: list[int] = []
    for pass_index in range(passes):
        chunks = _numbers(shuffle.tables(sizes, pass_index))
        bounds = cut(chunks, min(shards, max(1, count)), count=count, total_bytes=total)
        shard_samples.extend(stop - start for start, stop in pairwise(bounds))
    return OrderedSplit(refs, shuffle, tuple(shard_samples), passes, total, annotated)


def cut(num_bytes: Iterable[NDArray[np.int64]], shards: int, *, count: int, total_bytes: int) -> list[int]:
    """Return the `shards + 1` boundaries at which the running sum of bytes passes equal shares of the total.

    Args:
        num_bytes: Source bytes of each sample, in pieces of any length.
        shards: Number of shards.
        count: Number of samples.
        total_bytes: Sum of `num_bytes`.
    """
    import numpy as np

    if total_bytes == 0:
        return [count * i // shards for i in range(shards + 1)]
    thresholds = np.array([-(-i * total_bytes // shards) for i in range(shards)], np.int64)
    bounds: list[int] = []
    samples_before = bytes_before = 0
    for chunk in num_bytes:
        before = bytes_before + np.cumsum(chunk) - chunk
        found = np.searchsorted(before, thresholds[len(bounds) :], side="left")
        bounds.extend(samples_before + int(position) for position in found[found < len(chunk)])
        samples_before, bytes_before = samples_before + len(chunk), bytes_before + int(chunk.sum())
    return [*bounds, *[count] * (shards + 1 - len(bounds))]


def _as_they_are(rows: SpilledTable) -> Iterator[pa.Table]:
    import pyarrow as pa

    for batch in rows.batches():
        yield pa.Table.from_batches([batch])


def _sizes(refs: SpilledReferences) -> SpilledTable:
    import pyarrow as pa

    sizes = SpilledTable(pa.schema([("num_bytes", pa.int64())]), "the list of sizes")
    for batch in refs.batches():
        sizes.add(batch.select(["num_bytes"]))
    return sizes


def _numbers(tables: Iterable[pa.Table | pa.RecordBatch]) -> Iterator[NDArray[np.int64]]:
    for table in tables:
        yield to_numpy(table.column(0))


def _regrouped(tables: Iterable[pa.Table], schema: pa.Schema, lengths: Iterable[int]) -> Iterator[pa.Table]:
    """Yield the rows of some tables, in their order, as tables of other lengths."""
    import pyarrow as pa

    waiting = iter(tables)
    rest = pa.Table.from_batches([], schema)
    for length in lengths:
        pieces, missing = [], length
        while missing:
            if not rest.num_rows:
                rest = next(waiting)
            pieces.append(rest.slice(0, missing))
            missing -= pieces[-1].num_rows
            rest = rest.slice(pieces[-1].num_rows)
        yield pa.concat_tables([pa.Table.from_batches([], schema), *pieces]).combine_chunks()


def _planned(rows: pa.Table, pass_index: int | None, schema: pa.Schema) -> pa.Table:
    """Return the references of a shard as they are stored; in a physical pass their keys say which it is."""
    if pass_index is not None:
        keys = strings([physical_key(key, pass_index) for key in rows.column("key").to_pylist()])
        rows = rows.set_column(0, rows.schema.field(0), keys)
    return stored_rows(rows, schema)
