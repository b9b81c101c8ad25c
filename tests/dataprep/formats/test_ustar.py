"""Headers as the standard library's tarfile reads them."""

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.tars import BLOCK_BYTES, header, member, members_around

KEYS = st.text("abcXYZ019_-/", min_size=1, max_size=200).filter(lambda key: not key.startswith("/"))


@given(KEYS, st.binary(max_size=1200))
def test_tarfile_reads_a_member(key, data):
    content = member(key.encode(), b".json", data)
    assert len(content) % BLOCK_BYTES == 0
    with tarfile.open(fileobj=io.BytesIO(content + bytes(2 * BLOCK_BYTES))) as tar:
        (found,) = tar
        assert (found.name, found.size, found.mtime, found.mode) == (f"{key}.json", len(data), 0, 0o644)
        assert tar.extractfile(found).read() == data


@pytest.mark.parametrize(
    ("key", "blocks"), [("k" * 96, 1), ("f" * 100 + "/" + "k" * 90, 1), ("k" * 97, 3), ("f" * 156 + "/" + "k" * 90, 3)]
)
def test_a_name_takes_one_block_or_three(key, blocks):
    assert len(header(key.encode(), b".jpg", 5)) == blocks * BLOCK_BYTES


FIELDS = st.dictionaries(st.sampled_from([b".cls", b".json", b".txt"]), st.binary(max_size=1200))


@given(KEYS, st.binary(max_size=1200), FIELDS)
def test_tarfile_reads_a_sample_whose_image_is_put_between(key, image, fields):
    before, after = members_around(key.encode(), b".jpg", len(image), fields)
    with tarfile.open(fileobj=io.BytesIO(before + image + after + bytes(2 * BLOCK_BYTES))) as tar:
        found = [(member.name, tar.extractfile(member).read()) for member in tar]
    expected = {b".jpg": image, **fields}
    assert found == [(key + suffix.decode(), data) for suffix, data in expected.items()]
