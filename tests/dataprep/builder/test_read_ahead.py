"""Originals come in order and whole, read ahead in bounded memory."""

import os
import threading

import pytest

import dataprep.builder.shard
from dataprep.builder.shard import read_refs
from dataprep.dataset.records import MISSING, Enumeration, SampleRef
from dataprep.errors import SourceError
from dataprep.sources.base import pinned
from dataprep.storage import open_storage
from tests.support.gcs_emulator import GCSEmulator

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
