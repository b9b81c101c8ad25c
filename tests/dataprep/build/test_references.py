"""References of a plan: stored once, read back shard by shard."""

import pytest

from dataprep.build.claim import OvertakenError, claim_place
from dataprep.build.open_build import open_build
from dataprep.build.references import (
    plan_parquet,
    read_references,
    references_of,
    refs_from_table,
    refs_table,
    shard_plan,
)
from dataprep.dataset.paths import PLAN_JSON
from dataprep.errors import BuildError
from dataprep.storage import open_storage
from tests.support.plans import planned, refs_of, small_plan


@pytest.fixture
def claim(storage_url):
    return claim_place(open_storage(storage_url), planned(small_plan((2, 0, 3))))


def test_references_are_read_back_from_their_table():
    refs = refs_of(small_plan((3,)), 0)
    assert refs_from_table(refs_table(refs)) == refs
    assert refs_from_table(refs_table([])) == []


def test_shard_has_its_own_references(claim, storage_url):
    build = open_build(storage_url, claim.root)
    for index in range(3):
        shard = shard_plan(build, index)
        assert list(shard.refs) == refs_of(claim.plan, index) == refs_from_table(references_of(build, index))
        assert (shard.index, shard.split, shard.split_index, shard.split_shards) == (index, "val", index, 3)


def test_removed_references_are_read_as_none(claim, storage_url):
    storage = open_storage(storage_url)
    tables = list(read_references(storage, claim, [2, 0]))
    assert [table.num_rows for table in tables] == [3, 2]
    storage.delete(plan_parquet(claim.root))
    assert list(read_references(storage, claim, [0])) == []


def test_a_worker_whose_references_are_gone_says_whether_its_build_was_overtaken(claim, storage_url):
    storage = open_storage(storage_url)
    build = open_build(storage_url, claim.root)
    storage.delete(plan_parquet(claim.root))
    with pytest.raises(BuildError, match=r"plan\.parquet is gone.*build again with --overwrite"):
        shard_plan(build, 0)
    storage.delete(PLAN_JSON)
    with pytest.raises(OvertakenError):
        shard_plan(build, 0)
