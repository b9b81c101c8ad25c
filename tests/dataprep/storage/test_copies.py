"""One object is copied whole or not at all, by the server or through this machine: its CRC32C decides, not its size."""

import dataclasses
import itertools

import pytest

from dataprep.errors import ConflictError, StorageError
from dataprep.storage import open_storage
from dataprep.storage.copies import copy_object, stored_crc32c
from tests.support.replication import flip_byte

_numbers = itertools.count()
DATA, OTHER = b"these bytes", b"other bytes"


@pytest.fixture(scope="module")
def bucket(gcs) -> str:
    gcs.create_bucket("one-copy")
    return "gs://one-copy"


@pytest.fixture(params=["bucket to bucket", "bucket to disk", "disk to bucket"])
def places(request, bucket, tmp_path):
    """A source with one object, what it is known to be, and an empty target."""
    below = f"{bucket}/{next(_numbers)}"
    source_kind, _, target_kind = request.param.split()
    source = open_storage(f"{below}/source" if source_kind == "bucket" else str(tmp_path / "source"))
    target = open_storage(f"{below}/target" if target_kind == "bucket" else str(tmp_path / "target"))
    source.create("train/shard", DATA)
    info = source.stat("train/shard")
    return source, target, dataclasses.replace(info, crc32c=stored_crc32c(source, info))


def test_an_object_with_the_expected_digest_is_copied(places):
    source, target, info = places
    copy_object(source, target, info, lambda num_bytes: None)
    assert target.read("train/shard") == DATA
    copy_object(source, target, info, lambda num_bytes: None)  # the same bytes exist there already


def test_an_object_of_the_same_size_and_another_crc32c_is_not_kept(places):
    source, target, info = places
    flip_byte(source.url, "train/shard", 3)
    with pytest.raises(StorageError, match=r"11 bytes with CRC32C .* 11 with .* were expected"):
        copy_object(source, target, info, lambda num_bytes: None)
    assert target.stat("train/shard") is None


def test_another_size_is_named_without_a_crc32c_that_is_not_known(places):
    source, target, info = places
    target.create("train/shard", b"")
    with pytest.raises(
        ConflictError, match=r"exists there already: 0 bytes( with CRC32C 00000000)?, expected 11 bytes with"
    ):
        copy_object(source, target, info, lambda num_bytes: None)


def test_another_object_of_the_same_size_is_left_as_it_is(places):
    source, target, info = places
    target.create("train/shard", OTHER)
    with pytest.raises(ConflictError, match="choose another place, or remove it"):
        copy_object(source, target, info, lambda num_bytes: None)
    assert target.read("train/shard") == OTHER
