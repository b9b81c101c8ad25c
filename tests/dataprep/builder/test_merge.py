"""Receipts become index, events and manifest; what is missing, changed or foreign is named or built again."""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dataprep.builder.driver import run_build
from dataprep.builder.merge import build_manifest, merge_split, refuse_rejections
from dataprep.builder.output import claim_place, open_build
from dataprep.builder.receipts import finished_shards, write_receipt
from dataprep.builder.recipe import build_shard
from dataprep.dataset.index import IndexRows, PublishingRows, open_index_file
from dataprep.dataset.records import Event, Placement, ShardReceipt
from dataprep.errors import BuildError, FormatError, StorageError
from dataprep.inspection.inspect import inspect_dataset
from dataprep.sources import DATASETS
from dataprep.storage import open_storage
from dataprep.storage.local import LocalStorage
from tests.support.build_here import Quiet, in_formats, in_this_process, request, standing, whole
from tests.support.builds import FORMATS, digests
from tests.support.own_data import Notes, picture, write_files
from tests.support.own_data import request as own_request
from tests.support.plans import planned, refs_of, small_plan

REJECTED = Event("s1-0", "rejected", "truncated", "image file is truncated")


@pytest.fixture
def build(storage):
    """A build of two shards; the image of the second is rejected."""
    return open_build(storage.url, claim_place(storage, planned(small_plan())).root)


def put(build, index: int, keys: list[str], *events: Event, **more) -> None:
    rows = IndexRows(index)
    for number, key in enumerate(keys):
        rows.add(key, b"image", Placement(10 * number, 9, 10 * number + 2, 5), label=number, height=4, width=3)
    fields = {"split": "val", "file": f"val/{index}.tar", "num_bytes": 100, "sha256": "0" * 64, "crc32c": "AAAAAA=="}
    receipt = ShardReceipt(index=index, split_index=index, samples=len(keys), events=events, **(fields | more))
    write_receipt(build.storage, receipt, rows.table(), build.root)


def merge(build, check=lambda index, receipt, rows: (rows.num_rows + len(receipt.events), True), seen=None):
    with PublishingRows(build.storage) as publishing:
        seen = seen or (lambda receipt, rows: None)
        return merge_split(build, build.plan.splits[0], publishing, check=check, seen=seen)


def test_receipts_become_a_split(build):
    told = []
    put(build, 0, [ref.key for ref in refs_of(build.plan, 0)])
    put(build, 1, [], REJECTED)
    split = merge(build, seen=lambda receipt, rows: told.append((receipt.index, rows.num_rows)))
    assert told == [(0, 2), (1, 0)]
    assert (split.samples, split.num_bytes, split.class_counts) == (2, 200, (1, 1))
    assert (split.rejected, split.repaired) == ({"truncated": 1}, {})
    assert open_index_file(build.storage, "index/val.parquet").group_rows == [2, 0]
    manifest = build_manifest(build.plan, DATASETS["imagenet"], [split])
    assert (manifest.name, manifest.plan_hash, manifest.splits) == ("imagenet", build.plan.plan_hash, (split,))
    with pytest.raises(BuildError, match=r"val: 1 of 3 images were rejected, allowed are 0 .*: s1-0 \(truncated\)"):
        refuse_rejections(build, 0.0, [split])
    refuse_rejections(build, 0.34, [split])


def test_missing_receipt_is_named(build):
    put(build, 0, ["s0-0", "s0-1"])
    with pytest.raises(BuildError, match="shard 1 has no receipt; run the same command again"):
        merge(build)


@pytest.mark.parametrize(("more", "counted"), [({}, 1), ({"split": "train"}, 0)])
def test_receipt_of_another_shard_is_refused(build, more, counted):
    put(build, 0, ["s0-0", "s0-1"], **more)
    with pytest.raises(FormatError, match="with their keys; start over with `overwrite`"):
        merge(build, check=lambda index, receipt, rows: (rows.num_rows + counted, True))


def test_receipt_of_other_samples_is_refused(build):
    put(build, 0, ["s0-0", "x"])
    with pytest.raises(FormatError, match="the receipt has 2 samples, expected the plan's 2 for shard 0 of val"):
        merge(build, check=lambda index, receipt, rows: (rows.num_rows, False))


def test_a_build_warns_of_images_that_are_in_two_splits(tmp_path):
    files = {f"train/{number}.jpg": picture(number) for number in range(6)}
    source = write_files(tmp_path / "in", files | {f"val/{number}.jpg": picture(number + 4) for number in range(5)})
    notes = Notes()
    run_build(own_request(source, tmp_path / "out"), in_this_process, notes)
    [line] = [line for line in notes.lines if "also in" in line]
    url = str(tmp_path / "out")
    assert line == (
        f"warning: 2 images of val are also in train (the same bytes); dataprep inspect {url} names the first ones"
    )
    assert [(each.split, each.other, each.count) for each in inspect_dataset(url).shared] == [("val", "train", 2)]


def test_a_build_of_splits_that_share_no_image_says_nothing_of_it(tmp_path):
    source = write_files(tmp_path / "in", {f"{('train', 'val')[n % 2]}/{n}.jpg": picture(n) for n in range(6)})
    notes = Notes()
    run_build(own_request(source, tmp_path / "out"), in_this_process, notes)
    assert not [line for line in notes.lines if "also in" in line]


def test_a_build_names_the_files_of_rejected_images_while_it_knows_them(tmp_path):
    files = {f"train/dog/{number}.jpg": picture(number) for number in range(6)}
    files |= {"train/dog/b.png": b"no picture", "train/dog/c.jpeg": b"", "test/dog/d.JPG": b"<html>"}
    source = write_files(
        tmp_path / "in", files | {f"test/dog/{number}.jpg": picture(9 + number) for number in range(3)}
    )
    notes = Notes()
    run_build(replace(own_request(source, tmp_path / "out"), max_reject_ratio=1.0), in_this_process, notes)
    train, test = sorted((line for line in notes.lines if "rejected: " in line), reverse=True)
    assert test == "test: 1 image was rejected: test/dog/d.JPG (undecodable)"
    assert train.startswith("train: 2 images were rejected: ")
    assert {"train/dog/b.png (undecodable)", "train/dog/c.jpeg (empty)"} == set(
        train.partition("rejected: ")[2].split(", ")
    )


def test_only_the_first_rejected_images_are_named(tmp_path):
    files = {f"{number}.jpg": picture(number) if number < 3 else b"<html>" for number in range(15)}
    notes = Notes()
    asked = own_request(write_files(tmp_path / "in", files), tmp_path / "out")
    run_build(replace(asked, max_reject_ratio=1.0), in_this_process, notes)
    [line] = [line for line in notes.lines if "rejected: " in line]
    assert line.startswith("train: 12 images were rejected: ")
    assert line.count("(undecodable)") == 10
    assert line.endswith(" and 2 more")


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
