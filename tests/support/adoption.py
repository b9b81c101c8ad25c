"""Data made by other libraries, adopted, and read through the index."""

from __future__ import annotations

import hashlib
import io
import random
import tarfile
from collections import Counter
from pathlib import Path

from PIL import Image

from dataprep.adoption import AdoptRequest, adopt
from dataprep.commands.adopt import AdoptProgress
from dataprep.dataset.adopted import open_linked, open_named_data
from dataprep.dataset.index import open_index
from dataprep.dataset.manifest import read_manifest
from dataprep.formats.base import is_key
from dataprep.storage import open_storage
from dataprep.storage.checksums import crc32c_of

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
    data, table = open_named_data(storage, manifest), open_index(storage, found)
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


def tar_of(path, members):
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def read_tfrecords(folder, image, key):
    import tensorflow as tf

    files = sorted(str(path) for path in Path(folder).glob("*.tfrecord*"))
    schema = {image: tf.io.FixedLenFeature([], tf.string), key: tf.io.FixedLenFeature([], tf.string)}
    read = []
    for record in tf.data.TFRecordDataset(files).as_numpy_iterator():
        example = tf.io.parse_single_example(record, schema)
        read.append((example[key].numpy().decode(), -1, sha256(example[image].numpy())))
    return read


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
