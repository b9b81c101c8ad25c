"""timm's augmentation through `transform`, and captions through `fields`: the same for any number of workers."""

import pickle
import random
import subprocess
import sys

import numpy as np
import pytest

from dataprep.errors import UsageError
from loaders import open_loader
from loaders.decode.pil_transform import PilTransform
from tests.support.builds import dataprep
from tests.support.loading import load
from tests.support.on_use import on_use

rand_augment_transform = on_use("timm.data.auto_augment:rand_augment_transform")
ShardWriter = on_use("webdataset:ShardWriter")
WRITE_TFRECORD = """
import pickle, sys
import tensorflow as tf
with tf.io.TFRecordWriter(sys.argv[1]) as writer:
    for key, image, caption in pickle.load(sys.stdin.buffer):
        values = {"key": key.encode(), "jpg": image, "caption": caption.encode()}
        features = {
            name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value])) for name, value in values.items()
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        writer.write(example.SerializeToString())
"""
"""TensorFlow has a process of its own: it must not meet torch_xla."""
SETTINGS = {"batch_size": 12, "image_size": 64}


def test_timms_augmentation_is_the_same_for_any_number_of_workers(dataset):
    """Threads, and one process, which imports timm for seconds; the soak has 1, 2 and 4."""
    augmented_alike(dataset("webdataset"), processes=(1,))


def test_timms_transform_itself_is_refused_before_anything_is_opened():
    wrapped = r"got RandAugment of timm; wrap it: loaders\.PilTransform\(transform\)$"
    with pytest.raises(UsageError, match=rf"^transform must be a function .*, {wrapped}"):
        open_loader("nowhere", batch_size=8, transform=rand_augment_transform("rand-m9-mstd0.5", {}))


def augmented_alike(url: object, *, processes: tuple[int, ...]) -> None:
    settings = {**SETTINGS, "transform": PilTransform(rand_augment_transform("rand-m9-mstd0.5-inc1", {}))}
    one = load(url, 8, **settings, threads=1)
    assert [digest for _, digest in one] != [digest for _, digest in load(url, 8, **SETTINGS)]
    assert load(url, 8, **settings, threads=4) == one
    for number in processes:
        assert load(url, 8, **settings, threads=1, processes=number) == one


def test_the_global_generators_are_left_as_they_were():
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    transform = PilTransform(rand_augment_transform("rand-m9", {}))
    image_HWC = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)
    first = transform(image_HWC, np.random.default_rng(7))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert (transform(image_HWC, np.random.default_rng(7)) == first).all()


@pytest.fixture(params=["webdataset", pytest.param("tfrecord", marks=pytest.mark.long)])
def captioned(request, dataset, tmp_path):
    """Thirty images with captions, as other tools write them."""
    with open_loader(str(dataset("imagefolder")), batch_size=1) as loader:
        root = loader.dataset.storage
    files = [info.name for info in root.list("train/")][:30]
    samples = [(f"{number:05d}", root.read(name), f"caption {number} – ☃") for number, name in enumerate(files)]
    if request.param == "webdataset":
        with ShardWriter(str(tmp_path / "%05d.tar"), maxcount=10, verbose=0) as writer:
            for key, image, caption in samples:
                writer.write({"__key__": key, "jpg": image, "txt": caption})
    else:
        program = [sys.executable, "-c", WRITE_TFRECORD, str(tmp_path / "00000.tfrecord")]
        subprocess.run(program, input=pickle.dumps(samples), check=True)
    run = dataprep("adopt", tmp_path)
    assert run.returncode == 0, run.stderr
    return tmp_path, {key: caption for key, _, caption in samples}


def test_captions_are_delivered_with_their_images(captioned):
    url, captions = captioned
    for processes in (0, 2):
        with open_loader(str(url), batch_size=10, image_size=32, fields=("caption",), processes=processes) as loader:
            found = {}
            for batch in loader:
                found |= dict(zip(batch.keys, batch.fields["caption"], strict=True))
        assert {key.rpartition("/")[2]: caption for key, caption in found.items()} == captions
