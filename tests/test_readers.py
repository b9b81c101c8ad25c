"""Readers of training programs find in a build what was written: its samples, their labels and their number."""

from __future__ import annotations

import hashlib
import io
import random
from collections import Counter
from itertools import product

import pytest
from PIL import Image

from dataprep.builder.cards import write_cards
from dataprep.dataset.manifest import read_manifest
from dataprep.demo.make import write_demo
from dataprep.storage import open_storage
from tests.support.builds import FORMATS, build_warm, dataprep, succeeds
from tests.support.interop import (
    read_by_name_with_tfds,
    read_card_with_hf_datasets,
    read_with_timm,
    read_with_webdataset,
)
from tests.support.own_data import build_own, class_folders, write_files


def noise_of(seed):
    """A picture of about 100 kB."""
    stream = io.BytesIO()
    Image.frombytes("RGB", (300, 300), random.Random(seed).randbytes(270_000)).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def digest_of(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    """A build of cats and dogs in each format, with its cards."""
    source = class_folders(tmp_path_factory.mktemp("pets"))
    roots = {}
    for fmt in FORMATS:
        root = tmp_path_factory.mktemp(fmt) / ("pets/1.0.0" if fmt == "tfrecord" else "pets")
        manifest = build_own(source, root, fmt)
        write_cards(open_storage(str(root)), manifest)
        roots[fmt] = root
    return roots


@pytest.fixture(scope="module")
def due(pets):
    """By split, label and digest of the pixels of every picture."""
    found = {}
    for split in ("train", "val"):
        files = sorted((pets["imagefolder"] / split).glob("*/*.jpg"))
        pixels = [(("cats", "dogs").index(file.parent.name), Image.open(file).convert("RGB")) for file in files]
        found[split] = sorted((label, digest_of(image.tobytes())) for label, image in pixels)
    return found


def test_workers_of_webdataset_share_a_hundred_pictures(tmp_path):
    """webdataset wants a shard for each worker."""
    noise = {f"{number}.jpg": noise_of(number) for number in range(100)}
    write_files(tmp_path / "pictures", noise)
    manifest = build_own(tmp_path / "pictures", tmp_path / "out", options={"num_shards": None})
    assert [len(split.shards) for split in manifest.splits] == [sum(map(len, noise.values())) // 2**20]
    shards = [str(path) for path in sorted((tmp_path / "out").glob("train/*.tar"))]
    found = read_with_webdataset(shards, workers=2)
    assert sorted(key for key, _, _ in found) == sorted(name.removesuffix(".jpg") for name in noise)


@pytest.mark.parametrize(("reader", "fmt"), [("wds/", "webdataset"), ("tfds/pets", "tfrecord"), ("", "imagefolder")])
def test_timm_reads_every_format_with_its_labels_and_counts(pets, due, reader, fmt):
    root = pets[fmt].parents[1] if fmt == "tfrecord" else pets[fmt]
    for (split, expected), workers in product(due.items(), (0, 2) if fmt == "webdataset" else (0,)):
        length, found = read_with_timm(reader, root, split, workers=workers)
        assert (length, sorted(found)) == (len(expected), expected)


def test_timm_reads_tars_and_folders_through_hugging_face(pets, due, tmp_path):
    for split, expected in due.items():
        for fmt, keys in (("webdataset", {"input_key": "jpg", "target_key": "cls"}), ("imagefolder", {})):
            length, found = read_with_timm(f"hfds/{pets[fmt]}", tmp_path, split, **keys)
            assert (length, sorted(found)) == (len(expected), expected)


def test_tfds_loads_imagenet2012_by_its_name_and_splits(tmp_path):
    """TFDS takes features and classes of names that it knows from its own code."""
    names = ("--tfds-name", "imagenet2012", "--tfds-version", "5.1.0", "--val-name", "validation")
    output, folder = tmp_path / "tfds/imagenet2012/5.1.0", tmp_path / "folder"
    fake = ("imagenet-fake", "--images", 52, "--source", tmp_path / "fake", "--workers", 1, "--output")
    succeeds("build", *fake, output, "--format", "tfrecord", *names)
    succeeds("build", *fake, folder, "--format", "imagefolder")
    classes = read_manifest(open_storage(str(folder))).classes
    for split, tfds_split in (("train", "train"), ("val", "validation")):
        files = sorted((folder / split).glob("*/*.JPEG"))
        expected = [(file.name, classes.index(file.parent.name), digest_of(file.read_bytes())) for file in files]
        found = read_by_name_with_tfds("imagenet2012", tmp_path / "tfds", tfds_split)
        assert sorted(found) == sorted(expected)
    assert succeeds("verify", output, "--deep", "--workers", 1)
    as_folder = dataprep("convert", output, "--output", tmp_path / "again", "--format", "imagefolder", "--workers", 1)
    assert as_folder.returncode == 2 and "metadata.jsonl has a file_name of its own" in as_folder.stderr


def test_hugging_face_loads_all_repeats_of_coco_by_the_card(tmp_path):
    """Without the card it would follow no link, and take COCO's folders for classes."""
    write_demo("coco", tmp_path / "coco", images=20, odd=False)
    output = tmp_path / "out"
    build_warm("coco-dup5", tmp_path / "coco", output, "imagefolder", "--repeat", "physical", "--split", "train")
    found = read_card_with_hf_datasets(output)["train"]
    files = Counter(digest_of(path.read_bytes()) for path in (output / "images").rglob("*.jpg"))
    assert Counter(row["image"]["sha256"] for row in found) == {digest: 5 * count for digest, count in files.items()}
    assert files.total() == 20 and found[0].keys() == {"image"}
