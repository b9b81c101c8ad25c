"""webdataset, Hugging Face datasets, TFDS and torchvision read what we write: the same samples, the same bytes."""

import hashlib
import io
from pathlib import Path

import pytest
import skimage.data
import sklearn.datasets
from PIL import Image

from dataprep.formats import FORMATS
from dataprep.formats.base import DatasetInfo
from dataprep.formats.imagefolder import image_file
from dataprep.records import NO_LABEL, Sample
from tests.support.interop import (
    read_with_hf_datasets,
    read_with_tfds,
    read_with_torchvision,
    read_with_webdataset,
)

CLASSES = ("n01440764", "n01443537", "n02085620", "n15075141")
SHARD_ENDS = (25, 26, 26, 60)
"""Four shards, one of a single sample and one of none."""


def photographs():
    """Sixty JPEG files: crops of ten real photographs in several shapes and qualities."""
    installed = Path(skimage.data.__file__).parent
    names = ("astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "ihc.png", "motorcycle_left.png")
    sources = [installed / name for name in (*names, "retina.jpg", "rocket.jpg")]
    sources += [Path(path) for path in sklearn.datasets.load_sample_images().filenames]
    for i in range(60):
        with Image.open(sources[i % len(sources)]) as photograph:
            left, top = 10 * (i // 10), 5 * (i // 10)
            crop = photograph.convert("RGB").crop((left, top, left + 120 + i, top + 90 + i % 7))
        buffer = io.BytesIO()
        crop.save(buffer, "JPEG", quality=70 + i % 25)
        yield buffer.getvalue(), crop.size


def labelled_samples():
    return [
        Sample(f"{CLASSES[i % 4]}/{CLASSES[i % 4]}_{i}", image, i % 4, CLASSES[i % 4], height, width, 1)
        for i, (image, (width, height)) in enumerate(photographs())
    ]


def plain_samples():
    return [
        Sample(f"{('train2017', 'unlabeled2017')[i % 2]}/{i:012d}", image, NO_LABEL, "", height, width, 1)
        for i, (image, (width, height)) in enumerate(photographs())
    ]


def write_dataset(root, format_name, samples, classes):
    """A dataset with one split, `train`; the paths of its shards."""
    shard_format = FORMATS[format_name]
    if shard_format is None:
        return write_image_folder(root, samples)
    starts = (0, *SHARD_ENDS[:-1])
    paths = []
    for index, (start, end) in enumerate(zip(starts, SHARD_ENDS, strict=True)):
        path = root / shard_format.shard_file("real-photographs", "train", index, len(SHARD_ENDS))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            writer = shard_format.open_writer(stream, has_classes=bool(classes))
            for sample in samples[start:end]:
                writer.write(sample)
            writer.close()
        paths.append(path)
    info = DatasetInfo(
        name="real-photographs",
        description="Crops of photographs",
        citation="",
        licence="CC0",
        classes=classes,
        shard_samples={"train": tuple(end - start for start, end in zip(starts, SHARD_ENDS, strict=True))},
        split_bytes={"train": sum(path.stat().st_size for path in paths)},
    )
    for name, data in shard_format.metadata_files(info).items():
        (root / name).write_bytes(data)
    return paths


def write_image_folder(root, samples):
    paths = [root / image_file("train", sample.key, sample.class_name, ".jpg") for sample in samples]
    for path, sample in zip(paths, samples, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sample.image)
    return paths


@pytest.fixture(scope="module", params=["labelled", "plain"])
def dataset(request, tmp_path_factory):
    """The samples, the classes, and by format the root and its shards."""
    samples, classes = (labelled_samples(), CLASSES) if request.param == "labelled" else (plain_samples(), ())
    written = {}
    for format_name in FORMATS:
        root = tmp_path_factory.mktemp(format_name)
        written[format_name] = (root, write_dataset(root, format_name, samples, classes))
    expected = [(sample.key, sample.label, hashlib.sha256(sample.image).hexdigest()) for sample in samples]
    return expected, classes, written


def test_webdataset_yields_what_was_written(dataset):
    expected, _, written = dataset
    _, shards = written["webdataset"]
    assert read_with_webdataset([str(path) for path in shards]) == expected


def test_webdataset_finds_the_shards_by_braces(dataset):
    expected, _, written = dataset
    root, _ = written["webdataset"]
    pattern = root / "train/real-photographs-train-{00000..00003}-of-00004.tar"
    assert read_with_webdataset(str(pattern)) == expected


def test_hugging_face_datasets_yields_what_was_written(dataset):
    expected, _, written = dataset
    _, shards = written["webdataset"]
    assert read_with_hf_datasets([str(path) for path in shards]) == expected


def test_tfds_yields_what_was_written(dataset):
    expected, _, written = dataset
    root, _ = written["tfrecord"]
    assert read_with_tfds(root) == expected


def test_torchvision_yields_what_was_written(dataset):
    expected, classes, written = dataset
    root, _ = written["imagefolder"]
    assert sorted(read_with_torchvision(root / "train", has_classes=bool(classes))) == sorted(expected)


def test_the_samples_are_sixty_different_photographs(dataset):
    expected, _, _ = dataset
    assert len({key for key, _, _ in expected}) == len({sha256 for _, _, sha256 in expected}) == 60
