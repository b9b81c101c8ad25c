"""What every format promises, whichever it is: a new one that is in the table is held to it as well."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset.records import NO_LABEL, Placement, Sample
from dataprep.errors import FormatError
from dataprep.formats import FORMATS
from dataprep.formats.base import ShardFormat, StoredSample
from tests.support.samples import CLASSES, examples, read_samples, shards, write_shard

PACKED = [pytest.param(each, id=name) for name, each in FORMATS.items() if not each.one_file_per_image]
labelled_shards = shards(has_classes=True).map(lambda shard: (shard, CLASSES))
plain_shards = shards(has_classes=False).map(lambda shard: (shard, ()))


def end_of(shard_format):
    """What ends a shard of any samples."""
    return write_shard(shard_format, [], has_classes=False)[0]


@pytest.mark.parametrize("shard_format", PACKED)
@examples
@given(st.one_of(labelled_shards, plain_shards))
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
@given(st.one_of(labelled_shards, plain_shards))
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


def test_an_image_folder_stores_each_image_once_and_shows_repeats_by_links():
    folder = FORMATS["imagefolder"]
    assert folder.stored_files(folder.shard_file("coco-dup5", "train", 3, 8)) == ()
    assert [folder.passes_written(stored) for stored in (1, 5)] == [1, 1]
    assert [folder.image_root("train", stored) for stored in (1, 5)] == ["train", "images"]


class Lines(ShardFormat):
    """The smallest format that can be: a line of hexadecimal digits for each image."""

    name = "lines"

    def shard_file(self, dataset, split, index, total):
        return f"{split}/{dataset}-{index}.txt"

    def open_writer(self, stream, *, has_classes):
        return LineWriter(stream)

    def read_shard(self, stream, *, classes):
        offset = 0
        for number, line in enumerate(stream):
            try:
                image = bytes.fromhex(line.decode())
            except ValueError as error:
                raise FormatError(f"offset {offset}: {error}") from error
            place = Placement(offset, len(line), offset, len(line) - 1)
            yield StoredSample(Sample(str(number), image, NO_LABEL, "", 0, 0, 1), place)
            offset += len(line)

    def metadata_files(self, info):
        return {}


class LineWriter:
    def __init__(self, stream):
        self._stream = stream

    def write(self, sample):
        start, line = self._stream.tell(), sample.image.hex().encode() + b"\n"
        self._stream.write(line)
        return Placement(start, len(line), start, len(line) - 1)

    def close(self):
        pass


def test_a_new_format_says_four_things_and_the_rest_follows():
    shard = [Sample(str(number), bytes([number]), NO_LABEL, "", 0, 0, 1) for number in range(3)]
    data, places = write_shard(Lines(), shard, has_classes=False)
    assert read_samples(Lines(), data, classes=()) == shard
    assert [data[place.image_offset :][: place.image_bytes] for place in places] == [b"00", b"01", b"02"]
    assert (Lines().stored_files("x"), Lines().image_root("val", 3), Lines().passes_written(3)) == (("x",), "val", 3)
    assert Lines.one_file_per_image is False
    incomplete = type("Incomplete", (ShardFormat,), {"name": "incomplete"})
    with pytest.raises(TypeError, match=r"abstract methods? .*metadata_files.*open_writer.*read_shard.*shard_file"):
        incomplete()
