"""Samples of a run's images."""

import io

import pytest
from PIL import Image

from dataprep.errors import StorageError
from loaders import open_loader
from loaders.diagnosis.sample import SPLIT, mean_image_bytes, write_sample


def encoded(kind, width, height):
    out = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).convert("RGB").save(out, kind)
    return out.getvalue()


IMAGES = [encoded("JPEG", 90, 60), encoded("PNG", 60, 90), encoded("WEBP", 70, 70)]


def test_a_sample_is_a_dataset_of_the_unchanged_images(tmp_path):
    url = write_sample(IMAGES, tmp_path / "sample")
    with open_loader(url, SPLIT, batch_size=3, image_size=32, shuffle=False) as loader:
        (batch,) = loader
    assert batch.mask.all()
    assert mean_image_bytes(url) == sum(map(len, IMAGES)) / len(IMAGES)


def test_a_shrunk_sample_leaves_out_images_that_cannot_be_decoded(tmp_path):
    url = write_sample([*IMAGES, b"no image"], tmp_path / "small", short_side=30)
    with open_loader(url, SPLIT, batch_size=1, image_size=30) as loader:
        assert loader.order.num_samples == len(IMAGES)
        assert next(iter(loader)).mask.all()
    files = [path for path in (tmp_path / "small" / "images").rglob("*") if path.is_file()]
    assert sorted(Image.open(io.BytesIO(file.read_bytes())).size for file in files) == [(30, 30), (30, 45), (45, 30)]
    with pytest.raises(StorageError, match="none of the images could be kept"):
        write_sample([b"no image"], tmp_path / "none", short_side=30)
