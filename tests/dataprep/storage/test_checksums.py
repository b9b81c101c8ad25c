"""CRC32C and SHA-256 of bytes, files and streams, however they are cut into pieces."""

import hashlib
import io
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.storage.checksums import (
    BLOCK_BYTES,
    HashingWriter,
    crc32c_hex,
    crc32c_of,
    crc32c_of_bytes,
    crc32c_of_file,
    crc32c_text,
    digests_of,
)
from tests.support.samples import examples

CHECK_VALUE = 0xE3069283
"""CRC32C of the digits 1 to 9: RFC 3720, and every catalogue of checksums."""


def test_the_published_check_value_is_found():
    assert crc32c_of(b"123456789") == CHECK_VALUE
    assert crc32c_of_bytes(b"123456789") == crc32c_text(CHECK_VALUE) == "4waSgw=="
    assert crc32c_text(0) == "AAAAAA=="


def test_messages_show_hexadecimal_digits_whatever_the_notation():
    assert crc32c_hex(CHECK_VALUE) == crc32c_hex("4waSgw==") == "e3069283"
    assert (crc32c_hex(1), crc32c_hex("AAAAAQ=="), crc32c_hex(None)) == ("00000001", "00000001", "unknown")


@examples
@given(st.lists(st.binary(max_size=300), max_size=6))
def test_pieces_have_the_digests_of_the_whole(pieces: list[bytes]):
    whole = b"".join(pieces)
    value, writer = 0, HashingWriter()
    for piece in pieces:
        value = crc32c_of(piece, value)
        assert writer.write(piece) == len(piece)
    assert crc32c_text(value) == crc32c_of_bytes(whole) == writer.crc32c
    assert (writer.sha256, writer.num_bytes) == (hashlib.sha256(whole).hexdigest(), len(whole))


@pytest.mark.parametrize("num_bytes", [0, 1, BLOCK_BYTES, BLOCK_BYTES + 1])
def test_files_and_streams_are_read_in_blocks_to_their_end(tmp_path: Path, num_bytes: int):
    data = bytes(range(256)) * (num_bytes // 256) + bytes(num_bytes % 256)
    (tmp_path / "x").write_bytes(data)
    expected = crc32c_text(google_crc32c.value(data))
    assert crc32c_of_file(tmp_path / "x") == expected
    digests = digests_of(io.BytesIO(data))
    assert (digests.crc32c, digests.num_bytes) == (expected, num_bytes)
