"""Keys of adopted samples."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dataprep.adoption.rows import key_from, shard_prefixes
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


def test_a_key_that_got_its_shard_is_no_other_samples_key(tmp_path):
    for shard, names in {"s": ("s/a", "a", "b", "a"), "t": ("c", "x", "c", "C=001"), "u": ("c=001",)}.items():
        tar_of(tmp_path / f"{shard}.tar", [(f"{name}.jpg", image_of(i)) for i, name in enumerate(names)])
    adoption = adopt_here(tmp_path)
    keys = [key for key, *_ in read_all(tmp_path)[0]]
    assert keys == ["s/a", "s/a=001", "b", "s/a=002", "t/c", "x", "t/c=001", "t/C=001=001", "u/c=001"]
    assert len({key.lower() for key in keys}) == len(keys)
    said = "train: 6 images have a key that another image has, too, ignoring case; their keys begin with their shard's"
    assert adoption.notes == (f"{said} name",)


def test_keys_of_shards_whose_names_begin_alike_are_told_apart(tmp_path):
    shards = {
        "a.tar": ("b/c", "x"),
        "a/b.tar": ("c", "x"),
        "d/e.tar": ("b/c",),
        "d/f.tar": ("C",),
    }
    for number, (shard, names) in enumerate(shards.items()):
        (tmp_path / shard).parent.mkdir(exist_ok=True)
        tar_of(tmp_path / shard, [(f"{name}.jpg", image_of(8 * number + i)) for i, name in enumerate(names)])
    adopt_here(tmp_path)
    keys = [key for key, *_ in read_all(tmp_path)[0]]
    assert keys == ["a=000/b/c", "a=000/x", "a/b=001/c", "a/b=001/x", "d/e/b/c", "d/f/C"]


def test_no_prefix_of_a_shard_lies_below_another():
    assert shard_prefixes(["0.tar", "1.tar", "10.tar"]) == ["0", "1", "10"]
    assert shard_prefixes(["a.tar", "A.tar", "a/b.tar", "a-b.tar", "c.tfrecord"]) == [
        "a=000", "A=001", "a/b=002", "a-b", "c",
    ]  # fmt: skip


@examples
@given(st.text(max_size=300))
def test_every_name_becomes_a_valid_key_or_none(name):
    key = key_from(name.encode("utf-8", "ignore").decode())
    assert not key or is_key(key)
    assert not key or key_from(key) == key
