"""TFRecords of TFDS, img2dataset and anyone, adopted: the samples that their own libraries yield."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import FormatError, SourceError, UsageError
from dataprep.formats.example import features_of
from tests.support.adoption import (
    adopt_here,
    read_all,
    read_tfds,
    read_tfrecords,
    read_webdataset,
    upload,
    write_img2dataset,
)
from tests.support.libraries import in_process
from tests.support.samples import examples


@pytest.mark.parametrize("tars", [True, False], ids=["webdataset", "tfrecord"])
@pytest.mark.parametrize("place", [pytest.param("disk", marks=pytest.mark.long), "bucket"])
def test_output_of_img2dataset_has_the_samples_that_its_readers_see(tars, place, tmp_path, request):
    folder = write_img2dataset(tmp_path / "cc3m", tars=tars)
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
    assert [(row["height"], row["width"]) for row in rows] == [(16 + i % 5, 24 + i % 7) for i in range(8)]


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
    with pytest.raises(SourceError, match=r"train\.tfrecord-00001-of-0000\d: not found, dataset_info\.json lists it"):
        adopt_here(copy)
    shard.write_bytes(data[:-5])
    with pytest.raises(SourceError, match=r"at byte [\d,]+: a record of [\d,]+ bytes, only [\d,]+ follow"):
        adopt_here(copy)
    shard.write_bytes(data + data)
    with pytest.raises(SourceError, match=r"records, its description says"):
        adopt_here(copy)
    shard.write_bytes(b"x" + data[1:])
    with pytest.raises(SourceError, match=r"at byte 0: no TFRecord, or a compressed or damaged one"):
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
