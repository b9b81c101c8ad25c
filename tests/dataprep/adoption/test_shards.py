"""The samples of all shards, read in this process or in others."""

import pytest

from dataprep.adoption.find import AdoptRequest, find
from dataprep.adoption.shards import ReadJob, read_shards
from dataprep.commands.adopt import AdoptProgress
from dataprep.dataset.adopted import open_linked
from dataprep.errors import SourceError
from tests.support.adoption import image_of, tar_of


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "tars"
    root.mkdir()
    for shard in range(3):
        members = [
            (f"{shard}/{n}.{suffix}", data) for n in range(4) for suffix, data in (("jpg", image_of(n)), ("cls", b"1"))
        ]
        tar_of(root / f"{shard}.tar", members)
    return root


@pytest.mark.parametrize("workers", [0, 2])
def test_shards_are_read_in_their_order(folder, tmp_path, workers):
    job = ReadJob(
        data_url=str(folder),
        found=find(open_linked(str(folder)), AdoptRequest(url=str(folder))),
        labels=None,
        digest=True,
    )
    rows = tmp_path / "rows"
    rows.mkdir()
    results = read_shards(job, rows, AdoptProgress(quiet=True), workers)
    assert [result.index for result in results] == [0, 1, 2]
    for shard, result in enumerate(results):
        table = result.rows()
        assert table.column("key").to_pylist() == [f"{shard}/{n}" for n in range(4)]
        assert set(table.column("shard").to_pylist()) == {shard}
        assert (result.samples, result.labels, result.events) == (4, {1: 4}, [])
        assert result.image_bytes == sum(table.column("image_bytes").to_pylist())
        assert len(set(result.key_hashes.tolist())) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_shard_is_named(folder, tmp_path, workers):
    (folder / "1.tar").write_bytes((folder / "1.tar").read_bytes()[:700])
    job = ReadJob(
        data_url=str(folder),
        found=find(open_linked(str(folder)), AdoptRequest(url=str(folder))),
        labels=None,
        digest=False,
    )
    with pytest.raises(SourceError, match=r"1\.tar"):
        read_shards(job, tmp_path, AdoptProgress(quiet=True), workers)
