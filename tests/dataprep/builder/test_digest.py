"""Digests of files under `_build/`."""

import pytest

from dataprep.builder.plan import FileDigest, digest_of, fault_of
from dataprep.storage.checksums import HashingWriter
from tests.support.damage import flipped

DATA = bytes(range(200)) * 3


@pytest.fixture
def digest():
    written = HashingWriter(None)
    written.write(DATA)
    return digest_of(written)


def test_a_file_is_compared_with_its_digest(storage, digest):
    with pytest.raises(FileNotFoundError):
        fault_of(storage, "x", digest)
    storage.create("x", DATA)
    assert fault_of(storage, "x", digest) is None
    assert FileDigest(**digest.document()) == digest


def test_the_fault_says_what_was_found_and_expected(storage, digest):
    storage.create("short", DATA[:-1])
    assert fault_of(storage, "short", digest) == "599 bytes, expected 600"
    storage.create("flipped", flipped(DATA, 4799))
    assert fault_of(storage, "flipped", digest) == "CRC32C 064952f1, expected 84bf6989"
