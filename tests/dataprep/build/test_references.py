"""References of a plan: stored once, read back shard by shard."""

import zipfile

import pytest

from dataprep.build.claim import OvertakenError, claim_place
from dataprep.build.driver import run_build
from dataprep.build.job import build_shard
from dataprep.build.open_build import open_build
from dataprep.build.plan import BuildOptions
from dataprep.build.references import (
    original_names,
    plan_parquet,
    read_references,
    references_of,
    refs_from_table,
    refs_table,
    shard_plan,
)
from dataprep.build.request import BuildRequest
from dataprep.dataset.paths import PLAN_JSON
from dataprep.errors import BuildError
from dataprep.sources.own import OwnData
from dataprep.storage import open_storage
from tests.support.build_here import Quiet
from tests.support.own_data import picture, write_files
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


def test_original_is_named_by_its_file_or_by_its_path_in_an_archive(tmp_path):
    def engine(job, indexes):
        found.update(named(open_build(job.output_url, job.root)))
        yield from (build_shard(job, index) for index in indexes)

    def named(build):
        keys = [ref.key for index in range(build.plan.num_shards) for ref in shard_plan(build, index).refs]
        return original_names(build, range(build.plan.num_shards), keys)

    found: dict[str, str] = {}
    source = write_files(tmp_path / "in", {"süß 1.png": picture(1), "b/c.jpg": picture(2)})
    with zipfile.ZipFile(source / "more.zip", "w") as archive:
        archive.writestr("more/ö.jpg", picture(3))
    own = OwnData(name="pets")
    options = BuildOptions(dataset="folder", format="webdataset", splits=(), num_shards=2, own=own)
    url = str(tmp_path / "out")
    asked = BuildRequest(options=options, source_url=str(source), output_url=url, max_reject_ratio=0.0)
    run_build(asked, engine, Quiet())
    assert found == {"s=C3=BC=C3=9F=201": "süß 1.png", "b/c": "b/c.jpg", "more/=C3=B6": "more/ö"}
