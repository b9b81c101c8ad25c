"""References of a plan: stored once, read back shard by shard."""

import json
import zipfile

import pytest

from dataprep.builder.driver import run_build
from dataprep.builder.output import OvertakenError, claim_place, open_build, read_claim
from dataprep.builder.references import (
    original_names,
    plan_parquet,
    read_references,
    references_of,
    refs_from_table,
    shard_plan,
)
from dataprep.dataset.paths import PLAN_JSON
from dataprep.errors import BuildError, FormatError
from dataprep.storage import open_storage
from tests.support.build_here import Quiet, in_this_process
from tests.support.damage import flipped
from tests.support.own_data import picture, request, write_files
from tests.support.plans import planned, refs_of, refs_table, small_plan


@pytest.fixture
def claim(storage):
    return claim_place(storage, planned(small_plan((2, 0, 3))))


def test_references_are_read_back_from_their_table():
    refs = refs_of(small_plan((3,)), 0)
    assert refs_from_table(refs_table(refs)) == refs
    assert refs_from_table(refs_table([])) == []


def test_shard_has_its_own_references(claim, storage):
    build = open_build(storage.url, claim.root)
    for index in range(3):
        shard = shard_plan(build, index)
        assert list(shard.refs) == refs_of(claim.plan, index) == refs_from_table(references_of(build, index))
        assert (shard.index, shard.split, shard.split_index) == (index, "val", index)
        assert shard.file.endswith(f"{index:05d}-of-00003.tar")


def test_removed_references_are_read_as_none(claim, storage):
    tables = list(read_references(storage, claim, [2, 0]))
    assert [table.num_rows for table in tables] == [3, 2]
    storage.delete(plan_parquet(claim.root))
    assert list(read_references(storage, claim, [0])) == []


def test_a_worker_whose_references_are_gone_says_whether_its_build_was_overtaken(claim, storage):
    build = open_build(storage.url, claim.root)
    storage.delete(plan_parquet(claim.root))
    with pytest.raises(BuildError, match=r"plan\.parquet is gone.*it makes this file again from the originals"):
        shard_plan(build, 0)
    storage.delete(PLAN_JSON)
    with pytest.raises(OvertakenError):
        shard_plan(build, 0)


def put(storage, name, data):
    storage.delete(name)
    storage.create(name, data)


def damages(whole):
    """Files with a flipped bit in header, pages and footer, truncated ones, and an empty one."""
    return [*(flipped(whole, bit) for bit in range(3, 8 * len(whole), len(whole))), whole[:-1], whole[:100], b""]


def test_a_worker_builds_nothing_from_damaged_references(claim, storage):
    build, name = open_build(storage.url, claim.root), plan_parquet(claim.root)
    for data in damages(storage.read(name)):
        put(storage, name, data)
        with pytest.raises(
            FormatError, match=r"parquet is damaged \(.*\); run the build again with its original options"
        ):
            shard_plan(build, 0)
        with pytest.raises(FormatError, match=r"is damaged"):
            list(read_references(storage, claim, [0]))


def opened(folder):
    """A build on a disk, and the file of its references."""
    claim = claim_place(open_storage(str(folder)), planned(small_plan((2, 0, 3))))
    return open_build(str(folder), claim.root), folder / plan_parquet(claim.root)


def test_flipped_bits_of_the_references_are_noticed(tmp_path):
    build, path = opened(tmp_path)
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 31):
        path.write_bytes(flipped(whole, bit))
        with pytest.raises(FormatError, match="is damaged"):
            shard_plan(build, 0)


def test_damage_after_the_file_was_opened_is_one_line_too(tmp_path):
    build, path = opened(tmp_path)
    shard_plan(build, 0)
    with path.open("r+b") as stream:
        stream.write(bytes(path.stat().st_size))
    with pytest.raises(FormatError, match=r"plan\.parquet is damaged"):
        shard_plan(build, 2)


def test_damaged_references_are_made_again(claim, storage):
    name = plan_parquet(claim.root)
    whole = storage.read(name)
    for data in damages(whole)[::4]:
        put(storage, name, data)
        lines: list[str] = []
        assert planned(claim.plan).repair(storage, claim, lines.append) == claim
        assert storage.read(name) == whole
        assert len(lines) == 1
        assert f"{name} is damaged (" in lines[0]
    storage.delete(name)
    planned(claim.plan).repair(storage, claim, print)
    assert storage.read(name) == whole


def test_references_are_not_made_of_a_plan_that_was_stored_already(claim, storage):
    name = plan_parquet(claim.root)
    again = planned(claim.plan)
    put(storage, name, b"")
    again.repair(storage, claim, print)
    put(storage, name, b"")
    with pytest.raises(BuildError, match="run the same command once more"):
        again.repair(storage, claim, print)
    assert storage.read(name) == b""


def test_references_without_a_digest_are_made_again_and_get_one(claim, storage):
    """As where `plan.json` was edited; the build keeps its folder."""
    document = json.loads(claim.pointer)
    del document["references"]
    put(storage, PLAN_JSON, json.dumps(document).encode())
    put(storage, plan_parquet(claim.root), b"damaged")
    before = read_claim(storage)
    assert before.references is None
    with pytest.raises(FormatError, match="is damaged"):
        list(read_references(storage, before, [0]))
    now = planned(claim.plan).repair(storage, before, print)
    assert now == read_claim(storage) != before
    assert (now.root, now.references) == (claim.root, claim.references)
    assert [table.num_rows for table in read_references(storage, now, [2, 0])] == [3, 2]


def test_references_of_an_overtaken_build_are_not_made_again(claim, storage):
    storage.delete(plan_parquet(claim.root))
    storage.delete(PLAN_JSON)
    with pytest.raises(OvertakenError):
        planned(claim.plan).repair(storage, claim, print)
    assert storage.stat(plan_parquet(claim.root)) is None


def test_original_is_named_by_its_file_or_by_its_path_in_an_archive(tmp_path):
    def engine(job, indexes):
        found.update(named(open_build(job.output_url, job.root)))
        yield from in_this_process(job, indexes)

    def named(build):
        keys = [ref.key for index in range(build.plan.num_shards) for ref in shard_plan(build, index).refs]
        return original_names(build, range(build.plan.num_shards), keys)

    found: dict[str, str] = {}
    source = write_files(tmp_path / "in", {"süß 1.png": picture(1), "b/c.jpg": picture(2)})
    with zipfile.ZipFile(source / "more.zip", "w") as archive:
        archive.writestr("more/ö.jpg", picture(3))
    run_build(request(source, tmp_path / "out"), engine, Quiet())
    assert found == {"s=C3=BC=C3=9F=201": "süß 1.png", "b/c": "b/c.jpg", "more/=C3=B6": "more/ö"}
