"""Data made by other libraries, adopted, and read through the index: the same samples as their own library yields."""

from __future__ import annotations

import atexit
import functools
import hashlib
import io
import json
import multiprocessing
import os
import random
import shutil
import tarfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dataprep.adopt import AdoptRequest, adopt, find, open_data, open_linked
from dataprep.adopt.example import features_of
from dataprep.adopt.rows import key_from
from dataprep.checksums import crc32c_of
from dataprep.commands.adopt import AdoptProgress
from dataprep.contact_sheet import contact_sheet
from dataprep.errors import DataprepError, FormatError, SourceError, UsageError
from dataprep.formats.checked import is_key
from dataprep.index import open_index
from dataprep.inspect import inspect_dataset
from dataprep.manifest import read_manifest
from dataprep.page import require_report_packages
from dataprep.storage import open_storage
from tests.support.builds import dataprep
from tests.support.interop import read_with_torchvision
from tests.support.samples import examples

CLASSES = ("ant", "bee", "cat")


def image_of(number, kind="JPEG"):
    """A small picture, another one for every number."""
    rng = random.Random(number)
    width, height = 24 + number % 7, 16 + number % 5
    image = Image.frombytes("RGB", (width, height), rng.randbytes(width * height * 3))
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def adopt_here(url, index=None, workers=0, **options):
    request = AdoptRequest(url=str(url), index_url=str(index) if index is not None else None, **options)
    return adopt(request, AdoptProgress(quiet=True), workers=workers)


def read_all(url, split="train"):
    """Every sample by the index alone: (key, label, SHA-256 of the image, file), and the rows."""
    storage = open_storage(str(url))
    manifest = read_manifest(storage)
    found = next(one for one in manifest.splits if one.name == split)
    data, table = open_data(storage, manifest), open_index(storage, split)
    samples, rows = [], []
    for number, shard in enumerate(found.shards):
        group = table.read_group(number).to_pylist()
        assert len(group) == shard["samples"]
        for row in group:
            assert row["shard"] == number
            file = row.get("file", shard["file"])
            image = data.read_range(file, row["image_offset"], row["image_bytes"])
            assert row["image_crc32c"] in (None, crc32c_of(image))
            assert row["record_offset"] <= row["image_offset"]
            record_end = row["record_offset"] + row["record_bytes"]
            assert row["image_offset"] + row["image_bytes"] <= record_end
            samples.append((row["key"], row["label"], sha256(image), file))
        rows += group
    keys = [key for key, *_ in samples]
    assert len({key.lower() for key in keys}) == len(keys)
    assert all(map(is_key, keys))
    assert found.samples == len(samples)
    counts = Counter(label for _, label, *_ in samples if label >= 0)
    assert found.class_counts == tuple(counts[label] for label in range(len(manifest.classes)))
    return samples, rows


def upload(folder, url):
    """Copy a folder, and what links in it lead to, into a bucket."""
    storage, here = open_storage(url), open_linked(str(folder))
    for info in here.list():
        storage.create(info.name, here.read(info.name))
    return url


def contents(folder):
    """SHA-256 of every file by its name."""
    return {path: sha256(path.read_bytes()) for path in Path(folder).rglob("*") if path.is_file()}


@functools.cache
def process(name):
    """TensorFlow and torch each in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, spawn, initializer=make_quiet)
    atexit.register(pool.shutdown)
    return pool


def in_process(name, function, *args):
    return process(name).submit(function, *args).result(timeout=120)


def make_quiet():
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", NO_GCE_CHECK="true")


# Image folders


@pytest.fixture
def folder(tmp_path):
    """Names of all sorts, a folder in a folder, links to files and folders outside; torchvision reads all of it."""
    root = tmp_path / "photos"
    names = ["plain.jpg", "Grünfink 1.JPG", "a.b.jpeg", "x.png", "x.jpg", "__y.webp", "sub/deep/z.jpg", "sub-2/z.jpg"]
    number = 0
    for split, classes in (("train", CLASSES), ("val", CLASSES[1:])):
        for class_name in classes:
            for name in names:
                path = root / split / class_name / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(image_of(number, {"png": "PNG", "webp": "WEBP"}.get(name.rpartition(".")[2], "JPEG")))
                number += 1
    outside = tmp_path / "elsewhere"
    (outside / "more").mkdir(parents=True)
    (outside / "more" / "linked.jpg").write_bytes(image_of(100))
    (outside / "one.jpg").write_bytes(image_of(101))
    (root / "train" / "cat" / "more").symlink_to(outside / "more")
    (root / "train" / "dog").symlink_to(outside / "more")
    (root / "train" / "cat" / "one.jpg").symlink_to(outside / "one.jpg")
    (root / "train" / "cat" / "notes.txt").write_text("no image")
    return root


def test_an_image_folder_is_what_torchvision_counts(folder):
    adopted = adopt_here(folder)
    assert adopted.manifest.classes == (*CLASSES, "dog")
    assert (adopted.manifest.shuffled, adopted.manifest.checked) == (False, "none")
    assert {split.name: split.samples for split in adopted.manifest.splits} == {"train": 27, "val": 16}
    samples, _ = read_all(folder)
    theirs = read_with_torchvision(folder / "train", has_classes=True)
    ours = [(str(Path(file).with_suffix("")).removeprefix("train/"), label, sha) for _, label, sha, file in samples]
    assert ours == theirs


def test_classes_in_the_root_need_an_index_elsewhere(folder, tmp_path):
    """torchvision would take index/ for a class."""
    with pytest.raises(UsageError, match="--index DIR"):
        adopt_here(folder / "train")
    before = contents(folder)
    adopt_here(folder / "train", tmp_path / "index")
    assert contents(folder) == before
    samples, _ = read_all(tmp_path / "index")
    theirs = read_with_torchvision(folder / "train", has_classes=True)
    assert [(label, sha) for _, label, sha, _ in samples] == [(label, sha) for _, label, sha in theirs]


def test_a_bucket_of_class_folders(folder, tmp_path, bucket_url):
    upload(folder, bucket_url)
    adopt_here(bucket_url)
    adopt_here(folder, tmp_path / "index")
    samples, rows = read_all(bucket_url)
    assert samples == read_all(tmp_path / "index")[0]
    assert all(row["image_crc32c"] is not None for row in rows)  # a bucket keeps them


def test_loops_of_links_are_cut_and_hidden_files_passed_over(folder):
    (folder / "train" / "ant" / "again").symlink_to(folder / "train" / "ant")
    (folder / "train" / "ant" / "._plain.jpg").write_bytes(b"of a Mac")
    (folder / "train" / ".cache" / "x").mkdir(parents=True)
    (folder / "train" / ".cache" / "x.jpg").write_bytes(image_of(1))
    adopted = adopt_here(folder)
    assert adopted.manifest.splits[0].samples == 27
    assert ".cache" not in adopted.manifest.classes


def test_files_that_cannot_be_loaded_are_listed(folder):
    (folder / "train" / "ant" / "empty.jpg").touch()
    (folder / "train" / "ant" / "back\\slash.jpg").write_bytes(image_of(1))
    (folder / "train" / "ant" / "PLAIN.jpg").write_bytes(image_of(2))  # a key that differs in case only
    (folder / "train" / "bee" / "plain.jpg").rename(folder / "train" / "bee" / "\udcff.jpg")
    adopted = adopt_here(folder)
    assert adopted.manifest.splits[0].rejected == {"empty": 1, "name": 2}
    assert len(read_all(folder)[0]) == 27


def test_labels_of_two_splits_must_mean_the_same(folder, tmp_path):
    (folder / "val" / "zebra").mkdir()
    (folder / "val" / "zebra" / "z.jpg").write_bytes(image_of(1))
    with pytest.raises(UsageError, match=r"val has class folders that train has not \('zebra'\)"):
        adopt_here(folder)
    adopted = adopt_here(folder, splits=(("train", "train"),))
    assert [split.name for split in adopted.manifest.splits] == ["train"]
    adopt_here(folder, tmp_path / "no labels", splits=(("all", "val"),), labels="none")
    assert {label for _, label, *_ in read_all(tmp_path / "no labels", "all")[0]} == {-1}


def test_digests_are_noted(folder):
    adopt_here(folder, digest=True)
    _, rows = read_all(folder)  # compares them
    assert all(row["image_crc32c"] is not None for row in rows)


# Tars


def write_webdataset(folder, samples):
    import webdataset

    with webdataset.ShardWriter(f"{folder}/photos-train-%05d.tar", maxcount=4, verbose=0) as writer:
        for sample in samples:
            writer.write(sample)


def read_webdataset(folder, pattern="*.tar"):
    import webdataset

    urls = sorted(map(str, Path(folder).glob(pattern)))
    dataset = webdataset.WebDataset(urls, shardshuffle=False)
    return [
        (one["__key__"], int(one.get("cls", b"-1")), sha256(one["jpg"] if "jpg" in one else one["png"]))
        for one in dataset
    ]


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    """Tars by webdataset itself: keys in folders, with blanks, long ones; .cls, .txt and .json."""
    folder = tmp_path_factory.mktemp("tars")
    keys = ["plain", "with blank", "n01/in_a_folder", "Grünfink", "l" * 180, "=20", "a/b/c", "x", "y", "z"]
    samples = []
    for number, key in enumerate(keys):
        sides = {"height": 16 + number % 5, "width": 24 + number % 7}
        sample = {"__key__": key, "txt": f"caption {number}", "json": sides}
        sample["png" if number == 3 else "jpg"] = image_of(number, "PNG" if number == 3 else "JPEG")
        samples.append(sample if number == 8 else {**sample, "cls": number % 3})
    in_process("torch", write_webdataset, str(folder), samples)
    return folder


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


def test_tars_in_a_bucket(tars, tmp_path, bucket_url):
    adopt_here(upload(tars, bucket_url), workers=2)
    adopt_here(tars, tmp_path)
    assert read_all(bucket_url) == read_all(tmp_path)
    manifest = read_manifest(open_storage(bucket_url))
    assert manifest.splits[0].shards[0]["crc32c"]
    assert manifest.splits[0].index == read_manifest(open_storage(str(tmp_path))).splits[0].index


def tar_of(path, members):
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def test_keys_that_are_there_twice_get_their_shard_in_front(tmp_path):
    for number in range(2):
        tar_of(tmp_path / f"{number:05d}.tar", [("A.jpg", image_of(number)), (f"b{number}.jpg", image_of(2 + number))])
    tar_of(tmp_path / "00002.tar", [("a.jpg", image_of(5)), ("c.jpg", image_of(6)), ("a.jpg", image_of(7))])
    adopt_here(tmp_path)
    keys = [key for key, *_ in read_all(tmp_path)[0]]
    assert keys == ["00000/A", "b0", "00001/A", "b1", "00002/a", "c", "00002/a=001"]


def test_samples_without_an_image_are_listed(tmp_path):
    members = [("x.jpg", image_of(1)), ("y.txt", b"alone"), ("z.jpg", b""), ("__meta__/q.json", b"{}")]
    tar_of(tmp_path / "a.tar", members)
    adopted = adopt_here(tmp_path)
    assert adopted.manifest.splits[0].rejected == {"empty": 1, "no image": 1}
    events = pq.read_table(tmp_path / "index" / "train-events.parquet").to_pylist()
    assert [(event["key"], event["reason"]) for event in events] == [("y", "no image"), ("z", "empty")]


FAULTS = {
    "a label that is none": ([("x.jpg", b"j"), ("x.cls", b"cat")], r"a.tar: member 'x.cls' at byte 1,536: label 'cat'"),
    "a label of words": ([("x.jpg", b"j"), ("x.json", b'{"label": "cat"}')], r"'x.json' at byte 1,536: label 'cat'"),
    "a label of an identifier": ([("x.jpg", b"j"), ("x.cls", b"9" * 12)], "expected an integer from 0 to 999,999"),
    "a json that is none": ([("x.jpg", b"j"), ("x.json", b"{")], r"member 'x.json' at byte 1,536: it is no JSON"),
    "an extension twice": ([("x.jpg", b"j"), ("x.JPG", b"j")], r"member 'x.JPG' at byte 1,536: it is there twice"),
    "no image at all": ([("x.txt", b"j")], "no image in 1 shards; 1 samples: no image"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_damaged_tars_say_where(case, tmp_path):
    members, message = FAULTS[case]
    tar_of(tmp_path / "a.tar", members)
    with pytest.raises(SourceError, match=message):
        adopt_here(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_a_cut_tar(tmp_path):
    tar_of(tmp_path / "a.tar", [("x.jpg", image_of(1)), ("y.jpg", image_of(2))])
    data = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(data[: len(image_of(1)) // 512 * 512 + 1024])
    with pytest.raises(SourceError, match=r"a\.tar: at byte [\d,]+: it ends after 0 bytes"):
        adopt_here(tmp_path)


def test_labels_from_another_field_or_none(tmp_path):
    members = [("x.jpg", image_of(1)), ("x.json", b'{"label": "cat", "class_id": 2}')]
    tar_of(tmp_path / "a.tar", members)
    adopt_here(tmp_path, tmp_path / "by field", labels="class_id")
    assert [label for _, label, *_ in read_all(tmp_path / "by field")[0]] == [2]
    adopt_here(tmp_path, tmp_path / "none", labels="none")
    assert read_manifest(open_storage(str(tmp_path / "none"))).classes == ()


# img2dataset: the layout and members that its writer.py has


def img2dataset_meta(number):
    key = f"{number // 4:05d}{number % 4:04d}"
    return {
        "url": f"https://example.com/{number}.jpg", "key": key, "status": "success", "error_message": None,
        "width": 24 + number % 7, "height": 16 + number % 5, "original_width": 640, "exif": "{}",
        "caption": f"Bild {number} ü", "similarity": 0.25 * number, "sha256": sha256(image_of(number)),
    }  # fmt: skip


def write_img2dataset(folder, *, tars):
    folder.mkdir()
    metas = [img2dataset_meta(number) for number in range(8)]
    for shard in range(2):
        some = metas[shard * 4 : shard * 4 + 4]
        pq.write_table(pa.Table.from_pylist(some), folder / f"{shard:05d}.parquet")
        (folder / f"{shard:05d}_stats.json").write_text(json.dumps({"count": 4, "successes": 4}))
        if tars:
            members = []
            for number, meta in enumerate(some, shard * 4):
                texts = {"json": json.dumps(meta, indent=4), "txt": meta["caption"]}
                members.append((f"{meta['key']}.jpg", image_of(number)))
                members += [(f"{meta['key']}.{suffix}", text.encode()) for suffix, text in texts.items()]
            tar_of(folder / f"{shard:05d}.tar", members)
    if not tars:
        in_process("tensorflow", write_img2dataset_tfrecords, str(folder), metas)
    return folder


def write_img2dataset_tfrecords(folder, metas):
    import tensorflow as tf

    def feature(value):
        if isinstance(value, int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        if isinstance(value, float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
        data = value if isinstance(value, bytes) else (value or "").encode()
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[data]))

    for shard in range(2):
        with tf.io.TFRecordWriter(f"{folder}/{shard:05d}.tfrecord") as writer:
            for number, meta in list(enumerate(metas))[shard * 4 : shard * 4 + 4]:
                sample = {"key": meta["key"], "jpg": image_of(number), "txt": meta["caption"], **meta}
                features = tf.train.Features(feature={name: feature(value) for name, value in sample.items()})
                writer.write(tf.train.Example(features=features).SerializeToString())


def read_tfrecords(folder, image, key):
    import tensorflow as tf

    files = sorted(str(path) for path in Path(folder).glob("*.tfrecord*"))
    schema = {image: tf.io.FixedLenFeature([], tf.string), key: tf.io.FixedLenFeature([], tf.string)}
    read = []
    for record in tf.data.TFRecordDataset(files).as_numpy_iterator():
        example = tf.io.parse_single_example(record, schema)
        read.append((example[key].numpy().decode(), -1, sha256(example[image].numpy())))
    return read


@pytest.mark.parametrize("tars", [True, False], ids=["webdataset", "tfrecord"])
@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_img2dataset(tars, place, tmp_path, request):
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


# TFDS


def write_tfds(folder):
    """By a DatasetBuilder, as TFDS's documentation has it."""
    import importlib.resources.abc
    import sys

    import numpy as np
    import tensorflow_datasets as tfds

    sys.modules.setdefault("importlib_resources", importlib.resources)  # its backport, which a builder asks for
    tfds.core.utils.gcs_utils._is_gcs_disabled = True  # it would look for the dataset on the network

    class Photos(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("2.1.0")

        def _info(self):
            features = {
                "image": tfds.features.Image(shape=(None, None, 3)),
                "label": tfds.features.ClassLabel(names=["zebra", "ant", "bee"]),
                "file_name": tfds.features.Text(),
                "caption": tfds.features.Text(),
                "scores": tfds.features.Sequence(tfds.features.Scalar(np.float32)),
            }
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(0, 11), "test_filtered": self._generate_examples(11, 14)}

        def _generate_examples(self, first, stop):
            for number in range(first, stop):
                example = {"image": io.BytesIO(image_of(number)), "label": number % 3 if first == 0 else -1}
                texts = {"file_name": f"n0{number}_{number}.JPEG", "caption": f"Ü {number}", "scores": [0.5, number]}
                yield number, {**example, **texts}

    builder = Photos(data_dir=folder)
    config = tfds.download.DownloadConfig(num_shards=3)
    builder.download_and_prepare(download_config=config)
    return builder.data_dir


def read_tfds(folder, split):
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(folder)
    decoders = {"image": tfds.decode.SkipDecoding()}
    config = tfds.ReadConfig(interleave_cycle_length=1)
    dataset = builder.as_dataset(split=split, decoders=decoders, read_config=config).as_numpy_iterator()
    return [(one["file_name"].decode(), int(one["label"]), sha256(one["image"])) for one in dataset]


@pytest.fixture(scope="module")
def tfds_folder(tmp_path_factory):
    return Path(in_process("tensorflow", write_tfds, str(tmp_path_factory.mktemp("tfds"))))


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_a_tfds_directory(tfds_folder, place, tmp_path, request):
    url = str(tfds_folder) if place == "disk" else upload(tfds_folder, request.getfixturevalue("bucket_url"))
    adopted = adopt_here(url, tmp_path / "index")
    assert adopted.manifest.options["adopted"]["kind"] == "tfds"
    assert (adopted.manifest.name, adopted.manifest.classes) == ("photos", ("zebra", "ant", "bee"))
    for split in ("train", "test_filtered"):
        samples, _ = read_all(tmp_path / "index", split)
        theirs = in_process("tensorflow", read_tfds, str(tfds_folder), split)
        assert [(key, label, sha) for key, label, sha, _ in samples] == [(Path(k).stem, lb, s) for k, lb, s in theirs]


def test_a_tfds_directory_that_is_not_whole(tfds_folder, tmp_path):
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
    with pytest.raises(UsageError, match=r"a TFDS directory lies below it; pass .*2\.1\.0"):
        adopt_here(tmp_path)


def test_what_a_build_wrote_can_be_adopted_without_its_manifest(finished, tmp_path):
    for name in ("imagenet-webdataset", "imagenet-tfrecord"):
        copy = shutil.copytree(finished(name), tmp_path / name)
        before = pq.read_table(copy / "index" / "train.parquet").to_pylist()
        (copy / "dataset.json").unlink()
        shutil.rmtree(copy / "index")
        adopt_here(copy, digest=True)
        assert read_all(copy)[1] == before


# Which files, and where to


def test_splits_by_name_and_by_pattern(tmp_path):
    for name in ("a-train-0", "a-train-1", "a-val-0", "extra"):
        tar_of(tmp_path / f"{name}.tar", [(f"{name}.jpg", image_of(1))])
    storage = open_linked(str(tmp_path))
    with pytest.raises(UsageError, match=r"train, val, and others of no split by their names \('extra\.tar'\)"):
        find(storage)
    (tmp_path / "extra.tar").unlink()
    assert [(shard.split, shard.name) for shard in find(storage).shards] == [
        ("train", "a-train-0.tar"), ("train", "a-train-1.tar"), ("val", "a-val-0.tar"),
    ]  # fmt: skip
    found = find(storage, splits=[("train", "*-1.tar"), ("dev", "*val*")])
    assert [(shard.split, shard.name) for shard in found.shards] == [("dev", "a-val-0.tar"), ("train", "a-train-1.tar")]
    with pytest.raises(UsageError, match=r"no file for --split test=t\*"):
        find(storage, splits=[("test", "t*")])
    with pytest.raises(UsageError, match=r"--split a and b; expected one of them"):
        find(storage, splits=[("a", "*"), ("b", "*val*")])
    with pytest.raises(UsageError, match=r"split '\.\./x', expected a name"):
        find(storage, splits=[("../x", "*")])


NOTHING = {
    "empty": ([], "nothing is there"),
    "compressed": (["a.tar.gz"], "compressed; only plain tars"),
    "both": (["a.tar", "b.tfrecord"], "webdataset and tfrecord files are there; choose one with --format"),
    "no class folders": (["a.jpg"], "no image in a class folder"),
    "splits beside others": (["train/a/x.jpg", "more/a/x.jpg"], r"folders train beside others \('more'\)"),
}


@pytest.mark.parametrize("case", NOTHING)
def test_what_is_not_clear_is_refused(case, tmp_path):
    names, message = NOTHING[case]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UsageError, match=message):
        adopt_here(tmp_path)


def test_a_second_run_and_overwriting(folder, tmp_path):
    index = tmp_path / "index"
    first = adopt_here(folder, index)
    again = adopt_here(folder, index)
    assert (first.already, again.already, again.manifest) == (False, True, first.manifest)
    (folder / "train" / "ant" / "new.jpg").write_bytes(image_of(77))
    assert adopt_here(folder, index).manifest == first.manifest
    newer = adopt_here(folder, index, overwrite=True)
    assert (newer.manifest.revision, newer.manifest.splits[0].samples) == (2, 28)
    assert newer.manifest.plan_hash != first.manifest.plan_hash
    assert sorted(path.name for path in index.rglob("*") if path.is_file()) == [
        "dataset.json", "train-events.parquet", "train.parquet", "val-events.parquet", "val.parquet",
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"the index of .*photos stands there; choose another --index"):
        adopt_here(tmp_path / "elsewhere", index)


def test_an_interrupted_run_leaves_no_manifest_and_is_taken_up(folder, monkeypatch):
    def interrupt(manifest):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dataprep.adopt.run.manifest_bytes", interrupt)
        with pytest.raises(KeyboardInterrupt):
            adopt_here(folder)
    assert (folder / "index" / "train.parquet").exists()
    assert not (folder / "dataset.json").exists()
    (folder / "train" / "ant" / "new.jpg").write_bytes(image_of(77))  # the index that lies there is of other data now
    assert adopt_here(folder).manifest.splits[0].samples == 28
    assert not (folder / "_build").exists()


def test_two_at_once(tars, tmp_path):
    """As the processes of a training do when they adopt into one cache."""
    with ThreadPoolExecutor(4) as threads:
        adoptions = list(threads.map(lambda _: adopt_here(tars, tmp_path), range(8)))
    assert len({adoption.manifest.plan_hash for adoption in adoptions}) == 1
    assert len(read_all(tmp_path)[0]) == 10


def test_somebody_elses_index_is_not_replaced(folder):
    (folder / "index").mkdir()
    (folder / "index" / "train.parquet").write_bytes(b"mine")
    with pytest.raises(DataprepError, match=r"train\.parquet"):
        adopt_here(folder)
    assert (folder / "index" / "train.parquet").read_bytes() == b"mine"


def test_what_a_build_made_is_left_alone(finished, tmp_path):
    copy = shutil.copytree(finished("imagenet-webdataset"), tmp_path / "built")
    assert adopt_here(copy).already
    with pytest.raises(UsageError, match="a dataset of `dataprep build` stands there"):
        adopt_here(copy, overwrite=True)


# What the other commands make of it


def test_inspect_and_contact_sheet(folder, tars, tmp_path):
    require_report_packages()
    adopt_here(folder)
    adopt_here(tars, tmp_path / "index")
    inspection = inspect_dataset(str(folder))
    assert (inspection.splits[0].samples, inspection.splits[0].unknown_sides) == (27, 27)
    assert inspect_dataset(str(tmp_path / "index")).splits[0].width.smallest == 24
    for url in (folder, tmp_path / "index"):
        storage = open_storage(str(url))
        manifest = read_manifest(storage)
        pictures = contact_sheet(storage, manifest, manifest.splits[0])
        shown = [picture for picture in pictures if picture.jpeg]
        assert len(shown) > len(pictures) // 2
        assert {picture.problem.partition(":")[0] for picture in pictures if not picture.jpeg} <= {"png", "webp"}


def test_on_the_command_line(folder, tmp_path):
    dry = json.loads(dataprep("adopt", folder, "--dry-run", "--json").stdout)
    assert [split["shards"] for split in dry["splits"]] == [1, 1]
    assert not (folder / "dataset.json").exists()
    run = dataprep("adopt", folder, "--index", tmp_path / "index", "--json")
    assert (run.returncode, json.loads(run.stdout)["already"]) == (0, False), run.stderr
    again = dataprep("adopt", folder, "--index", tmp_path / "index")
    assert again.returncode == 0
    assert "is there already" in again.stdout
    assert "train: 27 images in 1 shards" in again.stdout
    assert dataprep("inspect", tmp_path / "index").returncode == 0
    verified = dataprep("verify", tmp_path / "index")
    assert (verified.returncode, verified.stdout) == (2, "")
    assert "written by other tools and adopted" in verified.stderr
    wrong = dataprep("adopt", folder, "--split", "train")
    assert (wrong.returncode, "expected NAME=PATTERN" in wrong.stderr) == (2, True)
    damaged = tmp_path / "tars"
    damaged.mkdir()
    (damaged / "a.tar").write_bytes(b"x" * 2000)
    run = dataprep("adopt", damaged)
    assert (run.returncode, "a.tar: at byte 0: no tar header" in run.stderr) == (2, True), run.stderr
    assert "Traceback" not in run.stderr


# Parts


@examples
@given(st.text(max_size=300))
def test_every_name_becomes_a_key(name):
    key = key_from(name.encode("utf-8", "ignore").decode())
    assert not key or is_key(key)
    assert not key or key_from(key) == key


@examples
@given(st.binary(max_size=200))
def test_hostile_examples_are_format_errors(data):
    try:
        features = features_of(lambda offset, count: data[offset : offset + count], 0, len(data))
    except FormatError:
        return
    assert all(0 <= feature.start <= feature.stop <= len(data) for feature in features.values())
