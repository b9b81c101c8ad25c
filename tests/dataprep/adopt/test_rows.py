"""Keys of adopted samples."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dataprep.adopt.rows import key_from
from dataprep.formats.checked import is_key
from tests.support.adoption import adopt_here, image_of, read_all, tar_of
from tests.support.samples import examples


def test_duplicate_keys_are_prefixed_with_their_shard(tmp_path):
    for number in range(2):
        tar_of(tmp_path / f"{number:05d}.tar", [("A.jpg", image_of(number)), (f"b{number}.jpg", image_of(2 + number))])
    tar_of(tmp_path / "00002.tar", [("a.jpg", image_of(5)), ("c.jpg", image_of(6)), ("a.jpg", image_of(7))])
    adopt_here(tmp_path)
    keys = [key for key, *_ in read_all(tmp_path)[0]]
    assert keys == ["00000/A", "b0", "00001/A", "b1", "00002/a", "c", "00002/a=001"]


@examples
@given(st.text(max_size=300))
def test_every_name_becomes_a_valid_key_or_none(name):
    key = key_from(name.encode("utf-8", "ignore").decode())
    assert not key or is_key(key)
    assert not key or key_from(key) == key
