"""A shard that is sent while it is written is there when it is published, or published in the ordinary way."""

import os

import pytest

from dataprep.errors import ConflictError
from dataprep.storage import open_storage
from dataprep.storage.checksums import crc32c_of, crc32c_text
from dataprep.storage.gcs import UPLOAD_CHUNK_BYTES, GCSStorage

LARGE = 2 * UPLOAD_CHUNK_BYTES + 12_345
SIZES = [0, 1, UPLOAD_CHUNK_BYTES - 1, UPLOAD_CHUNK_BYTES, 2 * UPLOAD_CHUNK_BYTES, LARGE]


def write(storage, name, data, step=1_000_000):
    """Write a spool file as a build does, and tell how much of it there is."""
    spool = storage.spool_path(name)
    with storage.sending(spool, name) as sent, spool.open("r+b", buffering=0) as file:
        for start in range(0, len(data), step):
            file.write(data[start : start + step])
            sent(min(start + step, len(data)))
    return spool, crc32c_text(crc32c_of(data))


@pytest.mark.parametrize("num_bytes", SIZES)
def test_a_shard_sent_while_it_is_written_is_published_whole(bucket_url, num_bytes):
    storage, data = open_storage(bucket_url), os.urandom(num_bytes)
    spool, crc32c = write(storage, "train/a.tar", data)
    storage.publish(spool, "train/a.tar", crc32c)
    assert not spool.exists()
    assert storage.read("train/a.tar") == data


def test_a_large_file_is_sent_once(bucket_url, monkeypatch):
    storage, data = open_storage(bucket_url), os.urandom(LARGE)
    spool, crc32c = write(storage, "a.tar", data)
    monkeypatch.setattr(GCSStorage, "_send", None)
    storage.publish(spool, "a.tar", crc32c)
    assert storage.read("a.tar") == data


def test_nothing_is_visible_before_the_end_nor_after_an_error(bucket_url):
    storage = open_storage(bucket_url)
    spool = storage.spool_path("a.tar")

    def write_and_fail():
        with storage.sending(spool, "a.tar") as sent, spool.open("r+b", buffering=0) as file:
            file.write(bytes(LARGE))
            sent(LARGE)
            raise RuntimeError("an image was bad")

    with pytest.raises(RuntimeError, match="an image was bad"):
        write_and_fail()
    assert list(storage.list()) == []
    again, crc32c = write(storage, "a.tar", b"good" * 10_000_000)
    storage.publish(again, "a.tar", crc32c)
    assert storage.stat("a.tar").num_bytes == 40_000_000


def test_an_existing_equal_object_is_success_and_a_different_one_a_conflict(bucket_url):
    storage, data = open_storage(bucket_url), os.urandom(LARGE)
    storage.create("a.tar", data)
    spool, crc32c = write(storage, "a.tar", data)
    storage.publish(spool, "a.tar", crc32c)
    other, crc32c = write(storage, "a.tar", data[1:])
    with pytest.raises(ConflictError, match=f"{LARGE:,} bytes"):
        storage.publish(other, "a.tar", crc32c)
    assert storage.read("a.tar") == data


def test_an_object_that_arrived_damaged_is_replaced(bucket_url):
    storage, data = open_storage(bucket_url), os.urandom(LARGE)
    spool, _ = write(storage, "a.tar", data)
    storage._following[spool].finish()  # in the bucket now; on the way to it a bit was lost
    good = b"\x01" + data[1:]
    spool.write_bytes(good)
    storage.publish(spool, "a.tar", crc32c_text(crc32c_of(good)))
    assert storage.read("a.tar") == good


def test_shards_are_published_despite_failing_requests(gcs, bucket_url):
    storage, data = open_storage(bucket_url), os.urandom(LARGE)
    gcs.set_faults(0.3, seed=1)
    for number in range(5):
        spool, crc32c = write(storage, f"{number}.tar", data)
        storage.publish(spool, f"{number}.tar", crc32c)
    gcs.set_faults(0)
    assert [info.num_bytes for info in storage.list()] == [LARGE] * 5
