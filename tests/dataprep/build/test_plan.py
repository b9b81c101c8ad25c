from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.build.images import ImagePolicy
from dataprep.build.plan import (
    BuildOptions,
    Plan,
    PlannedSplit,
    cut,
    enumeration_sha256,
    order_split,
    physical_key,
    plan_from_document,
)
from dataprep.dataset.records import SampleRef
from dataprep.errors import UsageError

OPTIONS = BuildOptions(dataset="coco-dup5", format="webdataset", splits=("train",))
SIZES = st.lists(st.integers(0, 10**7), max_size=300).map(lambda sizes: np.array(sizes, dtype=np.int64))


def plan_of(**changes):
    split = PlannedSplit(
        name="train",
        shard_samples=(3, 2),
        repeat_count=5,
        repeat_stored=1,
        sources=({"name": "train2017.zip", "bytes": 9},),
        enumeration_sha256="ab",
        source_bytes=8,
    )
    return Plan(options=replace(OPTIONS, **changes), codecs={"pillow": "1"}, classes=(), splits=(split,))


@given(SIZES, st.integers(1, 40))
def test_cut_loses_nothing_and_balances_bytes(sizes, shards):
    bounds = cut(sizes, shards)
    assert len(bounds) == shards + 1
    assert bounds[0] == 0
    assert bounds[-1] == len(sizes)
    assert all(start <= stop for start, stop in pairwise(bounds))
    share = sizes.sum() / shards
    for start, stop in pairwise(bounds):
        assert sizes[start:stop].sum() <= share + sizes.max(initial=0)


def test_cutting_sizes_whose_products_exceed_64_bits_balances_them():
    sizes = np.full(1000, 2**52, dtype=np.int64)
    assert [stop - start for start, stop in pairwise(cut(sizes, 1000))] == [1] * 1000


@given(SIZES, st.integers(0, 2**40), st.sampled_from([1, 5]), st.integers(1, 10**8))
def test_every_pass_holds_every_sample_once(sizes, seed, stored, shard_bytes):
    order = order_split(sizes, replace(OPTIONS, seed=seed, shard_bytes=shard_bytes), "train", stored)
    shards_a_pass = len(order) // stored
    passes = [np.concatenate(order[i * shards_a_pass : (i + 1) * shards_a_pass]) for i in range(stored)]
    for positions in passes:
        assert sorted(positions.tolist()) == list(range(len(sizes)))
    if len(sizes) > 20:
        assert len({positions.tobytes() for positions in passes}) == stored


def test_number_of_shards_follows_bytes_or_the_user():
    sizes = np.full(100, 10, dtype=np.int64)
    assert len(order_split(sizes, replace(OPTIONS, shard_bytes=300), "train", 1)) == 4
    assert len(order_split(sizes, replace(OPTIONS, num_shards=7), "train", 1)) == 7
    with pytest.raises(UsageError, match=r"--num-shards 101: split train has only 100 samples"):
        order_split(sizes, replace(OPTIONS, num_shards=101), "train", 1)


def test_plan_is_read_back_from_its_document_with_the_same_hash():
    plan = plan_of(images=ImagePolicy(short_side=256))
    again = plan_from_document(plan.document())
    assert again == plan
    assert again.plan_hash == plan.plan_hash
    assert plan.locate(4 - 3) == (plan.splits[0], 1)
    with pytest.raises(UsageError, match="shard 2 past the end"):
        plan.locate(2)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"format": "tfrecord"},
        {"shard_bytes": 5},
        {"num_shards": 2},
        {"repeat": "physical"},
        {"allow_partial": True},
        {"images": ImagePolicy(check="header")},
        {"images": ImagePolicy(on_bad="reject")},
        {"images": ImagePolicy(apply_exif=True)},
        {"images": ImagePolicy(short_side=9)},
    ],
)
def test_every_option_that_changes_bytes_changes_the_hash(change):
    assert plan_of(**change).plan_hash != plan_of().plan_hash


def test_enumeration_hash_sees_every_field_and_the_order():
    ref = SampleRef("k", "s", 1, 2, 3)
    others = [replace(ref, **change) for change in ({"key": "x"}, {"source": "x"}, {"offset": 0}, {"label": 4})]
    hashes = {enumeration_sha256(refs) for refs in ([ref], *([other] for other in others), [ref, others[0]])}
    hashes.add(enumeration_sha256([others[0], ref]))
    assert len(hashes) == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, "--seed must be 0 or more, got -1"),
        ({"shard_bytes": 0}, "--shard-bytes must be 1 or more, got 0"),
        ({"num_shards": 0}, "--num-shards must be 1 or more, got 0"),
        ({"splits": ()}, "no split to build"),
        ({"images": ImagePolicy(short_side=0)}, "--resize must be 1 pixel or more, got 0"),
        ({"images": ImagePolicy(quality=101)}, "--quality must be 1..100, got 101"),
        ({"images": ImagePolicy(check="none", short_side=9)}, "--check none reads no image"),
    ],
)
def test_bad_options_are_refused(change, message):
    with pytest.raises(UsageError, match=message):
        replace(OPTIONS, **change)


def test_keys_of_repeats_stay_unique_and_short():
    keys = ["a/b", *("x" * 190 + f"{i:010d}" for i in range(50))]
    repeated = {physical_key(key, pass_index) for key in keys for pass_index in range(5)}
    assert len(repeated) == 5 * len(keys)
    assert max(map(len, repeated)) <= 200
    assert physical_key("a/b", 4) == "a/b-r4"
