"""Before the manifest the output is what the receipts say: what differs is built again, foreign files are named."""

import os
import shutil
import time
from pathlib import Path

import pytest

from dataprep.builder.driver import run_build
from dataprep.builder.receipts import finished_shards
from dataprep.builder.recipe import build_shard
from dataprep.errors import BuildError, StorageError
from dataprep.storage import open_storage
from dataprep.storage.local import LocalStorage
from tests.support.build_here import Quiet, in_formats, in_this_process, request, standing, whole
from tests.support.builds import FORMATS, digests
from tests.support.own_data import Notes

HARMS = (
    ("webdataset", "gone", "bucket"),
    ("tfrecord", "replaced", "disk"),
    ("imagefolder", "gone", "disk"),
    ("imagefolder", "emptied", "disk"),
    ("imagefolder", "replaced", "bucket"),
)


@pytest.fixture(scope="module")
def expected(originals, tmp_path_factory):
    """Digests of undisturbed datasets, by format."""
    folder = tmp_path_factory.mktemp("expected")
    for fmt in FORMATS:
        standing(originals, folder / fmt, fmt)
    return {fmt: digests(folder / fmt) for fmt in FORMATS}


def harm(url: object, how: str) -> str:
    """Remove, empty or replace one file of a finished shard; return its name below the output."""
    storage = open_storage(str(url))
    infos = [info for info in storage.list() if is_data(info.name)]
    info = infos[len(infos) // 2]
    data = {"emptied": b"", "replaced": bytes(info.num_bytes)}.get(how)
    storage.delete(info.name)
    if data is not None and storage.is_local:
        Path(storage.url_of(info.name)).write_bytes(data)
    elif data is not None:
        storage.create(info.name, data)
    return info.name


@pytest.mark.parametrize(("fmt", "how", "storage_url"), HARMS, indirect=["storage_url"])
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


def is_data(name: str) -> bool:
    return name.endswith((".tar", ".JPEG")) or ".tfrecord-" in name


def overwrite(path: Path) -> None:
    """Write other bytes into a file, and set its time back."""
    before = path.stat()
    path.write_bytes(bytes(before.st_size))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_file_changed_before_the_receipt_of_its_shard(originals, tmp_path, expected, monkeypatch, fmt):
    place = LocalStorage._place

    def changed(self, spool, name, crc32c):
        placed = place(self, spool, name, crc32c)
        if is_data(name):
            overwrite(self.root / name)
        return placed

    asked = request(originals, tmp_path / "out", fmt)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "_place", changed)
        with pytest.raises(StorageError, match="changed by others while it was new; run the same command again"):
            whole(asked)
    whole(asked)
    assert digests(tmp_path / "out") == expected[fmt]


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_file_changed_while_its_receipt_gets_its_name(originals, tmp_path, expected, monkeypatch, fmt):
    place, changed = LocalStorage._place, []

    def place_later(self, spool, name, crc32c):
        if "/receipts/" in name and not changed:
            time.sleep(0.02)  # file systems may have times of a hundredth of a second
            changed.append(next(path for path in sorted(self.root.rglob("*")) if is_data(path.name)))
            overwrite(changed[0])
        return place(self, spool, name, crc32c)

    monkeypatch.setattr(LocalStorage, "_place", place_later)
    whole(request(originals, tmp_path / "out", fmt))
    assert changed
    assert digests(tmp_path / "out") == expected[fmt]


def test_an_image_changed_in_place_after_it_was_moved_alone(originals, tmp_path, expected):
    """Where its folder exists already, an image is moved for itself; no second name of its file is left."""

    def engine(job, indexes):
        yield from in_this_process(job, indexes)
        for folder in list(Path(job.output_url, job.root, "folder").glob("val/*")):
            Path(job.output_url, "val", folder.name).mkdir(parents=True)
            Path(job.output_url, "val", folder.name, "stranger.jpg").touch()

    asked = request(originals, tmp_path / "out", "imagefolder")
    with pytest.raises(BuildError, match="move them away"):
        run_build(asked, engine, Quiet())
    for path in (tmp_path / "out").glob("val/*/stranger.jpg"):
        path.unlink()
    overwrite(sorted((tmp_path / "out").glob("val/*/*.JPEG"))[0])
    whole(asked)
    assert digests(tmp_path / "out") == expected["imagefolder"]


@in_formats("webdataset")
def test_files_of_nobody_in_the_dataset_are_named(originals, storage_url, expected, fmt):
    name = "train/stranger.tar" if fmt != "tfrecord" else "stranger.tfrecord"

    def engine(job, indexes):
        yield from in_this_process(job, indexes)
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
        yield from in_this_process(job, indexes)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        run_build(request(originals, tmp_path / "out", "webdataset"), ends_early, Quiet())
    shutil.copytree(tmp_path / "out", tmp_path / "moved")
    [root] = [path.relative_to(tmp_path / "moved") for path in (tmp_path / "moved/_build").glob("*/*") if path.is_dir()]
    assert finished_shards(open_storage(str(tmp_path / "moved")), str(root))
    result = run_build(request(originals, tmp_path / "moved", "webdataset"), ends_early, Quiet())
    assert result.shards_built == 0
    assert digests(tmp_path / "moved") == expected["webdataset"]
