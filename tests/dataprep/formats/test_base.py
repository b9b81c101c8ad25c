"""What every format promises, whichever it is: a new one that is in the table is held to it as well."""

import io
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset.manifest import FORMAT_NAMES
from dataprep.dataset.records import Sample
from dataprep.errors import FormatError
from dataprep.formats import FORMATS, base
from dataprep.formats.base import MAX_IMAGE_BYTES, CheckedStream, check_sample, is_key
from tests.support.samples import any_shards, examples, keys, samples, write_shard

PACKED = [pytest.param(each, id=name) for name, each in FORMATS.items() if not each.one_file_per_image]


def test_no_library_of_a_format_is_imported():
    code = (
        "import sys, dataprep.formats\n"
        "print([name for name in ('tensorflow', 'tensorflow_datasets', 'webdataset', 'torch', 'numpy', 'PIL') "
        "if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "[]\n"


def test_manifests_may_name_every_format():
    assert tuple(FORMATS) == FORMAT_NAMES


def end_of(shard_format):
    """What ends a shard of any samples."""
    return write_shard(shard_format, [], has_classes=False)[0]


@pytest.mark.parametrize("shard_format", PACKED)
@examples
@given(any_shards)
def test_samples_are_read_back_with_their_offsets(shard_format, case):
    shard, classes = case
    data, placements = write_shard(shard_format, shard, has_classes=bool(classes))
    stored = list(shard_format.read_shard(io.BytesIO(data), classes=classes))
    assert [each.sample for each in stored] == shard
    assert [each.placement for each in stored] == placements
    end = 0
    for sample, place in zip(shard, placements, strict=True):
        assert data[place.image_offset : place.image_offset + place.image_bytes] == sample.image
        assert place.record_offset == end
        end += place.record_bytes
    assert data[end:] == end_of(shard_format)


@pytest.mark.parametrize("shard_format", PACKED)
@examples
@given(any_shards)
def test_each_record_depends_on_its_sample_alone(shard_format, case):
    shard, classes = case
    end = end_of(shard_format)
    alone = [write_shard(shard_format, [sample], has_classes=bool(classes))[0].removesuffix(end) for sample in shard]
    assert write_shard(shard_format, shard, has_classes=bool(classes))[0] == b"".join(alone) + end


@pytest.mark.parametrize("shard_format", PACKED)
def test_a_stream_is_left_open_for_whoever_owns_it(shard_format):
    stream = io.BytesIO()
    writer = shard_format.open_writer(stream, has_classes=False)
    writer.close()
    assert not stream.closed


@pytest.mark.parametrize("shard_format", PACKED)
def test_a_shard_is_one_file_whose_name_tells_it_from_all_others(shard_format):
    names = {
        shard_format.shard_file(dataset, split, index, total)
        for dataset in ("coco-dup5", "imagenet")
        for split in ("train", "val")
        for total in (2, 3)
        for index in range(total)
    }
    assert len(names) == 2 * 2 * (2 + 3)
    assert all(shard_format.stored_files(name) == (name,) for name in names)
    assert all(shard_format.passes_written(stored) == stored for stored in (1, 5))
    assert shard_format.image_root("val", 5) == "val"


def test_an_image_folder_stores_each_image_once_and_shows_repeats_by_links():
    folder = FORMATS["imagefolder"]
    assert folder.stored_files(folder.shard_file("coco-dup5", "train", 3, 8)) == ()
    assert [folder.passes_written(stored) for stored in (1, 5)] == [1, 1]
    assert [folder.image_root("train", stored) for stored in (1, 5)] == ["train", "images"]


LABELLED = Sample("a/b", b"jpeg", 3, "n01440764", 375, 500, 1)
KEY_RULE = (
    'expected at most 200 bytes of [A-Za-z0-9_-] and =XX in folders separated by "/", none of which starts with '
    '"__" (readers skip those)'
)


@examples
@given(keys)
def test_all_keys_of_the_contract_are_accepted(key: str):
    assert is_key(key)


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "a.b", "a b", "ä", "a=2", "a=2g", "a=c3", "__a", "a/__b", "..", "a\n", "a" * 201]
)
def test_keys_that_a_reader_would_change_or_skip_are_refused(key: str):
    assert not is_key(key)


def test_a_hostile_key_costs_linear_time():
    assert not is_key("a" * 100 + "/" * 99 + ".")
    assert not is_key("=AA" * 66 + ".")


@examples
@given(st.booleans().flatmap(lambda has_classes: st.tuples(st.just(has_classes), samples(has_classes=has_classes))))
def test_samples_of_the_contract_have_no_fault(case: tuple[bool, Sample]):
    has_classes, sample = case
    assert base.sample_fault(sample, has_classes=has_classes) is None


@pytest.mark.parametrize(
    ("change", "has_classes", "fault"),
    [
        ({"key": "a//b"}, True, f"key 'a//b', {KEY_RULE}"),
        ({"image": b""}, True, "a/b: image of 0 bytes, expected 1 to 268,435,456"),
        (
            {"height": 65_536},
            True,
            "a/b: height 65536, width 500, orientation 1; expected sides of 0 to 65,535 and an orientation of 1 to 8",
        ),
        (
            {"orientation": 0},
            True,
            "a/b: height 375, width 500, orientation 0; expected sides of 0 to 65,535 and an orientation of 1 to 8",
        ),
        ({"label": -1}, True, "a/b: label -1, class name 'n01440764', expected a label from 0 and its name"),
        ({"class_name": ""}, True, "a/b: label 3, class name '', expected a label from 0 and its name"),
        ({}, False, "a/b: label 3, class name 'n01440764', expected -1 and none, as there are no classes"),
        (
            {"label": -2, "class_name": ""},
            False,
            "a/b: label -2, class name '', expected -1 and none, as there are no classes",
        ),
        ({"class_name": "n" * 1001}, True, "a/b: class name of 1,001 characters, expected at most 1,000"),
    ],
)
def test_a_sample_that_no_shard_can_hold_is_refused(change, has_classes, fault):
    with pytest.raises(FormatError) as caught:
        check_sample(LABELLED._replace(**change), has_classes=has_classes)
    assert str(caught.value) == f"{fault}; correct the source that made this sample"


def test_an_image_beyond_the_limit_is_refused():
    class Endless(bytes):
        def __len__(self) -> int:
            return MAX_IMAGE_BYTES + 1

    with pytest.raises(FormatError, match="image of 268,435,457 bytes, expected 1 to 268,435,456"):
        check_sample(LABELLED._replace(image=Endless()), has_classes=True)


@pytest.mark.parametrize("name", ["n01440764", "tench, Tinca tinca", "Grünfink", ".hidden", "a=b"])
def test_class_names_that_can_be_folders_are_accepted(name: str):
    base.check_class_folder(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\nb", "a\0b", " a", "a ", "\ud800"])
def test_class_names_that_cannot_be_folders_are_refused(name: str):
    with pytest.raises(FormatError) as caught:
        base.check_class_folder(name)
    assert str(caught.value) == (
        f"class name {name!r}, expected one that can name a folder: no slash, no control character, no blanks "
        "around it; rename the class in the source"
    )


class _Dripping(io.BytesIO):
    """A raw stream, which may give fewer bytes than it was asked for."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size or 0, 3))


@examples
@given(st.binary(max_size=40), st.lists(st.integers(0, 12), max_size=6))
def test_a_stream_gives_exactly_what_is_asked_or_names_where_it_ends(data: bytes, sizes: list[int]):
    source, offset = CheckedStream(_Dripping(data)), 0
    for size in sizes:
        if offset + size > len(data):
            with pytest.raises(FormatError) as caught:
                source.take(size)
            assert str(caught.value) == (
                f"offset {len(data)}: the end of the file, expected {offset + size - len(data)} more bytes; the shard "
                "is damaged or was not written by a build: build it again"
            )
            return
        assert source.take(size) == data[offset : offset + size]
        offset += size
        assert source.offset == offset


def test_a_stream_may_end_between_records_but_not_inside_one():
    source = CheckedStream(io.BytesIO(b"abc"))
    assert source.take_unless_at_end(2) == b"ab"
    with pytest.raises(FormatError, match="offset 3: the end of the file, expected 1 more bytes"):
        source.take_unless_at_end(2)
    assert source.take_unless_at_end(2) == b""


def test_a_false_length_allocates_no_memory(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(bytes(1000))
    with path.open("rb") as file:
        tracemalloc.start()
        with pytest.raises(FormatError, match="offset 1,000"):
            CheckedStream(file).take(MAX_IMAGE_BYTES)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < 32 << 20
