"""Every image is decoded as if it were the only one, whatever was decoded before it, and safely without its tables."""

import io
import shutil

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from dataprep.builder.images import CheckedImage, ImagePolicy, check_image
from dataprep.dataset.records import Event
from loaders.decode.crop import View
from loaders.decode.decoders import open_decoder
from tests.loaders.decode.test_decoders import BACKENDS, by_pillow, needs_extension, picture
from tests.support.fuzz_jpeg import run_sanitised
from tests.support.jpeg_parts import (
    ADOBE,
    HUFFMAN_TABLES,
    QUANTISATION_TABLES,
    RESTART_INTERVAL,
    with_empty_huffman_tables,
    without,
)

SIDE = 96
COMPLETE = View(0, 0, SIDE, SIDE, SIDE, SIDE, 0, 0, 0)


def cmyk(image):
    data = io.BytesIO()
    Image.fromarray(image).convert("CMYK").save(data, "JPEG", quality=20)
    return data.getvalue()


PICTURE = picture(np.random.default_rng(3), SIDE, SIDE)
OTHERS = {
    "own tables": by_pillow(picture(np.random.default_rng(4), SIDE, SIDE), optimize=True, quality=20),
    "progressive": by_pillow(picture(np.random.default_rng(5), SIDE, SIDE), progressive=True, quality=20),
    "restart interval": by_pillow(picture(np.random.default_rng(6), SIDE, SIDE), restart_marker_blocks=1),
    "Adobe RGB": by_pillow(picture(np.random.default_rng(7), SIDE, SIDE), keep_rgb=True, quality=30),
    "CMYK": cmyk(PICTURE),
    "cut": by_pillow(picture(np.random.default_rng(8), SIDE, SIDE), optimize=True)[:900],
}

STANDARD = by_pillow(PICTURE, quality=90)
MOTION_JPEG = without(STANDARD, HUFFMAN_TABLES)


def decode(backend, *images):
    out = np.full((len(images), SIDE, SIDE, 3), 7, np.uint8)
    reasons = open_decoder("bicubic", backend).decode_many(images, [COMPLETE] * len(images), out, range(len(images)))
    return out[-1], reasons[-1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("before", OTHERS)
def test_motion_jpeg_frame_is_decoded_with_the_standard_tables_after_any_image(backend, before):
    found, reason = decode(backend, OTHERS[before], MOTION_JPEG)
    assert reason is None
    assert np.array_equal(found, np.asarray(Image.open(io.BytesIO(STANDARD)).convert("RGB")))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("before", OTHERS)
def test_image_without_quantisation_tables_is_an_error_after_any_image(backend, before):
    found, reason = decode(backend, OTHERS[before], without(STANDARD, QUANTISATION_TABLES))
    assert "uantization table" in reason
    assert not found.any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("before", OTHERS)
@pytest.mark.parametrize("marker", [HUFFMAN_TABLES, QUANTISATION_TABLES, RESTART_INTERVAL, ADOBE])
def test_each_image_is_decoded_as_if_alone_whatever_it_lacks(backend, before, marker):
    for data in OTHERS.values():
        image = without(data, marker)
        alone, alone_reason = decode(backend, image)
        after, after_reason = decode(backend, OTHERS[before], image)
        assert after_reason == alone_reason
        assert np.array_equal(after, alone)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("missing", [HUFFMAN_TABLES, QUANTISATION_TABLES])
def test_a_build_accepts_exactly_the_images_that_the_loader_decodes(backend, missing):
    """The check decodes in one process many images, too."""
    image = without(STANDARD, missing)
    for before in OTHERS.values():
        check_image("before", before, ImagePolicy())
        checked = check_image("image", image, ImagePolicy())
        accepted = isinstance(checked, CheckedImage)
        assert accepted == (missing == HUFFMAN_TABLES)
        assert accepted or (isinstance(checked, Event) and checked.kind == "rejected")
        found, reason = decode(backend, before, image)
        assert (reason is None) == accepted
        if accepted:
            assert checked.image == image
            assert np.array_equal(found, simplejpeg.decode_jpeg(image))


@needs_extension
@pytest.mark.parametrize("number", range(4))
def test_empty_huffman_tables_neither_crash_nor_make_a_picture_that_libjpeg_does_not(number):
    image = with_empty_huffman_tables([STANDARD, OTHERS["own tables"], OTHERS["Adobe RGB"], OTHERS["CMYK"]][number])
    found, reason = decode("extension", image)
    again, again_reason = decode("extension", STANDARD, image)
    assert (again_reason, again.tobytes()) == (reason, found.tobytes())


@needs_extension
@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
def test_the_extension_reads_and_writes_only_its_own_memory(tmp_path):
    """Built with sanitizers: empty tables, images that lack segments, and mutated ones, in sequences."""
    assert "400 images" in run_sanitised(tmp_path, images=400, seed=1)


def saved(image, kind="PNG", **options):
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


GREY_16 = Image.fromarray(np.linspace(0, 65_535, SIDE * SIDE).astype(np.uint16).reshape(SIDE, SIDE))
CLEAR = Image.fromarray(np.dstack([PICTURE, PICTURE[..., :1] // 2]), "RGBA")
PICTURES = {
    "16 bits": saved(GREY_16),
    "16 bits with a colour key": saved(GREY_16, transparency=int(np.asarray(GREY_16)[5, 5])),
    "transparent": saved(CLEAR),
    "palette with a transparent colour": saved(Image.fromarray(PICTURE).quantize(8), transparency=3),
    "GIF with a transparent colour": saved(Image.fromarray(PICTURE).quantize(8), "GIF", transparency=3),
    "bitmap of alpha 0": saved(Image.fromarray(np.dstack([PICTURE, 0 * PICTURE[..., :1]]), "RGBA"), "BMP"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PICTURES)
def test_any_picture_has_the_pixels_that_a_build_gives_it(backend, name):
    """A build's are JPEG of quality 100, which is a few levels off."""
    checked = check_image("k", PICTURES[name], ImagePolicy())
    found, reason = decode(backend, PICTURES[name])
    assert reason is None
    built = simplejpeg.decode_jpeg(checked.image).astype(int)
    assert np.abs(found - built).mean() < 1.5
    assert 10 < found.mean() < 245


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_that_ends_early_is_reported(backend, name):
    data = PICTURES[name]
    for cut in (data[: len(data) * 2 // 3], data[: len(data) * 2 // 3].ljust(len(data), b"\0"), data[:-1]):
        found, reason = decode(backend, cut)
        if name.startswith("bitmap") and cut.endswith(b"\0") and len(cut) == len(data):
            continue  # zeros are pixels like any others
        assert reason, cut[-20:]
        assert not found.any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [(2000, 1), (1, 2000), (4000, 2)])
def test_a_long_thin_image_is_scaled_by_every_decoder(backend, size):
    """To a short side of 256 it would have 131 million pixels, of which only the middle is computed."""
    image = Image.fromarray(picture(np.random.default_rng(1), size[1], size[0]))
    scale = 256 // min(size)
    width, height = (side * scale for side in size)
    view = View(0, 0, size[1], size[0], height, width, (height - 224) // 2, (width - 224) // 2, False)
    left, top = (max(0, side // 2 - 10) for side in size)
    middle = image.crop((left, top, min(size[0], left + 20), min(size[1], top + 20)))
    place = (view.out_left - left * scale, view.out_top - top * scale)
    for interpolation in ("bilinear", "bicubic"):
        scaled = middle.resize(
            (middle.width * scale, middle.height * scale), getattr(Image.Resampling, interpolation.upper())
        )
        expected = np.asarray(scaled.crop((*place, place[0] + 224, place[1] + 224))).astype(int)
        for kind, most in (("PNG", 2), ("JPEG", 40)):
            out = np.zeros((1, 224, 224, 3), np.uint8)
            data = saved(image, kind, quality=100, subsampling=0)
            assert open_decoder(interpolation, backend).decode_many([data], [view], out, [0]) == [None]
            assert np.abs(out[0] - expected).max() <= most, (kind, interpolation)
