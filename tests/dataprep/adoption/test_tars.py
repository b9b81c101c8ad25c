"""Tars, adopted: the samples that webdataset yields."""

from __future__ import annotations

import io
import tarfile

import pyarrow.parquet as pq
import pytest

from dataprep.adoption.rows import key_from
from dataprep.dataset.manifest import read_manifest
from dataprep.errors import SourceError
from dataprep.storage import open_storage
from tests.support.adoption import adopt_here, image_of, read_all, read_webdataset, tar_of, upload
from tests.support.libraries import in_process


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
    "a json that is none": ([("x.jpg", b"j"), ("x.json", b"{")], r"member 'x.json' at byte 1,536: it is no JSON"),
    "an extension twice": ([("x.jpg", b"j"), ("x.JPG", b"j")], r"member 'x.JPG' at byte 1,536: it occurs twice"),
    "a dot in the key": (
        [("a/IMG_1.00003.jpg", b"j"), ("a/IMG_1.00004.jpg", b"j")],
        r"no image in 1 shard; 'a/IMG_1\.00003\.jpg': a key ends at the first dot of its name, so this is a member "
        r"'00003\.jpg' of 'a/IMG_1', expected jpg, jpeg, png or webp$",
    ),
    "no image at all": ([("x.txt", b"j")], "no image in 1 shard; 1 sample: no image; check --format"),
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
