"""The order of a split: that of the whole permutation, however the references are divided among parts."""

import hashlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataprep.builder.archives import cut, order_split
from dataprep.builder.plan import BuildOptions, physical_key
from dataprep.builder.references import refs_from_table, refs_schema
from dataprep.dataset import spill
from dataprep.dataset.randomness import permutation
from dataprep.dataset.records import SampleRef
from dataprep.dataset.spill import spilled
from dataprep.errors import UsageError
from tests.support.plans import refs_table

OPTIONS = BuildOptions(dataset="coco-dup5", format="webdataset", splits=("train",))
SIZES = st.lists(st.integers(0, 10**7), max_size=300).map(lambda sizes: np.array(sizes, dtype=np.int64))


@pytest.fixture
def small_parts(monkeypatch):
    """Every table of a few rows is on the disk, and in several parts."""
    monkeypatch.setattr(spill, "REFERENCE_ROWS", 16)
    monkeypatch.setattr(spill, "MEMORY_BYTES", 256)
    monkeypatch.setattr(spill, "PART_BYTES", 512)


def bounds_of(sizes, shards, piece=10**6):
    pieces = [sizes[start : start + piece] for start in range(0, len(sizes), piece)]
    return cut(pieces, shards, count=len(sizes), total_bytes=int(sizes.sum()))


@given(SIZES, st.integers(1, 40), st.integers(1, 400))
def test_cut_loses_nothing_and_balances_bytes(sizes, shards, piece):
    bounds = bounds_of(sizes, shards, piece)
    assert len(bounds) == shards + 1
    assert bounds[0] == 0
    assert bounds[-1] == len(sizes)
    assert all(start <= stop for start, stop in pairwise(bounds))
    share = sizes.sum() / shards
    for start, stop in pairwise(bounds):
        assert sizes[start:stop].sum() <= share + sizes.max(initial=0)
    assert bounds == bounds_of(sizes, shards)


def test_cutting_sizes_whose_products_exceed_64_bits_balances_them():
    sizes = np.full(1000, 2**52, dtype=np.int64)
    assert [stop - start for start, stop in pairwise(bounds_of(sizes, 1000))] == [1] * 1000


def refs_of(sizes):
    return [SampleRef(f"k{i}", f"{i % 3}.tar", i, int(size), i % 7) for i, size in enumerate(sizes)]


def ordered(sizes, stored=1, **options):
    return order_split(spilled(refs_of(sizes)), replace(OPTIONS, **options), "train", stored, annotated=False)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SIZES, st.integers(0, 2**40), st.sampled_from([1, 5]), st.integers(1, 10**8))
def test_every_pass_holds_every_sample_once_in_the_order_of_its_permutation(
    small_parts, sizes, seed, stored, shard_bytes
):
    refs = refs_of(sizes)
    order = ordered(sizes, stored, seed=seed, shard_bytes=shard_bytes)
    found = [refs_from_table(table) for table in order.shards()]
    assert [len(shard) for shard in found] == list(order.shard_samples)
    shards_a_pass = len(found) // stored
    for index in range(stored):
        shards = found[index * shards_a_pass : (index + 1) * shards_a_pass]
        whole = permutation(len(sizes), seed=seed, purpose="build/train", pass_index=index)
        due = [refs[position] for position in whole.tolist()]
        if stored > 1:
            due = [ref._replace(key=physical_key(ref.key, index)) for ref in due]
        assert [ref for shard in shards for ref in shard] == due
        assert [0, *np.cumsum([len(shard) for shard in shards]).tolist()] == bounds_of(sizes[whole], shards_a_pass)


@pytest.mark.parametrize("annotated", [False, True])
def test_stored_references_have_the_bytes_of_those_that_were_never_spilled(small_parts, tmp_path, annotated):
    refs = [ref._replace(annotations=b'{"n":1}' if annotated else b"") for ref in refs_of(range(1_000, 1_400))]
    order = order_split(spilled(refs), replace(OPTIONS, num_shards=7), "train", 1, annotated=annotated)
    digests = []
    whole = permutation(len(refs), seed=0, purpose="build/train").tolist()
    stops = np.cumsum(order.shard_samples).tolist()
    direct = [
        refs_table([refs[position] for position in whole[start:stop]], with_annotations=annotated)
        for start, stop in pairwise([0, *stops])
    ]
    for tables in (order.shards(), direct):
        with pq.ParquetWriter(tmp_path / "plan.parquet", refs_schema(with_annotations=annotated)) as writer:
            for table in tables:
                writer.write_table(table)
        digests.append(hashlib.sha256((tmp_path / "plan.parquet").read_bytes()).hexdigest())
    assert digests[0] == digests[1]


def test_number_of_shards_follows_bytes_or_the_user():
    sizes = [10] * 100
    assert len(ordered(sizes, shard_bytes=300).shard_samples) == 4
    assert len(ordered(sizes, num_shards=7).shard_samples) == 7
    assert len(ordered([2**20] * 70).shard_samples) == 64
    assert len(ordered([100_000] * 100).shard_samples) == 9
    assert len(ordered(sizes).shard_samples) == 1
    assert len(ordered([2**28] * 65).shard_samples) == 65
    assert len(ordered([2**20] * 70, shard_bytes=70 * 2**20).shard_samples) == 1
    with pytest.raises(UsageError, match=r"`num_shards` 101: split train has only 100 samples"):
        ordered(sizes, num_shards=101)
