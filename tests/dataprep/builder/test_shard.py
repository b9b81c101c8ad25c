"""Shards: originals come in order and whole, are written and published once, and described by their receipts."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pytest

import dataprep.builder.shard
from dataprep.builder.driver import run_build
from dataprep.builder.images import ImagePolicy
from dataprep.builder.output import claim_place, open_build
from dataprep.builder.receipts import read_receipt
from dataprep.builder.recipe import begin_shard, build_shard
from dataprep.builder.references import shard_plan
from dataprep.builder.shard import WritebackFile, annotation_files, image_names, place_images, read_refs
from dataprep.dataset.features import Feature
from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.records import MISSING, Enumeration, SampleRef
from dataprep.errors import FormatError, SourceError, StorageError
from dataprep.formats.imagefolder import annotations_of, metadata_line
from dataprep.sources.base import pinned
from dataprep.storage import open_storage
from dataprep.storage.checksums import crc32c_of, crc32c_text
from dataprep.storage.gcs import StagedGCS
from dataprep.storage.local import LocalStorage
from tests.support.build_here import Quiet, in_this_process, request, whole
from tests.support.builds import digests
from tests.support.crashes import receipts_of
from tests.support.gcs_emulator import GCSEmulator
from tests.support.own_data import annotated, annotated_rows, build_own, stored_values
from tests.support.plans import planned, small_plan
from tests.support.waiting import LONGEST_S, wait_for


def spools(job):
    """Files that are being written on disk."""
    return list(Path(job.output_url, job.root, "tmp").iterdir())


@pytest.fixture
def request_of_three(originals, tmp_path):
    """Three shards on disk."""
    return request(originals, tmp_path / "out", splits=("train",))


def hold_shards(monkeypatch, kind, held):
    """Let a kind of storage publish some shards only once their events are set; `held` has these by the index."""
    publish = kind.publish

    def publishing(storage, spool, name, crc32c):
        for index, go_on in held.items():
            assert f"{index:05d}-of" not in name or go_on.wait(LONGEST_S)
        publish(storage, spool, name, crc32c)

    monkeypatch.setattr(kind, "publish", publishing)


def note_checks(monkeypatch, checked):
    """Add the key of every image that is checked from now on to a list."""
    check_image = dataprep.builder.shard.check_image
    monkeypatch.setattr(
        dataprep.builder.shard, "check_image", lambda key, *rest: checked.append(key) or check_image(key, *rest)
    )


@pytest.mark.parametrize("ahead_bytes", [1, 64 * 2**20])
def test_the_next_shard_is_checked_but_not_written_while_the_last_is_published(
    request_of_three, monkeypatch, tmp_path, ahead_bytes
):
    monkeypatch.setattr(dataprep.builder.shard, "CHECKED_AHEAD_BYTES", ahead_bytes)
    checked, go_on = [], threading.Event()

    def engine(job, indexes):
        note_checks(monkeypatch, checked)
        hold_shards(monkeypatch, LocalStorage, {0: go_on})
        first = begin_shard(job, 0)
        keys = [ref.key for ref in shard_plan(open_build(job.output_url, job.root), 1).refs]
        with ThreadPoolExecutor(1) as thread:
            second = thread.submit(begin_shard, job, 1)
            wanted = checked + (keys if ahead_bytes > 1 else keys[:1])
            wait_for(lambda: len(checked) >= len(wanted))
            time.sleep(0.1)  # to find more than is wanted
            assert checked == wanted
            assert not first.done()
            assert [path.name[:26] for path in spools(job)] == ["imagenet-train-00000-of-00"]
            assert receipts_of(job.output_url) == set()
            go_on.set()
            yield first.result()
            yield second.result().result()
        yield build_shard(job, 2)

    manifest = run_build(request_of_three, engine, Quiet()).manifest
    assert sum(shard["samples"] for shard in manifest.splits[0].shards) == manifest.splits[0].samples


@pytest.fixture
def request_in_a_bucket(originals, bucket_url):
    """Three shards in a bucket."""
    return request(originals, bucket_url, splits=("train",))


def test_in_a_bucket_two_shards_are_published_while_the_next_is_written(request_in_a_bucket, monkeypatch):
    """Nothing of the third is in the bucket before the receipt of one of them."""
    written, go_on, write = threading.Event(), threading.Event(), dataprep.builder.shard._write

    def writing(build, shard, samples, rows):
        found = write(build, shard, samples, rows)
        if shard.index == 2:
            written.set()
        return found

    def engine(job, indexes):
        monkeypatch.setattr(dataprep.builder.shard, "_write", writing)
        hold_shards(monkeypatch, StagedGCS, {0: go_on, 1: go_on})
        first, second = begin_shard(job, 0), begin_shard(job, 1)
        with ThreadPoolExecutor(1) as thread:
            third = thread.submit(begin_shard, job, 2)
            assert written.wait(LONGEST_S)
            time.sleep(0.1)  # to find what must not happen
            assert not (first.done() or second.done() or third.done())
            storage = open_storage(job.output_url)
            assert [info.name for info in storage.list() if ".tar" in info.name or "receipts" in info.name] == []
            go_on.set()
            yield first.result()
            yield second.result()
            yield third.result().result()

    assert run_build(request_in_a_bucket, engine, Quiet()).shards_built == 3


def test_in_a_bucket_no_more_is_written_ahead_than_allowed(request_in_a_bucket, monkeypatch):
    """The second shard is published beside the first; both together leave no room for images of the third."""
    checked, held = [], {0: threading.Event(), 1: threading.Event()}

    def engine(job, indexes):
        hold_shards(monkeypatch, StagedGCS, held)
        first, second = begin_shard(job, 0), begin_shard(job, 1)
        monkeypatch.setattr(dataprep.builder.shard, "CHECKED_AHEAD_BYTES", 1)
        note_checks(monkeypatch, checked)
        with ThreadPoolExecutor(1) as thread:
            third = thread.submit(begin_shard, job, 2)
            wait_for(lambda: len(checked) >= 1)
            time.sleep(0.5)  # to find more than is allowed
            assert len(checked) == 1
            held[1].set()
            yield second.result()
            wait_for(lambda: len(checked) >= 2)
            time.sleep(0.5)
            assert len(checked) == 2
            held[0].set()
            yield first.result()
            yield third.result().result()

    assert run_build(request_in_a_bucket, engine, Quiet()).shards_built == 3


def test_a_shard_that_cannot_be_published_does_not_stop_the_next(request_of_three, monkeypatch, tmp_path):
    publish, failed = LocalStorage.publish, []

    def failing_once(storage, spool, name, crc32c):
        if "00000-of" in name and not failed:
            failed.append(name)
            raise StorageError("disk is tired")
        publish(storage, spool, name, crc32c)

    def engine(job, indexes):
        monkeypatch.setattr(LocalStorage, "publish", failing_once)
        first, second = begin_shard(job, 0), begin_shard(job, 1)
        with pytest.raises(StorageError, match="disk is tired"):
            first.result()
        yield second.result()
        assert receipts_of(job.output_url) == {1}
        assert spools(job) == []
        yield from (build_shard(job, index) for index in (0, 2))

    assert run_build(request_of_three, engine, Quiet()).manifest.splits[0].samples > 0


def test_a_shard_is_built_once_and_described_by_its_receipt(originals, tmp_path):
    """Between the first shard and the last: the receipts, and what a second attempt at a shard does."""
    seen = {}

    def engine(job, indexes):
        storage = open_storage(job.output_url)
        for index in indexes:
            receipt = build_shard(job, index)
            assert receipts_of(job.output_url) == set(range(index + 1))
            stored, rows = read_receipt(storage, index, job.root)
            assert stored == receipt
            kept = [ref.key for ref in shard_plan(open_build(job.output_url, job.root), index).refs]
            rejected = {event.key for event in receipt.events if event.kind == "rejected"}
            assert rows.column("key").to_pylist() == [key for key in kept if key not in rejected]
            before = digests(job.output_url)
            assert build_shard(job, index) == receipt
            assert digests(job.output_url) == before
            (tmp_path / "out" / job.root / "receipts" / f"{index:05d}.parquet").unlink()
            assert build_shard(job, index) == receipt  # as after a crash between the shard and its receipt
            assert digests(job.output_url) == before
            seen[index] = receipt
            yield receipt

    result = run_build(request(originals, tmp_path / "out", splits=("train", "val")), engine, Quiet())
    assert len(seen) == 6
    shards = [shard for split in result.manifest.splits for shard in split.shards]
    assert [shard["sha256"] for shard in shards] == [seen[index].sha256 for index in range(6)]
    assert not (tmp_path / "out" / "_build").exists()


FEATURES = {"caption": Feature("text")}


def test_only_an_image_folder_with_features_has_files():
    assert annotation_files("imagefolder", FEATURES, ["train", "val"]) == ["train/metadata.jsonl", "val/metadata.jsonl"]
    assert annotation_files("imagefolder", {}, ["train"]) == annotation_files("webdataset", FEATURES, ["train"]) == []


def test_every_image_has_its_line(tmp_path, bucket_url):
    source = annotated(tmp_path / "source")
    expected = {}
    for row in annotated_rows():
        folder, _, name = row["file_name"].rpartition("/")
        expected[f"{folder or 'images'}/{name}"] = stored_values(row)
    written = []
    for output in (tmp_path / "out", f"{bucket_url}/out"):
        build_own(source, output, "imagefolder")
        storage = open_storage(str(output))
        lines = storage.read("train/metadata.jsonl").splitlines()
        documents = {document.pop("file_name"): document for document in map(json.loads, lines)}
        assert documents == expected
        assert all(storage.stat(f"train/{file}") for file in documents)
        (entry,) = read_manifest(storage).files
        assert (entry["file"], entry["bytes"]) == ("train/metadata.jsonl", sum(len(line) + 1 for line in lines))
        written.append(lines)
    assert written[0] == written[1]


@pytest.mark.parametrize("line", [b"", b"{}\n", b"[]\n", b"x\n", b'{"caption":"a","file_name":7}\n', b"[" * 100_000])
def test_other_lines_are_refused(line):
    with pytest.raises(FormatError):
        annotations_of(line, FEATURES)


def test_lines_come_back():
    for class_name in ("cats", ""):
        line = metadata_line("cats/1.jpg", b'{"caption":"a"}', class_name)
        assert annotations_of(line, FEATURES) == ("cats/1.jpg", b'{"caption":"a"}')
    with pytest.raises(FormatError, match="as a build writes them"):
        annotations_of(metadata_line("cats/1.jpg", b'{"caption":"a"}', "dogs"), FEATURES)
    with pytest.raises(FormatError, match="as a build writes them"):
        annotations_of(line.replace(b":", b": "), FEATURES)


def test_names_are_class_and_key():
    plan = small_plan(fmt="imagefolder")
    rows = pa.table({"key": ["a", "b/c"], "label": [1, 0]})
    assert [*image_names(plan, plan.splits[0], rows)] == ["val/n01443537/a.JPEG", "val/n01440764/c.JPEG"]


def test_formats_with_a_file_per_shard_have_no_images_to_place(storage_url):
    claim = claim_place(open_storage(storage_url), planned(small_plan()))
    before = digests(storage_url)
    place_images(open_build(storage_url, claim.root))
    assert digests(storage_url) == before


def test_folder_on_disk_is_in_place_only_when_all_shards_are_done(originals, tmp_path):
    def engine(job, indexes):
        yield from (build_shard(job, index) for index in indexes[:2])
        assert not (tmp_path / "out/val").exists()
        assert list((tmp_path / "out" / job.root / "folder/val").rglob("*.JPEG"))
        yield build_shard(job, indexes[2])

    run_build(request(originals, tmp_path / "out", "imagefolder"), engine, Quiet())
    assert list((tmp_path / "out/val").rglob("*.JPEG"))
    assert not (tmp_path / "out/_build").exists()


def test_late_images_of_an_overwritten_build_in_a_bucket_are_replaced_or_removed(originals, bucket_url, tmp_path):
    """As a request of the overwritten build does that was under way all the while: before this one puts the image, and
    under names that this one rejects."""
    whole(request(originals, bucket_url, "imagefolder", splits=("train",), images=ImagePolicy(check="none")))
    storage = open_storage(bucket_url)
    old = {info.name: storage.read(info.name) for info in storage.list("train/")}
    whole(request(originals, tmp_path / "alone", "imagefolder", splits=("train",)))
    expected = digests(tmp_path / "alone")
    rejected = [name for name in old if name not in expected]
    repaired = [name for name in old if sha256(old[name]).hexdigest() != expected.get(name) and name in expected]
    assert rejected
    assert repaired

    def engine(job, indexes):
        for name in (*rejected, *repaired):
            assert storage.create(name, old[name])
        yield from in_this_process(job, indexes)

    run_build(request(originals, bucket_url, "imagefolder", splits=("train",), overwrite=True), engine, Quiet())
    assert digests(bucket_url) == expected


@pytest.mark.parametrize("sync_bytes", [1, 1000, 10**9])
def test_written_bytes_are_stored_and_digested(tmp_path, monkeypatch, sync_bytes):
    monkeypatch.setattr(dataprep.builder.shard, "SYNC_BYTES", sync_bytes)
    path = tmp_path / "spool"
    path.touch()
    pieces = [os.urandom(size) for size in (0, 1, 300_000, 7, 512, 2_000_000)]
    lengths = []
    with WritebackFile(path, lengths.append) as file:
        for piece in pieces:
            file.write(piece)
    data = b"".join(pieces)
    assert lengths == sorted(lengths)
    assert lengths[-1] == len(data)
    assert path.read_bytes() == data
    assert file.digests.num_bytes == len(data)
    assert file.digests.sha256 == hashlib.sha256(data).hexdigest()
    assert file.digests.crc32c == crc32c_text(crc32c_of(data))


def test_crc32c_is_formatted_as_cloud_storage_does():
    assert crc32c_text(crc32c_of(b"123456789")) == "4waSgw=="  # 0xE3069283, the check value of CRC-32C


def test_a_disk_that_refuses_is_an_error(tmp_path):
    """A limit on file sizes stands for the full disk: in a process of its own, because it would hold for all."""
    code = (
        "import pathlib, resource, signal, sys\n"
        "from dataprep.builder.shard import WritebackFile\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))\n"
        "path = pathlib.Path(sys.argv[1]); path.touch()\n"
        "try:\n"
        "    with WritebackFile(path, lambda num_bytes: None) as file:\n"
        "        [file.write(bytes(10**5)) for _ in range(20)]\n"
        "except OSError as error:\n"
        "    print(error.errno)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, tmp_path / "f"], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "27"


SIZES = [0, 1, 70_000, 5, 300_000, 2, 2, 90_000] * 20


@pytest.fixture
def source(storage):
    """Objects of several sizes, and references to a range of each."""
    data = bytes(range(256)) * 2000
    storage.create("originals.tar", data)
    refs = tuple(SampleRef(str(i), "originals.tar", i, size) for i, size in enumerate(SIZES))
    return storage, refs, data


def test_originals_are_read_whole_and_in_order(source, monkeypatch):
    storage, refs, data = source
    monkeypatch.setattr(dataprep.builder.shard, "READ_AHEAD_BYTES", 200_000)  # less than the largest: still read
    found = list(read_refs(storage, refs))
    assert [ref for ref, _ in found] == list(refs)
    assert all(image == data[ref.offset : ref.offset + ref.num_bytes] for ref, image in found)


def test_images_that_follow_each_other_in_a_file_are_read_from_one_descriptor(tmp_path, monkeypatch):
    """Images that are missing, and of other files, come in their places."""
    storage, opened = open_storage(str(tmp_path)), []
    for name in ("a.tar", "b.tar"):
        storage.create(name, name.encode() * 9)
    refs = [SampleRef(str(i), "a.tar" if i < 5 or i == 9 else "b.tar", 5 * (i % 3), 5) for i in range(11)]
    refs[2] = refs[2]._replace(offset=MISSING)
    reading = storage.reading
    monkeypatch.setattr(storage, "reading", lambda name, version: opened.append(name) or reading(name, version))
    found = list(read_refs(storage, refs))
    assert [ref for ref, _ in found] == refs
    assert [image for _, image in found] == [None if ref.offset == MISSING else ref.source.encode() for ref in refs]
    assert opened == ["a.tar", "a.tar", "b.tar", "a.tar", "b.tar"]


def test_no_more_is_read_ahead_than_allowed(source, monkeypatch):
    storage, refs, _ = source
    if storage.is_local:
        monkeypatch.setattr(type(storage), "reads_in_flight", 8)
    monkeypatch.setattr(dataprep.builder.shard, "READ_AHEAD_BYTES", 400_000)
    held, most, lock = [0], [0], threading.Lock()
    read = dataprep.builder.shard._read

    def counting(storage, ref):
        with lock:
            held[0] += ref.num_bytes
            most[0] = max(most[0], held[0])
        return read(storage, ref)

    monkeypatch.setattr(dataprep.builder.shard, "_read", counting)
    for ref, _ in read_refs(storage, refs):
        with lock:
            held[0] -= ref.num_bytes
    assert 300_000 <= most[0] <= 400_000 + max(SIZES)


def test_a_bucket_has_128_reads_in_flight(bucket_url, monkeypatch):
    with GCSEmulator() as own:
        own.create_bucket("dataprep-tests")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", own.url)
        storage = open_storage(bucket_url)
        data = os.urandom(300)
        storage.create("originals.tar", data)
        own.set_latency(200)
        own.set_together(128)
        refs = tuple(SampleRef(str(at), "originals.tar", at, 1) for at in range(len(data)))
        assert b"".join(image for _, image in read_refs(storage, refs)) == data
        assert own.stats()["most_in_flight"] == 128


def test_only_the_listed_version_of_an_original_is_read(storage, gcs):
    """A longer one would be cut off, another archive has other images at the same places; no request more than before
    finds it."""
    storage.create("a.jpg", bytes(5))
    listed = storage.stat("a.jpg")
    refs = (SampleRef("a", "a.jpg", 0, 5, version=listed.version),)
    before = gcs.stats()["requests"]
    assert list(read_refs(storage, refs)) == [(refs[0], bytes(5))]
    assert gcs.stats()["requests"] - before == (0 if storage.is_local else 1)
    storage.delete("a.jpg")
    storage.create("a.jpg", bytes(9))
    with pytest.raises(SourceError, match=r"a\.jpg: written again, replaced or touched since it was listed"):
        list(read_refs(storage, refs))


def test_a_file_that_is_written_while_it_is_read_is_refused(tmp_path, monkeypatch):
    (tmp_path / "a.jpg").write_bytes(bytes(5))
    storage, pread = open_storage(str(tmp_path)), os.pread
    refs = (SampleRef("a", "a.jpg", 0, 5, version=storage.stat("a.jpg").version),)

    def written_meanwhile(*call):
        data = pread(*call)
        (tmp_path / "a.jpg").write_bytes(bytes(5))
        os.utime(tmp_path / "a.jpg", ns=(0, 0))
        return data

    monkeypatch.setattr(os, "pread", written_meanwhile)
    with pytest.raises(SourceError, match="written again"):
        list(read_refs(storage, refs))


def test_files_that_grow_while_they_are_listed_are_refused(tmp_path):
    (tmp_path / "a.jpg").write_bytes(bytes(5))
    found = Enumeration([SampleRef("a", "a.jpg", 0, 4)], [])
    with pytest.raises(SourceError, match=r"a\.jpg has 5 bytes, it had 4 a moment ago"):
        pinned(open_storage(str(tmp_path)), found)


def test_a_source_that_is_gone_or_ends_early_is_named(source):
    storage, _, data = source
    with pytest.raises(SourceError, match=r"gone\.zip is gone; it held k when the build was planned"):
        list(read_refs(storage, (SampleRef("k", "gone.zip", 0, 1),)))
    with pytest.raises(Exception, match=r"originals\.tar"):
        list(read_refs(storage, (SampleRef("k", "originals.tar", len(data) - 1, 2),)))
