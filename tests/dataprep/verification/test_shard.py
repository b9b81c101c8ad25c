import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.formats import FORMATS
from dataprep.storage.checksums import crc32c_of
from tests.support.faults import Damaged, linked_copy
from tests.support.finished import SHARDED, change_cell, column_values, details, kinds, verify_here

# Sizes and digests are made right again after each change, so that the content alone gives it away.


@pytest.fixture
def changed(damaged):
    """Writes a shard of a copy again after a change of its samples; its name, its new samples, and what is found."""

    def change(name, number, samples_of):
        copy = damaged(name)
        shard = copy.shards()[number]
        samples = samples_of(copy, copy.read_shard(shard))
        copy.write_shard(shard, samples)
        copy.sign()
        return shard, samples, verify_here(copy.root)

    return change


@pytest.mark.parametrize("name", SHARDED)
def test_sound_shards_are_compared_with_what_a_build_would_write(finished, monkeypatch, name):
    copy = Damaged(finished(name))
    monkeypatch.setattr(type(FORMATS[copy.document["format"]]), "read_shard", None)
    report = verify_here(copy.root)
    assert report.ok
    assert report.samples == sum(split["samples"] for split in copy.document["splits"])


@pytest.mark.parametrize("name", SHARDED)
def test_images_that_are_not_upright_are_sound(changed, monkeypatch, name):
    def turned(copy, samples):
        monkeypatch.setattr(type(FORMATS[copy.document["format"]]), "read_shard", None)
        return [*samples[:2], samples[2]._replace(orientation=6), *samples[3:]]

    assert changed(name, 0, turned)[2].ok


@pytest.mark.parametrize("name", SHARDED)
def test_a_duplicate_sample_is_found(changed, name):
    _, samples, report = changed(name, 0, lambda _, samples: [samples[0], *samples])
    assert {"duplicate", "count"} <= kinds(report)
    assert f"duplicate train: {samples[0].key}: more than one sample has this key, ignoring case" in details(report)


@pytest.mark.parametrize("name", SHARDED)
def test_a_sample_replaced_by_one_of_the_same_size_is_found(damaged, name):
    copy = damaged(name)
    shard = copy.shards()[1]
    samples = copy.read_shard(shard)
    before = samples[3].image
    samples[3] = samples[3]._replace(image=before[:-2] + bytes([before[-2] ^ 255]) + before[-1:])
    copy.write_shard(shard, samples)
    copy.sign()
    report = verify_here(copy.root)
    assert kinds(report) == {"record"}
    got, due = (f"{crc32c_of(image):08x}" for image in (samples[3].image, before))
    place = f"record {shard} record 3 ({samples[3].key})"
    assert f"{place}: image_crc32c {got}, the index has {due}" in details(report)


@pytest.mark.parametrize("name", SHARDED)
def test_swapped_samples_are_found(changed, name):
    shard, samples, report = changed(name, 1, lambda _, samples: [samples[1], samples[0], *samples[2:]])
    assert kinds(report) == {"record"}
    found, due = samples[0].key, samples[1].key
    assert f"record {shard} record 0 ({due}): key {found!r}, the index has {due!r}" in details(report)


@pytest.mark.parametrize("name", ["imagenet-webdataset", "imagenet-tfrecord"])
def test_a_changed_label_is_found(changed, name):
    def relabelled(copy, samples):
        label = (samples[5].label + 1) % 2
        return [*samples[:5], samples[5]._replace(label=label, class_name=copy.classes[label]), *samples[6:]]

    shard, samples, report = changed(name, 2, relabelled)
    assert {"record", "count"} <= kinds(report)
    assert f"{shard} record 5 ({samples[5].key}): " in details(report)
    assert "samples of label " in details(report)


@pytest.mark.parametrize("name", SHARDED)
def test_a_dropped_sample_is_found(changed, name):
    shard, samples, report = changed(name, 0, lambda _, samples: samples[:-1])
    assert f"count {shard}: {len(samples)} records, the manifest has {len(samples) + 1}" in details(report)


@pytest.mark.parametrize("name", SHARDED)
def test_a_shard_of_noise_is_found(damaged, name):
    copy = damaged(name)
    shard = copy.shards()[0]
    copy.write(shard, random.Random(1).randbytes(100_000))
    copy.sign()
    report = verify_here(copy.root, deep=True)
    assert "format" in kinds(report)
    assert f"format {shard}: offset 0: " in details(report)


@settings(derandomize=True)
@given(data=st.data(), name=st.sampled_from(["imagenet-webdataset", "coco-tfrecord"]))
def test_a_truncated_shard_is_found(finished, tmp_path_factory, data, name):
    copy = Damaged(tmp_path_factory.mktemp("cut") / "copy")
    linked_copy(finished(name), copy.root)
    shard = copy.shards()[0]
    whole = (copy.root / shard).read_bytes()
    copy.write(shard, whole[: data.draw(st.integers(0, len(whole) - 1))])
    copy.sign()
    assert kinds(verify_here(copy.root)) & {"format", "count"}


def test_keys_that_differ_in_case_alone_are_found(changed):
    def shouted(_, samples):
        return [samples[0], samples[1]._replace(key=samples[0].key.upper()), *samples[2:]]

    assert "duplicate" in kinds(changed("imagenet-webdataset", 0, shouted)[2])


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("key", "missing"),
        ("label", "missing"),
        ("image_crc32c", "digest"),
        ("image_bytes", "index"),
        ("record_offset", "index"),
        ("width", "image"),
    ],
)
def test_an_index_row_that_differs_from_its_file_is_found(damaged, column, kind):
    copy = damaged("imagenet-imagefolder")
    before = column_values(copy, column)[0]
    value = f"{before}x" if column == "key" else before - 1 if column == "label" and before else before + 1
    change_cell(copy, "index/train.parquet", column, value)
    copy.sign()
    assert kind in kinds(verify_here(copy.root))


@pytest.mark.parametrize("change", [-1, 1])
def test_an_image_of_another_size_is_one_finding(damaged, change):
    copy = damaged("imagenet-imagefolder")
    image = min(path for path in (copy.root / "train").rglob("*") if path.is_file())
    data = image.read_bytes()
    image.unlink()  # it is linked to the dataset that other tests read
    image.write_bytes(data + b"x")
    os.truncate(image, len(data) + change)
    [found] = verify_here(copy.root).findings
    assert (found.kind, found.where) == ("size", image.relative_to(copy.root).as_posix())


def test_hostile_index_rows_do_not_lead_out_of_the_dataset(damaged):
    for key in ("../../../etc/passwd", "/etc/passwd", "", "a\0b", "x" * 300):
        copy = damaged("imagenet-imagefolder")
        change_cell(copy, "index/train.parquet", "key", key)
        copy.sign()
        assert {"index", "extra"} <= kinds(verify_here(copy.root, deep=True)), key
