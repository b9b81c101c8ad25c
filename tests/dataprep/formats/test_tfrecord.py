"""TFRecord shards: their bytes, what TensorFlow and TFDS see in them, and what becomes of damaged ones."""

import hashlib
import json
import struct
from dataclasses import replace

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset.records import NO_LABEL, Sample
from dataprep.errors import FormatError
from dataprep.formats.base import DatasetInfo
from dataprep.formats.tfrecord import TFRecordFormat
from tests.support.interop import describe_with_tfds, encode_with_tensorflow, parse_with_tensorflow
from tests.support.samples import CLASSES, accepted, examples, mutations, read_samples, write_shard

FORMAT = TFRecordFormat()
LABELLED = Sample("n01440764/n01440764_10026", b"\xff\xd8" + b"jpeg" * 200 + b"\xff\xd9", 3, CLASSES[3], 375, 500, 6)
PLAIN = Sample("train2017/000000000009", b"\xff\xd8one\xff\xd9", NO_LABEL, "", 0, 0, 1)
INFO = DatasetInfo(
    name="coco-dup5",
    description="COCO five times",
    citation="Lin et al., 2014",
    licence="CC BY 4.0",
    classes=(),
    shard_samples={"val": (2,), "train": (3, 0, 4)},
    split_bytes={"val": 20, "train": 12345678901},
)


def write(*shard, has_classes=False):
    return write_shard(FORMAT, shard, has_classes=has_classes)[0]


def masked_crc(data):
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(message):
    length = struct.pack("<Q", len(message))
    return length + masked_crc(length) + message + masked_crc(message)


def features_of(sample):
    features = {name: getattr(sample, name) for name in ("image", "height", "width", "orientation")}
    labels = {} if sample.label == NO_LABEL else {"label": sample.label}
    return {**features, "key": sample.key.encode(), **labels}


def test_a_shard_is_named_by_dataset_split_and_number():
    assert FORMAT.shard_file("coco-dup5", "train", 3, 256) == "coco_dup5-train.tfrecord-00003-of-00256"
    assert FORMAT.shard_file("laion", "train", 3, 123456) == "laion-train.tfrecord-000003-of-123456"


def test_a_record_equals_its_golden_bytes():
    assert write(PLAIN).hex() == (
        "7200000000000000" "25053a82"  # length and its checksum
        "0a70"
        "0a0f" "0a06686569676874" "12051a030a0100"  # height
        "0a14" "0a05696d616765" "120b0a090a07" "ffd86f6e65ffd9"  # image
        "0a21" "0a036b6579" "121a0a180a16" "747261696e323031372f303030303030303030303039"  # key
        "0a14" "0a0b6f7269656e746174696f6e" "12051a030a0101"  # orientation
        "0a0e" "0a057769647468" "12051a030a0100"  # width
        "afe47d41"  # checksum of the data
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shard", "has_classes", "num_bytes", "sha256"),
    [
        ([], False, 0, hashlib.sha256(b"").hexdigest()),
        ([LABELLED, LABELLED], True, 1906, "8399698b5a46894337c542510251efa2c62d26aee29383d7bdc915baf37f8d06"),
    ],
)
def test_shards_equal_their_golden_digests(shard, has_classes, num_bytes, sha256):
    data = write(*shard, has_classes=has_classes)
    assert (len(data), hashlib.sha256(data).hexdigest()) == (num_bytes, sha256)


SIDES = [0, 1, 127, 128, 16_383, 16_384, 65_535]
"""Around each length that a varint can have."""
LABELLED_EDGES = [
    LABELLED._replace(key="k" * size, image=b"x" * image_bytes, height=side, width=SIDES[-1 - i])
    for i, (side, size, image_bytes) in enumerate(
        zip(SIDES, [1, 95, 127, 128, 131, 199, 200], [1, 110, 127, 128, 16_383, 16_384, 2_100_000], strict=True)
    )
]
PLAIN_EDGES = [sample._replace(label=NO_LABEL, class_name="") for sample in LABELLED_EDGES]


@pytest.mark.parametrize("edges", [LABELLED_EDGES, PLAIN_EDGES], ids=["labelled", "plain"])
def test_records_are_what_tensorflow_would_write(edges):
    messages = encode_with_tensorflow([features_of(sample) for sample in edges])
    has_classes = edges[0].label != NO_LABEL
    for sample, message in zip(edges, messages, strict=True):
        assert write(sample, has_classes=has_classes) == framed(message), sample.key


@pytest.mark.parametrize("edges", [LABELLED_EDGES, PLAIN_EDGES], ids=["labelled", "plain"])
def test_tensorflow_reads_what_is_written(tmp_path, edges):
    has_classes = edges[0].label != NO_LABEL
    shards_of_edges = [edges[:2], [], edges[2:3], edges[3:]]
    paths = [tmp_path / FORMAT.shard_file("edges", "train", i, 4) for i in range(4)]
    for path, shard in zip(paths, shards_of_edges, strict=True):
        path.write_bytes(write(*shard, has_classes=has_classes))
    assert parse_with_tensorflow(paths, has_classes=has_classes) == [features_of(sample) for sample in edges]


def test_metadata_files_are_those_that_tfds_needs():
    files = FORMAT.metadata_files(INFO)
    assert sorted(files) == ["dataset_info.json", "features.json"]
    assert json.loads(files["dataset_info.json"]) == {
        "name": "coco_dup5",
        "version": "1.0.0",
        "fileFormat": "tfrecord",
        "description": "COCO five times",
        "citation": "Lin et al., 2014",
        "redistributionInfo": {"license": "CC BY 4.0"},
        "splits": [
            {
                "name": split,
                "numBytes": num_bytes,
                "shardLengths": lengths,
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            }
            for split, num_bytes, lengths in (("train", "12345678901", ["3", "0", "4"]), ("val", "20", ["2"]))
        ],
    }


@pytest.mark.parametrize("classes", [(), ("n01440764", "tench, Tinca tinca", "Grünfink")])
def test_tfds_loads_the_directory(tmp_path, classes):
    files = FORMAT.metadata_files(replace(INFO, classes=classes))
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    found = describe_with_tfds(tmp_path)
    features = json.loads(files["features.json"])["featuresDict"]["features"]
    assert found.pop("features")["content"]["features"] == features
    assert sorted(features) == sorted(
        ["height", "image", "key", "orientation", "width", *(["label"] if classes else [])]
    )
    assert found == {
        "name": "coco_dup5",
        "version": "1.0.0",
        "samples": {"train": [3, 0, 4], "val": [2]},
        "class_names": list(classes),
        "supervised_keys": ("image", "label") if classes else None,
        "licence": "CC BY 4.0",
        "citation": "Lin et al., 2014",
        "description": "COCO five times",
    }


def test_class_names_are_unique_lines():
    files = FORMAT.metadata_files(replace(INFO, classes=("n01440764", "Grünfink")))
    assert files["label.labels.txt"] == "n01440764\nGrünfink\n".encode()
    with pytest.raises(FormatError, match=r"^class name 'a\\nb', expected one that can name a folder"):
        FORMAT.metadata_files(replace(INFO, classes=("a\nb",)))
    with pytest.raises(FormatError, match=r"^a class name occurs twice, expected each once; rename"):
        FORMAT.metadata_files(replace(INFO, classes=("a", "b", "a")))


SMALL = write(LABELLED, LABELLED._replace(image=b"\xff\xd8two\xff\xd9"), has_classes=True)
MESSAGE = write(PLAIN)[12:-4]
LABELLED_MESSAGE = write(LABELLED, has_classes=True)[12:-4]


@examples
@given(mutations(SMALL))
def test_damaged_bytes_are_an_error_or_leave_whole_samples(data):
    found = accepted(FORMAT, data, classes=CLASSES)
    first, second = read_samples(FORMAT, SMALL, classes=CLASSES)
    assert found is None or all(sample in (first, second) for sample in found)


@examples
@given(mutations(MESSAGE))
def test_a_hostile_message_under_a_good_checksum_is_an_error_or_the_writers(message):
    accepted(FORMAT, framed(message), classes=())


@examples
@given(mutations(LABELLED_MESSAGE))
def test_a_hostile_labelled_message_is_an_error_or_the_writers(message):
    accepted(FORMAT, framed(message), classes=CLASSES)


@examples
@given(st.binary(max_size=300))
def test_any_bytes_are_an_error_or_a_shard(data):
    accepted(FORMAT, data, classes=())
    accepted(FORMAT, framed(data), classes=())


def test_every_flipped_bit_is_detected():
    data = write(PLAIN)
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            assert accepted(FORMAT, bytes(changed), classes=()) is None, (position, bit)


def test_every_truncation_is_detected_but_the_one_between_records():
    boundary = len(write(LABELLED, has_classes=True))
    for end in range(1, len(SMALL)):
        found = accepted(FORMAT, SMALL[:end], classes=CLASSES)
        assert found == ([LABELLED] if end == boundary else None), end


LENGTH = struct.pack("<Q", 1 << 40)
NOT_THE_MESSAGE = "offset 12: another message, expected a tf.train.Example of height, image, key,"


@pytest.mark.parametrize(
    ("data", "classes", "fault"),
    [
        (b"\0" * 5, (), "offset 5: the end of the file, expected 7 more bytes"),
        (b"\0" * 12, (), "offset 0: another checksum, expected the checksum of the record's length"),
        (
            LENGTH + masked_crc(LENGTH),
            (),
            "offset 0: a record of 1,099,511,627,776 bytes, expected at most 268,500,992",
        ),
        (write(PLAIN)[:-5], (), "offset 125: the end of the file, expected 1 more bytes"),
        (write(PLAIN)[:-4] + b"\0" * 4, (), "offset 12: another checksum, expected the checksum of the record's data"),
        (
            write(PLAIN, PLAIN)[:-1] + b"\0",
            (),
            "offset 142: another checksum, expected the checksum of the record's data",
        ),
        (framed(b""), (), f"{NOT_THE_MESSAGE} orientation, width"),
        (framed(MESSAGE + b"\0"), (), f"{NOT_THE_MESSAGE} orientation, width"),
        (write(PLAIN), CLASSES, f"{NOT_THE_MESSAGE} label, orientation, width"),
        (write(LABELLED, has_classes=True), (), f"{NOT_THE_MESSAGE} orientation, width"),
        (write(LABELLED, has_classes=True), CLASSES[:3], f"{NOT_THE_MESSAGE} label, orientation, width"),
    ],
)
def test_records_that_the_writer_would_not_write_are_named(data, classes, fault):
    with pytest.raises(FormatError) as caught:
        read_samples(FORMAT, data, classes=classes)
    assert str(caught.value) == f"{fault}; the shard is damaged or was not written by a build: build it again"


def test_a_message_of_other_features_is_refused():
    others = [
        features_of(PLAIN) | {"extra": 1},
        {name: value for name, value in features_of(PLAIN).items() if name != "width"},
        features_of(PLAIN) | {"orientation": 9},
        features_of(PLAIN) | {"height": 65_536},
        features_of(PLAIN) | {"height": -1},
        features_of(PLAIN) | {"key": b"../a"},
        features_of(PLAIN) | {"image": b""},
        features_of(PLAIN) | {"width": b"\x01"},
    ]
    for features, message in zip(others, encode_with_tensorflow(others), strict=True):
        assert accepted(FORMAT, framed(message), classes=()) is None, features
