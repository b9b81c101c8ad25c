"""Before the manifest the output is what the receipts say: what differs is built again, foreign files are named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dataprep.builder.driver import run_build
from dataprep.builder.image_folder import ImageWriter
from dataprep.builder.job import build_shard
from dataprep.builder.receipts import finished_shards
from dataprep.errors import BuildError, StorageError
from dataprep.storage import open_storage
from tests.support.build_here import Quiet, request, whole
from tests.support.builds import FORMATS, digests
from tests.support.own_data import Notes

HARMS = ("gone", "emptied", "replaced")


@pytest.fixture(scope="module")
def expected(originals, tmp_path_factory):
    """Digests of undisturbed datasets, by format."""
    folder = tmp_path_factory.mktemp("expected")
    for fmt in FORMATS:
        whole(request(originals, folder / fmt, fmt))
    return {fmt: digests(folder / fmt) for fmt in FORMATS}


def harm(url: object, how: str) -> str:
    """Remove, empty or replace one file of a finished shard; return its name below the output."""
    storage = open_storage(str(url))
    infos = [info for info in storage.list() if info.name.endswith((".tar", ".JPEG")) or ".tfrecord" in info.name]
    info = infos[len(infos) // 2]
    data = {"emptied": b"", "replaced": bytes(info.num_bytes)}.get(how)
    storage.delete(info.name)
    if data is not None and storage.is_local:
        Path(storage.url_of(info.name)).write_bytes(data)
    elif data is not None:
        storage.create(info.name, data)
    return info.name


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("how", HARMS)
def test_shards_that_are_lost_after_their_receipt_are_built_again(originals, storage_url, expected, fmt, how):
    built = []

    def engine(job, indexes):
        for index in indexes:
            built.append(index)
            yield build_shard(job, index)
        if len(built) == len(set(built)):
            harm(storage_url, how)

    notes = Notes()
    run_build(request(originals, storage_url, fmt), engine, notes)
    assert digests(storage_url) == expected[fmt]
    assert len(built) == len(set(built)) + 1
    [line] = [line for line in notes.lines if "changed by others" in line]
    assert "1 file of 1 shard; they are built again" in line


def test_an_image_changed_before_the_receipt_of_its_shard(originals, tmp_path, expected, monkeypatch):
    put = ImageWriter._put

    def changed(self, name, data):
        put(self, name, data)
        Path(self._storage.url_of(self._aside + name)).write_bytes(bytes(len(data)))

    asked = request(originals, tmp_path / "out", "imagefolder")
    with monkeypatch.context() as patch:
        patch.setattr(ImageWriter, "_put", changed)
        with pytest.raises(StorageError, match="changed by others while it was new"):
            whole(asked)
    shutil.rmtree(next((tmp_path / "out/_build").glob("*/*/folder")))  # the other images were changed, too
    whole(asked)
    assert digests(tmp_path / "out") == expected["imagefolder"]


@pytest.mark.parametrize("fmt", FORMATS)
def test_files_of_nobody_in_the_dataset_are_named(originals, storage_url, expected, fmt):
    name = "train/stranger.tar" if fmt != "tfrecord" else "stranger.tfrecord"

    def engine(job, indexes):
        yield from (build_shard(job, index) for index in indexes)
        open_storage(storage_url).create(name, b"x")

    asked = request(originals, storage_url, fmt)
    with pytest.raises(BuildError, match=f"{name}; move them away and run the same command again"):
        run_build(asked, engine, Quiet())
    assert open_storage(storage_url).stat("dataset.json") is None
    open_storage(storage_url).delete(name)
    run_build(asked, engine, Quiet())
    assert digests(storage_url) == expected[fmt]


def test_a_build_on_another_disk_keeps_its_shards(originals, tmp_path, expected):
    """A copy has other inodes and times: its shards are read, and none is built again."""

    def ends_early(job, indexes):
        yield from (build_shard(job, index) for index in indexes)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        run_build(request(originals, tmp_path / "out", "webdataset"), ends_early, Quiet())
    shutil.copytree(tmp_path / "out", tmp_path / "moved")
    [root] = [path.relative_to(tmp_path / "moved") for path in (tmp_path / "moved/_build").glob("*/*") if path.is_dir()]
    assert finished_shards(open_storage(str(tmp_path / "moved")), str(root))
    result = run_build(request(originals, tmp_path / "moved", "webdataset"), ends_early, Quiet())
    assert result.shards_built == 0
    assert digests(tmp_path / "moved") == expected["webdataset"]
