"""Hashes and sharpness are what their sources say, and copies of a picture are near each other."""

from __future__ import annotations

import io
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageFilter
from scipy.fft import dct
from scipy.ndimage import laplace

from dataprep import image_functions
from dataprep.demo.images import DemoImage, make_image


def phash(images):
    return image_functions.phash(SimpleNamespace(images=images))


def sharpness(images):
    return image_functions.sharpness(SimpleNamespace(images=images))


def decoded(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.fixture(scope="module")
def pictures():
    """A picture of each of the demo's photographs."""
    specs = [DemoImage("hashes", seed=1, index=number, photograph=number) for number in range(10)]
    return [decoded(make_image(spec).file) for spec in specs]


def copies(picture: np.ndarray) -> dict[str, np.ndarray]:
    """A picture as it comes back from the web: smaller, saved again, and cut at the edges."""
    image = Image.fromarray(picture)
    width, height = image.size
    coded = io.BytesIO()
    image.save(coded, "JPEG", quality=40)
    cut = image.crop((width // 50, height // 50, width - width // 50, height - height // 50))
    smaller = image.resize((width * 2 // 5, height * 2 // 5), Image.Resampling.BICUBIC)
    return {"resized": np.asarray(smaller), "re-coded": decoded(coded.getvalue()), "cropped": np.asarray(cut)}


def distance(one, other) -> int:
    return int(np.bitwise_count(phash([one])[0] ^ phash([other])[0]))


def test_a_hash_has_the_bits_of_the_cosine_transform_above_their_median(pictures):
    found = phash(pictures)
    assert (found.dtype, found.shape) == (np.uint64, (10,))
    for picture, bits in zip(pictures, found, strict=True):
        small = Image.fromarray(picture).convert("L").resize((32, 32), Image.Resampling.LANCZOS)
        lowest = dct(dct(np.asarray(small, float), axis=0), axis=1)[:8, :8].ravel()
        expected = "".join(str(int(each > np.median(lowest))) for each in lowest)
        assert f"{bits:064b}" == expected


def test_copies_differ_in_few_bits_and_other_pictures_in_many(pictures):
    far = [distance(one, other) for one, other in itertools.combinations(pictures, 2)]
    near = {name: [] for name in copies(pictures[0])}
    for picture in pictures:
        for name, copy in copies(picture).items():
            near[name].append(distance(picture, copy))
    assert max(near["resized"] + near["re-coded"]) <= 4
    assert max(near["cropped"]) < min(far)
    assert np.mean(far) == pytest.approx(32, abs=4)


def test_a_picture_of_one_colour_has_one_hash_for_all_colours():
    flat = [np.full((40, 60, 3), value, np.uint8) for value in (9, 128, 255)]
    assert phash(flat).tolist() == [1 << 63] * 3


def test_sharpness_is_the_variance_of_the_laplacian_and_falls_with_blur(pictures):
    found = sharpness(pictures)
    assert (found.dtype, found.shape) == (np.float32, (10,))
    for picture, value in zip(pictures, found, strict=True):
        grey = np.asarray(Image.fromarray(picture).convert("L"), float)
        assert value == pytest.approx(laplace(grey, mode="mirror").var())
        blurred = np.asarray(Image.fromarray(picture).filter(ImageFilter.GaussianBlur(2)))
        assert sharpness([blurred])[0] < value / 3


@pytest.mark.parametrize("function", [phash, sharpness])
def test_a_picture_of_one_pixel_and_no_picture_have_values(function):
    assert np.isfinite(function([np.zeros((1, 1, 3), np.uint8)])).all()
    assert function([]).shape == (0,)
