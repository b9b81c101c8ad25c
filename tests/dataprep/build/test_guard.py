"""Nothing of a hostile image is decoded before its size, scans and format are known."""

import io

import numpy as np
import pytest
from PIL import Image

from dataprep.build.guard import UnusableImageError, load_image, open_image, refuse_scans, refuse_size
from dataprep.formats.image_limits import MAX_PIXELS, MAX_SCANS


def encoded(fmt: str, side: int = 64) -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, fmt)
    return buffer.getvalue()


def fault_of(call, *arguments) -> str:
    with pytest.raises(UnusableImageError) as caught:
        call(*arguments)
    return caught.value.fault


def test_images_of_too_many_or_no_pixels_are_refused():
    refuse_size(10_000, MAX_PIXELS // 10_000)
    assert fault_of(refuse_size, 10_001, MAX_PIXELS // 10_000) == "too-large"
    assert fault_of(refuse_size, 0, 5) == "no-pixels"


def test_images_of_too_many_scans_are_refused():
    refuse_scans(b"\xff\xda" * MAX_SCANS, 8, 8)
    assert fault_of(refuse_scans, b"\xff\xda" * (MAX_SCANS + 1), 8, 8) == "too-many-scans"
    assert fault_of(refuse_scans, b"\xff\xda" * 60, 10_000, 10_000) == "too-many-scans"


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
def test_known_formats_are_opened(fmt):
    assert load_image(open_image(encoded(fmt)), 0).size == (64, 64)


@pytest.mark.parametrize("data", [b"", b"text", encoded("TIFF"), encoded("PPM"), b"%!PS-Adobe-3.0 EPSF-3.0\n"])
def test_unknown_formats_are_not_opened(data):
    assert fault_of(open_image, data) == "no-image"


def test_bomb_is_refused_from_its_header():
    header = b"BM" + bytes(12) + (40).to_bytes(4, "little") + (20_000).to_bytes(4, "little") * 2
    data = header + b"\1\0\x18\0" + bytes(24)
    assert fault_of(open_image, data) == "too-large"


@pytest.mark.parametrize("fmt", ["JPEG", "PNG"])
def test_image_that_ends_early_is_truncated(fmt):
    data = encoded(fmt)
    image = open_image(data[: len(data) // 2])
    num_bytes = len(data) // 2
    with pytest.raises(UnusableImageError) as caught:
        load_image(image, num_bytes)
    assert (caught.value.fault, str(caught.value)) == (
        "truncated",
        f"the end of the image is missing: its data end after {num_bytes:,} bytes",
    )


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (encoded("TIFF"), "TIFF"),
        (b"MM\0*" + bytes(60), "TIFF"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(60), "HEIC"),
        (b"\0\0\0\x20ftypavif\0\0\0\0" + bytes(60), "AVIF"),
        (b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(60), "JPEG XL"),
        (encoded("JPEG2000"), "JPEG 2000"),
        (b"8BPS\0\x01" + bytes(60), "PSD"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_picture_of_a_type_that_is_not_read_is_called_that(data, kind):
    with pytest.raises(UnusableImageError) as caught:
        open_image(data)
    assert (caught.value.fault, str(caught.value)) == ("no-image", f"a picture of type {kind}, which is not read")


@pytest.mark.parametrize("data", [b"<html>", b"\0\0\0\x18ftypisom" + bytes(60), bytes(8), b"I", b""], ids=range(5))
def test_other_bytes_are_no_image(data):
    with pytest.raises(UnusableImageError, match=r"^no image: cannot identify image file$"):
        open_image(data)
