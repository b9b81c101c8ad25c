"""Nothing of a hostile image is decoded before its size, scans and format are known, and no half image is one."""

import io
import struct
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image

from dataprep.formats import pictures
from dataprep.formats.pictures import UnusableImageError, load_image, open_image, refuse_scans, to_rgb
from tests.support.picture_verdicts import FORMATS, compare


def encoded(fmt: str, side: int = 64) -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, fmt)
    return buffer.getvalue()


def refused(call, *arguments):
    """The fault and the text for an image that is refused."""
    with pytest.raises(UnusableImageError) as caught:
        call(*arguments)
    return caught.value.fault, str(caught.value)


def fault_of(call, *arguments):
    return refused(call, *arguments)[0]


def test_images_of_too_many_or_no_pixels_are_refused():
    pictures.refuse_size(10_000, pictures.MAX_PIXELS // 10_000)
    assert fault_of(pictures.refuse_size, 10_001, pictures.MAX_PIXELS // 10_000) == "too-large"
    assert fault_of(pictures.refuse_size, 0, 5) == "no-pixels"


SCAN = b"\xff\xda\0\x02"


@pytest.mark.parametrize(
    ("scans", "side", "limit"),
    [
        (0, 10, None),
        (pictures.MAX_SCANS, 10, None),
        (pictures.MAX_SCANS + 1, 10, pictures.MAX_SCANS),
        (20, 20_000, None),  # so few are never too many
        (51, 10_000, 50),
        (50, 10_000, None),
    ],
)
def test_scans_are_bounded_alone_and_with_the_pixels(scans, side, limit):
    assert pictures.MAX_SCAN_PIXELS == 50 * 10_000**2
    data = b"\xff\xd8" + SCAN * scans
    if limit is None:
        refuse_scans(data, side, side)
        return
    text = f"{scans:,} scans over {side}x{side} pixels; at most {limit}"
    assert refused(refuse_scans, data, side, side) == ("too-many-scans", text)


def test_scans_behind_the_end_are_not_of_the_image():
    photo = encoded("JPEG")
    film = np.random.default_rng(1).bytes(200_000) + SCAN * 600
    assert pictures.count_scans(photo + film) == pictures.count_scans(memoryview(photo + film)) == 1
    refuse_scans(photo + film, 64, 64)
    assert pictures.count_scans(photo[:-2] + SCAN * 600) == 601


def test_an_end_marker_is_found_only_where_libjpeg_looks():
    photo = encoded("JPEG")
    comment = b"\xff\xfe\0\x06\xff\xd9\0\0"
    assert pictures.has_end(photo)
    assert pictures.has_end(photo + b"more")
    assert not pictures.has_end(photo[:-2])
    assert not pictures.has_end(photo[:2] + comment + photo[2:-2])
    assert not pictures.has_end(photo[:-2].ljust(10**6, b"\0"))
    assert not pictures.has_end(b"\xff" * 10**6)


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
def test_known_formats_are_opened(fmt):
    assert load_image(open_image(encoded(fmt)), encoded(fmt)).size == (64, 64)


def test_bomb_is_refused_from_its_header():
    header = b"BM" + bytes(12) + (40).to_bytes(4, "little") + (20_000).to_bytes(4, "little") * 2
    data = header + b"\1\0\x18\0" + bytes(24)
    assert fault_of(open_image, data) == "too-large"


@pytest.mark.parametrize("fmt", ["JPEG", "PNG"])
def test_image_that_ends_early_is_truncated(fmt):
    data = encoded(fmt)
    num_bytes = len(data) // 2
    text = f"the end of the image is missing: its data end after {num_bytes:,} bytes"
    assert refused(load_image, open_image(data[:num_bytes]), data[:num_bytes]) == ("truncated", text)


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
    assert refused(open_image, data) == ("no-image", f"a picture of type {kind}, which is not read")


@pytest.mark.parametrize(
    "data",
    [b"<html>", b"\0\0\0\x18ftypisom" + bytes(60), bytes(8), b"I", b"", encoded("PPM"), b"%!PS-Adobe-3.0 EPSF-3.0\n"],
    ids=range(7),
)
def test_other_bytes_are_no_image(data):
    assert refused(open_image, data) == ("no-image", "no image: cannot identify image file")


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(samples_HWC: np.ndarray, colours: int, bits: int, key: tuple[int, ...] = (), rows: int | None = None) -> bytes:
    """A PNG of these samples, written plainly from its specification; `rows` are in its data."""
    height, width = samples_HWC.shape[:2]
    lines = []
    for row in samples_HWC[:rows]:
        if bits < 8:
            digits = "".join(f"{sample:0{bits}b}" for sample in row.ravel())
            digits = digits.ljust(-(-len(digits) // 8) * 8, "0")
            lines.append(b"\0" + int(digits, 2).to_bytes(len(digits) // 8))
        else:
            lines.append(b"\0" + row.astype(f">u{bits // 8}").tobytes())
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0)),
            chunk(b"tRNS", struct.pack(f">{len(key)}H", *key)) if key else b"",
            chunk(b"IDAT", zlib.compress(b"".join(lines))),
            chunk(b"IEND", b""),
        )
    )


KEYED = [(colours, bits) for colours, most in ((0, (1, 2, 4, 8, 16)), (2, (8, 16))) for bits in most]


@pytest.mark.parametrize(("colours", "bits"), KEYED)
def test_a_colour_key_makes_those_pixels_white(colours, bits):
    """One pixel has the key, another differs in its lowest bit; OpenCV, which reads keys of RGB, finds the same."""
    rng = np.random.default_rng(bits)
    channels = 1 if colours == 0 else 3
    samples_HWC = rng.integers(0, 2**bits, (5, 7, channels))
    key = samples_HWC[2, 3].copy()
    samples_HWC[0, 0] = key
    samples_HWC[0, 0, 0] ^= 1
    data = png(samples_HWC, colours, bits, tuple(key.tolist()))
    image = load_image(open_image(data), data)
    found_HWC = np.asarray(to_rgb(image, data))
    is_key_HW = (samples_HWC == key).all(axis=2)
    upper_HWC = samples_HWC >> 8 if bits == 16 else samples_HWC * 255 // (2**bits - 1)
    expected_HWC = np.where(is_key_HW[..., None], 255, np.broadcast_to(upper_HWC, (5, 7, 3)))
    assert is_key_HW[2, 3]
    assert not is_key_HW[0, 0]
    assert np.array_equal(found_HWC, expected_HWC)
    if colours == 2:
        by_opencv = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        assert np.array_equal(by_opencv[..., 3] > 0, ~is_key_HW)


@pytest.mark.parametrize(("colours", "channels", "bits"), [(0, 1, 1), (0, 1, 16), (2, 3, 8), (4, 2, 8), (6, 4, 16)])
def test_a_png_with_fewer_rows_than_it_says_is_truncated(colours, channels, bits):
    samples_HWC = np.random.default_rng(0).integers(0, 2**bits, (9, 7, channels))
    whole, short = (png(samples_HWC, colours, bits, rows=rows) for rows in (9, 8))
    assert load_image(open_image(whole), whole).size == (7, 9)
    assert fault_of(load_image, open_image(short), short) == "truncated"


def test_an_interlaced_png_is_complete_with_all_its_passes():
    """OpenCV writes no interlaced PNG, and Pillow neither: the passes of one pixel each are put together here."""
    for height, width in ((1, 1), (3, 2), (8, 8), (9, 5)):
        passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
        pixels_HW = np.arange(height * width, dtype=np.uint8).reshape(height, width)
        parts = [pixels_HW[top::down, left::right] for left, top, right, down in passes]
        lines = [b"\0" + row.tobytes() for part in parts for row in part if part.size]
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 1))
        for some in (lines, lines[:-1]):
            body = chunk(b"IDAT", zlib.compress(b"".join(some))) + chunk(b"IEND", b"")
            data = b"\x89PNG\r\n\x1a\n" + header + body
            if some is lines:
                assert np.array_equal(np.asarray(load_image(open_image(data), data)), pixels_HW)
            else:
                assert fault_of(load_image, open_image(data), data) == "truncated"


def test_data_of_a_png_whose_checksum_is_wrong_are_damaged():
    data = bytearray(png(np.zeros((9, 7, 3), int), 2, 8))
    data[-14] ^= 1  # of the data's checksum
    assert fault_of(load_image, open_image(data), data) == "undecodable"


def gif(codes: list[int], side: int = 4, colours: int = 2, end: bytes = b"\0;") -> bytes:
    """A GIF of these LZW codes of 3 bits, written plainly from its specification."""
    bits = "".join(f"{code:03b}"[::-1] for code in codes)
    stream = bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8))
    flags = {2: 0x80, 4: 0x81}[colours]
    header = b"GIF89a" + struct.pack("<HHBBB", side, side, flags, 0, 0) + bytes(range(3 * colours))
    return header + b"," + struct.pack("<HHHHB", 0, 0, side, side, 0) + b"\2" + bytes([len(stream)]) + stream + end


CLEAR, STOP = 4, 5
TWO_A_TIME = [CLEAR, 1, 1]  # a code of 3 bits holds for two literals, then the table is cleared


def test_a_gif_whose_codes_end_early_is_truncated():
    whole, short, unended = gif(TWO_A_TIME * 8 + [STOP]), gif(TWO_A_TIME * 7 + [STOP]), gif(TWO_A_TIME * 8, end=b"\0")
    assert np.asarray(load_image(open_image(whole), whole)).tolist() == [[1] * 4] * 4
    for data in (short, unended, whole[:-4]):
        assert fault_of(load_image, open_image(data), data) == "truncated"


def test_a_gif_with_a_colour_that_its_table_lacks_is_damaged():
    whole, lacking = (gif([CLEAR, 3, 3] * 8 + [STOP], colours=colours) for colours in (4, 2))
    assert load_image(open_image(whole), whole).size == (4, 4)
    assert fault_of(load_image, open_image(lacking), lacking) == "undecodable"


def test_a_gif_whose_image_is_not_inside_its_pixels_is_damaged():
    whole = gif(TWO_A_TIME * 8 + [STOP])
    left = whole.index(b",") + 1
    for at in (left, left + 2):
        data = whole[:at] + b"\1" + whole[at + 1 :]
        assert fault_of(load_image, open_image(data), data) == "undecodable"


def test_a_film_whose_first_image_has_more_colours_than_pixels_is_damaged():
    first, more = gif(TWO_A_TIME * 8 + [STOP]), gif(TWO_A_TIME * 9 + [STOP])
    second = first[first.index(b",") :]
    for data in (first[:-1] + second, more):
        assert np.asarray(load_image(open_image(data), data)).tolist() == [[1] * 4] * 4
    data = more[:-1] + second
    assert fault_of(load_image, open_image(data), data) == "undecodable"


@pytest.mark.parametrize("interlace", [0, 1])
@pytest.mark.parametrize("side", [1, 2, 3, 90])
def test_gifs_of_encoders_are_complete_also_where_the_last_pixel_is_0(interlace, side):
    noise = np.random.default_rng(side).integers(0, 256, (side, side), np.uint8)
    noise[-2:] = 0
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "GIF", interlace=interlace)
    data = buffer.getvalue()
    assert np.array_equal(np.asarray(load_image(open_image(data), data).convert("L")), noise)


def bitmap(alpha: int) -> bytes:
    """A bitmap of 32 bits with masks for four samples, as screenshots and icons are written."""
    masks = struct.pack("<4I", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    header = struct.pack("<IiiHHIIiiII", 108, 2, -1, 1, 32, 3, 8, 0, 0, 0, 0) + masks + b"BGRs" + bytes(48)
    pixels = bytes([1, 2, 3, 0, 4, 5, 6, alpha])
    return b"BM" + struct.pack("<IHHI", 14 + len(header) + len(pixels), 0, 0, 14 + len(header)) + header + pixels


def test_a_bitmap_whose_alpha_is_0_everywhere_is_opaque():
    """As Windows and OpenCV show it. Alpha counts where a pixel has some."""
    for alpha, expected in ((0, [[3, 2, 1], [6, 5, 4]]), (255, [[255, 255, 255], [6, 5, 4]])):
        data = bitmap(alpha)
        assert np.asarray(to_rgb(load_image(open_image(data), data), data)).tolist() == [expected]


def test_16_bits_become_the_upper_8_in_every_mode():
    samples_HWC = np.random.default_rng(3).integers(0, 2**16, (4, 6, 4))
    for colours, channels in ((0, [0]), (2, [0, 1, 2]), (4, [0, 3]), (6, [0, 1, 2, 3])):
        data = png(samples_HWC[..., channels], colours, 16)
        found_HWC = np.asarray(pictures.to_eight_bits(load_image(open_image(data), data), data))
        expected_HWC = samples_HWC[..., channels] >> 8
        if colours == 4:
            expected_HWC = expected_HWC[..., [0, 0, 0, 1]]
        assert np.array_equal(found_HWC.reshape(4, 6, -1), expected_HWC), colours


def test_no_mutant_is_kept_that_two_other_decoders_refuse():
    """A sample of what `make soak SHOW=pictures` looks through, beyond its numbers."""
    found = compare(FORMATS, 10_000, 20)
    for each in found.values():
        assert each["kept"] == []
        for ours in ("build", "loader"):
            assert sum(count for verdicts, count in each["table"].items() if verdicts.startswith(ours)) == 20
