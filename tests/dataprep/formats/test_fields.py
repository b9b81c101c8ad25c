"""Columns beside the image, from records that tarfile and protobuf wrote."""

import io
import json
import struct
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset.features import Feature
from dataprep.dataset.records import Sample
from dataprep.errors import FormatError, UsageError
from dataprep.formats import FORMATS
from dataprep.formats.fields import check_fields, check_record_fields, read_fields
from tests.support.samples import examples, mutations, write_shard


def tar_record(members):
    """A sample's part of a tar: headers and data, without the end marker."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        end = archive.offset
    return out.getvalue()[:end]


def varint(value):
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def message(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def example_record(features, *, packed=True):
    """A framed tf.train.Example; its checksums are nobody's business here."""
    entries = b""
    for name, values in features.items():
        if isinstance(values[0], bytes):
            kind, content = 1, b"".join(message(1, value) for value in values)
        elif isinstance(values[0], float):
            each = [struct.pack("<f", value) for value in values]
            kind, content = 2, message(1, b"".join(each)) if packed else b"".join(b"\x0d" + value for value in each)
        else:
            each = [varint(value % 2**64) for value in values]
            kind, content = 3, message(1, b"".join(each)) if packed else b"".join(b"\x08" + value for value in each)
        entries += message(1, message(1, name.encode()) + message(2, message(kind, content)))
    data = message(1, entries)
    return struct.pack("<QI", len(data), 0) + data + bytes(4)


SAMPLE = {
    "n01/key.jpg": b"\xff\xd8\xff",
    "n01/key.cls": b"7",
    "n01/key.txt": "ein Grünfink".encode(),
    "n01/key.json": json.dumps({"height": 3, "url": "https://example.com", "tags": ["a", 1]}).encode(),
    "n01/key.seg.png": b"\x89PNG",
}


def test_fields_are_members_of_the_tar_or_keys_of_its_json():
    record = memoryview(tar_record(SAMPLE))
    names = ("txt", "cls", "seg.png", "url", "tags", "height")
    assert read_fields("webdataset", record, names) == {
        "txt": "ein Grünfink",
        "cls": "7",
        "seg.png": b"\x89PNG",
        "url": "https://example.com",
        "tags": ["a", 1],
        "height": 3,
    }
    assert read_fields("webdataset", record, ("caption",)) == {"caption": "ein Grünfink"}
    assert json.loads(read_fields("webdataset", record, ("json",))["json"])["height"] == 3


def test_a_caption_may_be_in_the_json():
    record = tar_record({"x.jpg": b"j", "x.json": b'{"caption": "one"}'})
    assert read_fields("webdataset", record, ("caption",)) == {"caption": "one"}
    assert read_fields("webdataset", record, ("txt",)) == {"txt": "one"}


def test_a_feature_is_read_from_its_own_place_alone():
    features = {"caption": Feature("text", member="txt"), "age": Feature("int64", member="n"), "raw": Feature("bytes")}
    text = b'{"caption":"no","raw":"aGk="}'
    record = tar_record({"k.jpg": b"j", "k.json": text, "k.n": b"7", "k.txt": b"yes", "k": b"?"})
    found = read_fields("webdataset", record, ("caption", "raw", "age"), features)
    assert found == {"caption": "yes", "raw": b"hi", "age": 7}
    assert read_fields("webdataset", record, ("txt",), features) == {"txt": "yes"}
    with pytest.raises(FormatError, match=r"no member \.txt, which has the field 'caption'"):
        read_fields("webdataset", tar_record({"k.jpg": b"j", "k.json": text}), ("caption",), features)
    with pytest.raises(FormatError, match="'age' is b'seven', expected int64"):
        read_fields("webdataset", tar_record({"k.jpg": b"j", "k.n": b"seven"}), ("age",), features)


def test_fields_of_members_with_long_names_are_read():
    record = tar_record({f"{'l' * 150}.{suffix}": b"x" for suffix in ("jpg", "txt")})
    assert read_fields("webdataset", record, ("txt",)) == {"txt": "x"}


@pytest.mark.parametrize("packed", [True, False])
def test_fields_of_every_feature_type_are_read(packed):
    features = {
        "image": [b"\xff\xd8"],
        "caption": ["Ü".encode()],
        "words": [b"a", b"b"],
        "label": [-1],
        "boxes": [0.5, 0.25],
        "ids": [2**62, -(2**63), 0],
        "score": [1.5],
    }
    record = example_record(features, packed=packed)
    names = ("caption", "words", "label", "boxes", "ids", "score", "image")
    assert read_fields("tfrecord", record, names) == {
        "caption": "Ü",
        "words": ["a", "b"],
        "label": -1,
        "boxes": [0.5, 0.25],
        "ids": [2**62, -(2**63), 0],
        "score": 1.5,
        "image": b"\xff\xd8",
    }
    assert read_fields("tfrecord", memoryview(record), ("txt",)) == {"txt": "Ü"}


def test_a_missing_field_is_refused_with_the_existing_ones():
    existing = r"\.jpg, \.cls, \.txt, \.json, \.seg"
    with pytest.raises(FormatError, match=f"field 'depth' does not exist; choose one of these: {existing}"):
        read_fields("webdataset", tar_record(SAMPLE), ("depth",))
    with pytest.raises(FormatError, match=r"field 'caption' does not exist; choose one of these: image, label$"):
        read_fields("tfrecord", example_record({"image": [b"x"], "label": [1]}), ("caption",))


def test_fields_of_a_record_are_checked_without_reading_them():
    record = tar_record(SAMPLE)
    check_record_fields("webdataset", record, ("caption", "height", "seg.png"))
    with pytest.raises(UsageError, match=r"^field 'hight', expected one of jpg, cls, .*; did you mean height\?$"):
        check_record_fields("webdataset", record, ("caption", "hight"))
    example = example_record({"image": [b"x"], "label": [1]})
    with pytest.raises(UsageError, match=r"^field 'caption', expected one of image, label$"):
        check_record_fields("tfrecord", example, ("caption",))
    with pytest.raises(FormatError, match="record: empty"):
        check_record_fields("webdataset", bytes(4096), ("caption",))


def test_an_image_folder_has_no_fields():
    for call in (lambda: read_fields("imagefolder", b"", ("txt",)), lambda: check_fields("imagefolder", ("txt",))):
        with pytest.raises(UsageError, match="imagefolder holds only images; expected webdataset or tfrecord"):
            call()


@pytest.mark.parametrize(("fmt", "label"), [("webdataset", "cls"), ("tfrecord", "label")])
def test_fields_of_records_of_a_build_are_read(fmt, label):
    sample = Sample("n01/a", b"\xff\xd8\xff", 3, "bee", 10, 20, 1)
    data, (place,) = write_shard(FORMATS[fmt], [sample], has_classes=True)
    found = read_fields(fmt, data[place.record_offset :][: place.record_bytes], (label, "height", "orientation"))
    assert (int(found[label]), found["height"], found["orientation"]) == (3, 10, 1)


@examples
@given(st.data())
def test_damaged_records_are_format_errors(data):
    record = tar_record(SAMPLE) if data.draw(st.booleans()) else example_record({"txt": [b"a"], "label": [1, 2]})
    damaged = data.draw(mutations(record))
    for format_name in ("webdataset", "tfrecord"):
        try:
            read_fields(format_name, damaged, ("txt",))
        except FormatError:
            continue
