"""Samples of a run's images."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dataprep.errors import StorageError
from loaders import open_loader
from loaders.dataset import open_dataset
from loaders.diagnosis.sample import SPLIT, mean_image_bytes, sample_streams, write_sample


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
        entries, storage = loader.index.shard(0), loader.dataset.storage
        places = zip(entries.image_offset.tolist(), entries.image_bytes.tolist(), strict=True)
        images = [storage.read_range(loader.index.file(0, 0), *place) for place in places]
    assert sorted(Image.open(io.BytesIO(image)).size for image in images) == [(30, 30), (30, 45), (45, 30)]
    with pytest.raises(StorageError, match="none of the images could be kept"):
        write_sample([b"no image"], tmp_path / "none", short_side=30)


@pytest.mark.parametrize("is_built", [True, False])
def test_the_index_of_a_sample_knows_what_that_of_the_dataset_knows(tmp_path, is_built):
    """Without the sizes a loader reads every image's header, without checksums it does not check its bytes."""
    url = write_sample([*IMAGES, b"no image"], tmp_path / "sample", is_built=is_built)
    entries = open_dataset(url, SPLIT).open_index(1.0).shard(0)
    assert entries.height.tolist() == ([60, 90, 70, 0] if is_built else [0] * 4)
    assert entries.width.tolist() == ([90, 60, 70, 0] if is_built else [0] * 4)
    assert (entries.image_crc32c is not None) == is_built


def test_a_sample_has_as_many_images_in_a_stream_as_the_split():
    assert sample_streams(192, samples=1000, of_sample=256) == 49
    assert sample_streams(192, samples=1_281_167, of_sample=512) == 1
    assert sample_streams(192, samples=100, of_sample=256) == 192


@given(num_streams=st.integers(1, 1000), samples=st.integers(1, 10**9), of_sample=st.integers(1, 1000))
def test_a_sample_never_has_more_streams_than_the_split_and_no_more_images_in_each(num_streams, samples, of_sample):
    found = sample_streams(num_streams, samples=samples, of_sample=of_sample)
    assert 1 <= found <= num_streams
    exact = num_streams * of_sample / samples
    assert abs(found - exact) <= 0.5 or found == (1 if exact < 1 else num_streams)
