"""webdataset, Hugging Face datasets and TFDS read a LAION build: the same images and captions, each as its own
documentation says."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import tarfile
import threading

import pyarrow.parquet as pq
import pytest
from PIL import Image

from dataprep.builder.images import ImagePolicy
from dataprep.demo.make import demo_server, write_demo_laion
from tests.support.builds import dataprep
from tests.support.converting import converted
from tests.support.interop import (
    NO_LABEL,
    read_captions_with_tfds,
    read_with_open_clip,
    read_with_webdataset,
    train_with_open_clip,
)
from tests.support.laion_builds import FAST, LOOPBACK, PATIENT, laion_arguments

ROWS, ROWS_PER_SHARD = 60, 25


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The demo's folder, what becomes of its rows, and by format the root of a build."""
    folder = tmp_path_factory.mktemp("demo")
    roots = {fmt: tmp_path_factory.mktemp(fmt) / "out" for fmt in ("webdataset", "tfrecord")}
    with demo_server(folder, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        expected = write_demo_laion(folder, f"http://127.0.0.1:{server.server_port}", ROWS)
        for fmt, root in roots.items():
            fixed = ("--rows-per-shard", ROWS_PER_SHARD, *LOOPBACK, *FAST, *PATIENT)
            run = dataprep(*laion_arguments(folder / "laion.parquet", root, fmt, *fixed))
            assert run.returncode == 0, run.stderr
        server.shutdown()
    return folder, expected, roots


def shards_of(root):
    return [str(path) for path in sorted(root.glob("train/*.tar"))]


def members_of(root):
    """Content by name of all tars."""
    members = {}
    for path in shards_of(root):
        with tarfile.open(path) as tar:
            members |= {member.name: tar.extractfile(member).read() for member in tar}
    return members


def samples_of(root):
    """(key, no label, digest) as the readers give them, from the tars."""
    members = members_of(root)
    images = sorted(name for name in members if name.endswith(".jpg"))
    return [(name.removesuffix(".jpg"), NO_LABEL, hashlib.sha256(members[name]).hexdigest()) for name in images]


def captions_of(folder):
    return pq.read_table(folder / "laion.parquet").column("TEXT").to_pylist()


def test_webdataset_reads_images_and_captions(built):
    _, expected, roots = built
    samples = samples_of(roots["webdataset"])
    assert read_with_webdataset(shards_of(roots["webdataset"])) == samples
    assert len(samples) == sum(end.status == "success" for end in expected)


def test_tfds_reads_images_and_captions_as_clipas_reader_does(built):
    """The features `jpg` and `txt`, and the same samples as in the tars, in the same order."""
    folder, expected, roots = built
    lengths, samples = read_captions_with_tfds(roots["tfrecord"])
    members = members_of(roots["webdataset"])
    tars = samples_of(roots["webdataset"])
    assert [(sample["key"], sample["sha256 of jpg"]) for sample in samples] == [
        (key, digest) for key, _, digest in tars
    ]
    assert len(lengths) == -(-ROWS // ROWS_PER_SHARD) and sum(lengths) == len(samples)
    captions = [text or "" for text, end in zip(captions_of(folder), expected, strict=True) if end.status == "success"]
    assert [sample["txt"] for sample in samples] == captions == [sample["caption"] for sample in samples]
    for sample in samples:
        image = Image.open(io.BytesIO(members[f"{sample['key']}.jpg"]))
        assert sample["shape"] == [image.height, image.width, 3] == [sample["height"], sample["width"], 3]
        assert min(image.size) <= 256


def test_open_clip_takes_every_sample_of_the_build_and_of_its_conversion(built, tmp_path):
    folder, expected, roots = built
    root = roots["webdataset"]
    converted(root, tmp_path / "out", images=ImagePolicy(short_side=64), how={"all_fields": True})
    captions = [text or "" for text, end in zip(captions_of(folder), expected, strict=True) if end.status == "success"]
    for shards in (shards_of(root), shards_of(tmp_path / "out")):
        assert sorted(text for _, text in read_with_open_clip(shards, len(captions))) == sorted(captions)


def test_open_clips_own_program_trains_on_the_shards(built, tmp_path):
    _, _, roots = built
    shards, count = shards_of(roots["webdataset"]), len(samples_of(roots["webdataset"]))
    options = ("--batch-size", "8", "--epochs", "3", "--lr", "0.003")
    log = train_with_open_clip(shards, count, tmp_path, *options)
    losses = [float(loss) for loss in re.findall(r"Train Epoch: .* Loss: ([\d.]+)", log)]
    assert len(losses) == 3 * math.ceil(count / 8)
    assert losses[-1] < losses[0]
    assert (tmp_path / "run/checkpoints/epoch_3.pt").exists()


def test_members_of_a_tar_have_the_names_and_fields_of_img2dataset(built):
    _, _, roots = built
    members = members_of(roots["webdataset"])
    for key, _, _ in samples_of(roots["webdataset"]):
        fields = json.loads(members[f"{key}.json"])
        assert fields["key"] == key and fields["status"] == "success"
        assert members[f"{key}.txt"].decode() == fields["caption"]
