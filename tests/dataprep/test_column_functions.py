"""Functions for columns: how workers find them, and which values they may return."""

import io
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFilter
from scipy.fft import dct
from scipy.ndimage import laplace

from dataprep import column_functions
from dataprep.column_functions import Columns, Samples, conformed, decoded, place_of
from dataprep.dataset.column_files import ColumnType
from dataprep.demo.images import DemoImage, make_image
from dataprep.errors import UsageError
from tests.support import mapped

HERE = "tests.support.mapped"


def test_images_of_other_formats_are_decoded():
    picture = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    sink = io.BytesIO()
    Image.fromarray(picture).save(sink, "PNG")
    np.testing.assert_array_equal(decoded(sink.getvalue()), picture)
    sink = io.BytesIO()
    Image.new("CMYK", (6, 4), (0, 255, 255, 0)).save(sink, "JPEG")
    assert decoded(sink.getvalue()).shape == (4, 6, 3)
    assert decoded(sink.getvalue(), 2).shape == (2, 2, 3)


@pytest.mark.parametrize("function", [lambda samples: samples.keys, Samples.__len__])
def test_a_function_that_workers_cannot_import_is_refused(function):
    with pytest.raises(UsageError, match="workers import functions"):
        place_of(function)
    assert place_of(mapped.sizes) == f"{HERE}:sizes"


@pytest.mark.parametrize("given", [{"images": "png"}, {"size": 0}, {"batch": 0}, {"fields": "caption"}, {"returns": 1}])
def test_a_function_that_takes_what_there_is_not_is_refused(given):
    with pytest.raises(UsageError, match="expected images rgb, bytes or none"):
        Columns(**given)


@given(st.lists(st.integers(-300, 300), min_size=1, max_size=5), st.sampled_from(["int8", "uint8", "int16", "float32"]))
def test_numbers_keep_their_values_or_are_refused(numbers, dtype):
    kind, keys = ColumnType("array", dtype), [str(number) for number in numbers]
    info = np.iinfo(dtype) if "int" in dtype else None
    fits = info is None or all(info.min <= number <= info.max for number in numbers)
    try:
        found = conformed(kind, np.array(numbers), keys, nan=False)
    except ValueError:
        assert not fits
    else:
        assert fits
        assert found.tolist() == numbers


# Functions of pictures


def phash(images):
    return column_functions.phash(SimpleNamespace(images=images))


def sharpness(images):
    return column_functions.sharpness(SimpleNamespace(images=images))


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.fixture(scope="module")
def pictures():
    """A picture of each of the demo's photographs."""
    specs = [DemoImage("hashes", seed=1, index=number, photograph=number) for number in range(10)]
    return [pixels(make_image(spec).file) for spec in specs]


def copies(picture: np.ndarray) -> dict[str, np.ndarray]:
    """A picture as it comes back from the web: smaller, saved again, and cut at the edges."""
    image = Image.fromarray(picture)
    width, height = image.size
    coded = io.BytesIO()
    image.save(coded, "JPEG", quality=40)
    cut = image.crop((width // 50, height // 50, width - width // 50, height - height // 50))
    smaller = image.resize((width * 2 // 5, height * 2 // 5), Image.Resampling.BICUBIC)
    return {"resized": np.asarray(smaller), "re-coded": pixels(coded.getvalue()), "cropped": np.asarray(cut)}


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
