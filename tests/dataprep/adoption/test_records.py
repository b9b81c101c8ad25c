"""Tars, adopted: the samples that webdataset yields."""

import io
import json
import shutil
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.adoption.find import Found, FoundShard
from dataprep.adoption.labels import ShardLabels, key_from
from dataprep.adoption.records import FeatureShape, describe
from dataprep.adoption.shards import ReadShard
from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.records import Event
from dataprep.errors import FormatError, SourceError, UsageError
from dataprep.formats.example import BYTES, FLOATS, INTEGERS, features_of
from dataprep.formats.tfds import DATASET_INFO, FEATURES
from dataprep.storage import open_storage
from tests.support.adoption import (
    adopt_here,
    image_of,
    read_all,
    read_tfds,
    read_tfrecords,
    read_webdataset,
    tar_of,
    upload,
)
from tests.support.img2dataset import MADE, write_img2dataset
from tests.support.libraries import in_process
from tests.support.picture_web import picture_web
from tests.support.samples import examples


def test_tars_are_what_webdataset_yields(tars, tmp_path):
    adopted = adopt_here(tars, tmp_path, workers=2)
    assert (adopted.manifest.options["adopted"]["kind"], adopted.manifest.classes) == ("webdataset", ("0", "1", "2"))
    samples, rows = read_all(tmp_path)
    theirs = in_process("torch", read_webdataset, str(tars))
    expected = [(key_from(key), label, sha) for key, label, sha in theirs]
    assert [(key, label, sha) for key, label, sha, _ in samples] == expected
    assert [(row["height"], row["width"]) for row in rows] == [(16 + i % 5, 24 + i % 7) for i in range(10)]


def test_a_record_of_a_tar_is_a_tar(tars, tmp_path):
    """From the first header of a sample, also one in front of a long name, to the end of its last member."""
    adopt_here(tars, tmp_path)
    samples, rows = read_all(tmp_path)
    members = 0
    for (*_, file), row in zip(samples, rows, strict=True):
        record = (tars / file).read_bytes()[row["record_offset"] :][: row["record_bytes"]]
        with tarfile.open(fileobj=io.BytesIO(record + bytes(1024))) as archive:
            names = archive.getnames()
        assert len({key_from(name.partition(".")[0]) for name in names}) == 1
        members += len(names)
    assert members == 10 * 4 - 1


def test_tars_in_a_bucket_are_adopted_as_on_a_disk(tars, tmp_path, bucket_url):
    adopt_here(upload(tars, bucket_url), workers=2)
    adopt_here(tars, tmp_path)
    assert read_all(bucket_url) == read_all(tmp_path)
    manifest = read_manifest(open_storage(bucket_url))
    assert manifest.splits[0].shards[0]["crc32c"]
    assert manifest.splits[0].index == read_manifest(open_storage(str(tmp_path))).splits[0].index


def test_a_field_that_is_a_member_and_in_the_json_counts_once_a_sample(tmp_path):
    both = [("a.jpg", image_of(1)), ("a.txt", b"one"), ("a.json", b'{"txt": "one", "n": 1}')]
    tar_of(tmp_path / "a.tar", [*both, ("b.jpg", image_of(2)), ("b.json", b'{"txt": "two"}')])
    adopt_here(tmp_path)
    fields = read_manifest(open_storage(str(tmp_path))).options["adopted"]["fields"]
    assert (fields["txt"], fields["n"]) == (0, 1)  # samples without it


def test_samples_without_an_image_are_listed(tmp_path):
    members = [("x.jpg", image_of(1)), ("y.txt", b"alone"), ("z.jpg", b""), ("__meta__/q.json", b"{}")]
    tar_of(tmp_path / "a.tar", members)
    adopted = adopt_here(tmp_path)
    assert adopted.manifest.splits[0].rejected == {"empty": 1, "no image": 1}
    events = pq.read_table(tmp_path / "index" / "train-events.parquet").to_pylist()
    assert [(event["key"], event["reason"]) for event in events] == [("y", "no image"), ("z", "empty")]


@pytest.mark.parametrize("first", ["jpg", "cls"])
def test_members_apart_from_their_image_are_counted_as_such(tmp_path, first):
    members = [(f"{number}.jpg", image_of(number)) for number in range(3)]
    labels = [(f"{number}.cls", b"1") for number in range(4)]
    tar_of(tmp_path / "a.tar", members + labels if first == "jpg" else labels + members)
    adopted = adopt_here(tmp_path)
    assert adopted.manifest.splits[0].rejected == {"apart from its image": 3, "no image": 1}
    assert adopted.notes == (
        "members of 3 samples, such as labels, were not taken: the members of a sample must follow each other in a tar",
    )


FAULTS = {
    "a label that is none": ([("x.jpg", b"j"), ("x.cls", b"0.5")], r"a.tar: member 'x.cls' at byte 1,536: label '0.5'"),
    "a label of a list": ([("x.jpg", b"j"), ("x.json", b'{"label": [1]}')], r"'x.json' at byte 1,536: label '\[1\]'"),
    "a label of an identifier": ([("x.jpg", b"j"), ("x.cls", b"9" * 12)], "expected an integer from 0 to 999,999"),
    "a json that is none": ([("x.jpg", b"j"), ("x.json", b"{")], r"member 'x.json' at byte 1,536: it is not JSON"),
    "an extension twice": ([("x.jpg", b"j"), ("x.JPG", b"j")], r"member 'x.JPG' at byte 1,536: it occurs twice"),
    "a dot in the key": (
        [("a/IMG_1.00003.jpg", b"j"), ("a/IMG_1.00004.jpg", b"j")],
        r"no image in 1 shard; 'a/IMG_1\.00003\.jpg': a key ends at the first dot of its name, so this is a member "
        r"'00003\.jpg' of 'a/IMG_1', expected jpg, jpeg, png or webp$",
    ),
    "no image at all": ([("x.txt", b"j")], "no image in 1 shard; 1 sample: no image; check `format`"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_damaged_tar_is_refused_with_its_offset(case, tmp_path):
    members, message = FAULTS[case]
    tar_of(tmp_path / "a.tar", members)
    with pytest.raises(SourceError, match=message):
        adopt_here(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_a_truncated_tar_is_refused(tmp_path):
    tar_of(tmp_path / "a.tar", [("x.jpg", image_of(1)), ("y.jpg", image_of(2))])
    data = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(data[: len(image_of(1)) // 512 * 512 + 1024])
    with pytest.raises(SourceError, match=r"a\.tar: at byte [\d,]+: it ends after 0 bytes"):
        adopt_here(tmp_path)


def test_labels_come_from_the_given_field_or_are_left_out(tmp_path):
    members = [("x.jpg", image_of(1)), ("x.json", b'{"label": "cat", "class_id": 2}')]
    tar_of(tmp_path / "a.tar", members)
    adopt_here(tmp_path, tmp_path / "by field", labels="class_id")
    assert [label for _, label, *_ in read_all(tmp_path / "by field")[0]] == [2]
    adopt_here(tmp_path, tmp_path / "none", labels="none")
    assert read_manifest(open_storage(str(tmp_path / "none"))).classes == ()


@pytest.mark.parametrize("tars", [True, False], ids=["webdataset", "tfrecord"])
@pytest.mark.parametrize("place", [pytest.param("disk", marks=pytest.mark.long), "bucket"])
def test_output_of_img2dataset_has_the_samples_that_its_readers_see(tars, place, tmp_path, request):
    with picture_web() as web:
        folder = write_img2dataset(web, tmp_path / "cc3m", "webdataset" if tars else "tfrecord", 20)
    url = str(folder) if place == "disk" else upload(folder, request.getfixturevalue("bucket_url"))
    adopted = adopt_here(url)
    assert adopted.manifest.options["adopted"]["kind"] == "img2dataset"
    assert (adopted.manifest.format, adopted.manifest.classes) == ("webdataset" if tars else "tfrecord", ())
    samples, rows = read_all(url)
    if tars:
        theirs = in_process("torch", read_webdataset, str(folder))
    else:
        theirs = in_process("tensorflow", read_tfrecords, str(folder), "jpg", "key")
    assert [(key, label, sha) for key, label, sha, _ in samples] == theirs
    assert {(row["height"], row["width"]) for row in rows} == {(MADE.image_size, MADE.image_size)}


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_a_tfds_directory_has_the_samples_that_tfds_reads(tfds_folder, place, tmp_path, request):
    url = str(tfds_folder) if place == "disk" else upload(tfds_folder, request.getfixturevalue("bucket_url"))
    adopted = adopt_here(url, tmp_path / "index")
    assert adopted.manifest.options["adopted"]["kind"] == "tfds"
    assert (adopted.manifest.name, adopted.manifest.classes) == ("photos", ("zebra", "ant", "bee"))
    for split in ("train", "test_filtered"):
        samples, _ = read_all(tmp_path / "index", split)
        theirs = in_process("tensorflow", read_tfds, str(tfds_folder), split)
        assert [(key, label, sha) for key, label, sha, _ in samples] == [(Path(k).stem, lb, s) for k, lb, s in theirs]


def test_an_incomplete_tfds_directory_is_refused(tfds_folder, tmp_path):
    copy = shutil.copytree(tfds_folder, tmp_path / "2.1.0")
    shard = sorted(copy.glob("*train.tfrecord-*"))[1]
    data = shard.read_bytes()
    shard.unlink()
    with pytest.raises(
        SourceError, match=r"train\.tfrecord-00001-of-0000\d: not found, but dataset_info\.json lists it"
    ):
        adopt_here(copy)
    shard.write_bytes(data[:-5])
    with pytest.raises(SourceError, match=r"at byte [\d,]+: a record of [\d,]+ bytes, only [\d,]+ follow"):
        adopt_here(copy)
    shard.write_bytes(data + data)
    with pytest.raises(SourceError, match=r"records, but its description says"):
        adopt_here(copy)
    shard.write_bytes(b"x" + data[1:])
    with pytest.raises(SourceError, match=r"at byte 0: not a TFRecord, or a compressed or damaged one"):
        adopt_here(copy)
    with pytest.raises(UsageError, match=r"a TFDS directory is in a folder below; pass .*2\.1\.0"):
        adopt_here(tmp_path)


@examples
@given(st.binary(max_size=200))
def test_hostile_examples_are_format_errors(data):
    try:
        features = features_of(lambda offset, count: data[offset : offset + count], 0, len(data))
    except FormatError:
        return
    assert all(0 <= feature.start <= feature.stop <= len(data) for feature in features.values())


CAPTION, WIDTH = FeatureShape("caption", BYTES, True), FeatureShape("width", INTEGERS, True)


def found(*names):
    shards = tuple(FoundShard("train", number, name, 100, "", None) for number, name in enumerate(names))
    return Found(kind="img2dataset", format="tfrecord", name="CC 3M!", licence="CC BY 4.0", shards=shards)


def read(index, features, *, samples=2, events=0):
    """Return what a shard holds."""
    return ReadShard(
        index=index,
        rows_file=Path("none"),
        samples=samples,
        image_bytes=0,
        key_hashes=np.empty(0, np.uint64),
        labels=Counter(),
        kind=ShardLabels(),
        fields=Counter(),
        events=[Event("a", "rejected", "empty", "")] * events,
        features=Counter(features),
        counts=None,
        problem="",
    )


def test_features_of_one_kind_in_all_records_are_described():
    shapes = {CAPTION: 3, WIDTH: 3, FeatureShape("similarity", FLOATS, True): 3, FeatureShape("jpg", BYTES, True): 3}
    lists = {FeatureShape("tags", BYTES, False): 1, FeatureShape("tags", BYTES, True): 2}
    described = describe(found("00000.tfrecord"), [read(0, shapes | lists, events=1)], "")
    assert described.remarks == ()
    info = json.loads(described.files[DATASET_INFO])
    assert (info["name"], info["redistributionInfo"]) == ("cc_3m", {"license": "CC BY 4.0"})
    (split,) = info["splits"]
    assert (split["shardLengths"], split["numBytes"]) == (["3"], "100")  # rejected images are records, too
    features = json.loads(described.files[FEATURES])["featuresDict"]["features"]
    classes = {name: feature["pythonClassName"].rpartition(".")[2] for name, feature in features.items()}
    assert classes == {"caption": "Text", "width": "Scalar", "similarity": "Scalar", "jpg": "Image", "tags": "Tensor"}


@pytest.mark.parametrize(
    "shapes", [{WIDTH: 3, FeatureShape("width", BYTES, True): 1}, {WIDTH: 3}, {FeatureShape("width", 0, True): 4}]
)
def test_feature_that_is_absent_or_of_several_kinds_is_left_out(shapes):
    described = describe(found("00000.tfrecord"), [read(0, {CAPTION: 4} | shapes, samples=4)], "")
    assert described.remarks == ("TFDS cannot read width: absent in some records, or of several kinds",)
    assert list(json.loads(described.files[FEATURES])["featuresDict"]["features"]) == ["caption"]


def test_webp_is_described_as_bytes():
    described = describe(found("00000.tfrecord"), [read(0, {FeatureShape("webp", BYTES, True): 2})], "")
    assert described.remarks == ("TFDS decodes no WebP: its feature webp gives the images' bytes",)


def test_data_elsewhere_are_named_with_their_folder():
    described = describe(found("00000.tfrecord", "00002.tfrecord"), [read(0, {}), read(1, {})], "/data/{x}/")
    (split,) = json.loads(described.files[DATASET_INFO])["splits"]
    assert split["filepathTemplate"] == "/data/{{x}}/{SHARD_INDEX}.{FILEFORMAT}"
    assert split["shardLengths"] == ["2", "0", "2"]


def test_names_that_tfds_cannot_make_are_not_described():
    described = describe(found("0.tfrecord"), [read(0, {CAPTION: 2})], "")
    assert described.files == {}
    assert described.remarks == ("TFDS cannot read it: 0.tfrecord, expected numbers of one width, 5 digits or more",)
