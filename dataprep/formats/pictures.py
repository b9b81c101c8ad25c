"""Reads a stranger's picture: compares it with limits, decodes it completely, and makes it RGB.

Builds, verification and the loaders use these functions, so they agree on which pictures are complete, and on their
pixels. Sizes, scans and formats are checked before anything is decoded. Whether a file is complete is judged here,
because codecs accept files that end early: the rest is grey or black.
"""

from __future__ import annotations

import io
import re
import struct
import warnings
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from dataprep.arrays import NDArray, np
from dataprep.dataset.paths import READABLE_IMAGES
from dataprep.messages import one_line

if TYPE_CHECKING:
    from PIL import Image
    from PIL.ImageFile import ImageFile

MAX_PIXELS = 100_000_000
"""Maximum number of pixels of one image, compared with the size in its header."""
MAX_SIDE = 65_500
"""Maximum length of a side, in pixels, that libjpeg's encoder accepts."""
MAX_SCANS = 500
"""Maximum number of scans of one progressive JPEG: a small file can demand any number of passes over all its pixels."""
MAX_SCAN_PIXELS = 5_000_000_000
"""Maximum of scans times pixels: bounds the decoding of one hostile file to about ten seconds."""
_ALWAYS_ALLOWED_SCANS = 20
REPAIRABLE_FORMATS = tuple(READABLE_IMAGES)
"""Formats that Pillow may open; it runs other programs for some of the rest."""

JPEG_MAGIC = b"\xff\xd8\xff"
START_OF_SCAN, EXIF_SEGMENT = 0xDA, 0xE1
_START, _END = 0xD8, 0xD9
_MARKER = re.compile(rb"\xff([^\xff\x00\x01\xd0-\xd7])")
"""A marker, except restart markers and 0x01, which may occur anywhere and have no length (ITU-T T.81, annex B)."""
_PNG_START, _PNG_BITS = b"\x89PNG\r\n\x1a\n", 24
"""First bytes of a PNG, and the place of its number of bits a sample."""
_PNG_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Samples of a pixel by the PNG's colour type."""
_PNG_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""Left, top, and the steps to the right and down, of the passes of an interlaced PNG."""
_GIF_SIZE, _GIF_HEADER, _GIF_EXTENSION, _GIF_IMAGE, _GIF_END, _GIF_MAX_BITS = 6, 13, 0x21, 0x2C, 0x3B, 12
_NOT_READ = {
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",  # BigTIFF
    b"MM\0+": "TIFF",
    b"\0\0\0\x0cJXL ": "JPEG XL",
    b"\xff\x0a": "JPEG XL",
    b"\0\0\0\x0cjP  ": "JPEG 2000",
    b"\xff\x4f\xff\x51": "JPEG 2000",
    b"8BPS": "PSD",
}
"""Types of pictures that are not read, by their first bytes. Most raw files of cameras begin as TIFFs do."""
_NOT_READ_BRANDS = {
    **dict.fromkeys((b"avif", b"avis"), "AVIF"),
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"), "HEIC"),
    **dict.fromkeys((b"mif1", b"msf1"), "HEIF"),
    b"crx ": "CR3",
}
"""Types of pictures and films that are not read, by the brand of an ISO base media file (ISO/IEC 14496-12)."""

Fault = Literal[
    "missing",
    "empty",
    "too-large",
    "no-pixels",
    "too-many-scans",
    "no-image",
    "truncated",
    "undecodable",
    "unencodable",
]


class UnusableImageError(Exception):
    """Raised for an image that is missing, damaged or beyond a limit. The message becomes the event's detail."""

    def __init__(self, fault: Fault, detail: str) -> None:
        super().__init__(detail)
        self.fault = fault


def refuse_size(height: int, width: int) -> None:
    """Raise UnusableImageError for an image without pixels, or with more than MAX_PIXELS."""
    if height * width > MAX_PIXELS:
        raise UnusableImageError("too-large", f"{width}x{height} pixels; at most {MAX_PIXELS:,}")
    if height * width == 0:
        raise UnusableImageError("no-pixels", f"{width}x{height} pixels")


def refuse_scans(data: bytes | memoryview, height: int, width: int) -> None:
    """Raise UnusableImageError for a JPEG whose scans would take too long to decode."""
    limit = max(_ALWAYS_ALLOWED_SCANS, min(MAX_SCANS, MAX_SCAN_PIXELS // max(1, height * width)))
    # Two bytes that look like a scan's marker are rare, so their number settles nearly all files, in a sixth of the
    # time of `bytes.count`. Only if there are more is the file parsed: those after the end marker are not the image's.
    if _count_pairs(data) > limit and (scans := count_scans(data)) > limit:
        raise UnusableImageError("too-many-scans", f"{scans:,} scans over {width}x{height} pixels; at most {limit}")


def _count_pairs(data: bytes | memoryview) -> int:
    pairs = (np.frombuffer(data, "<u2", (len(data) - start) // 2, start) for start in (0, 1))
    return sum(int(np.count_nonzero(words == 0xDAFF)) for words in pairs)


def count_scans(data: bytes | memoryview) -> int:
    """Count the scans of a JPEG up to its end marker."""
    return sum(marker == START_OF_SCAN for marker, _ in jpeg_markers(data))


def has_end(data: bytes | memoryview) -> bool:
    """Return whether a JPEG has its end marker, where libjpeg looks for it; 0.5 ms for 1 MB."""
    return any(marker == _END for marker, _ in jpeg_markers(data))


def jpeg_markers(data: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """Yield the markers of a JPEG up to its end, each with the position after it.

    libjpeg finds the same markers: it skips other bytes between segments, such as a scan's data.
    """
    at = 0
    while found := _MARKER.search(data, at):
        marker, at = found[1][0], found.end()
        yield marker, at
        if marker == _END:
            return
        if marker != _START:
            at += max(2, int.from_bytes(data[at : at + 2]))


def open_image(data: bytes | memoryview) -> ImageFile:
    """Open an image and read its header only, in one of the formats that Pillow reads without other programs. Raises
    UnusableImageError if the bytes are not an image, or it has no pixels or too many."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of bombs below our own limit
            image = Image.open(io.BytesIO(data), formats=REPAIRABLE_FORMATS)
    except Image.DecompressionBombError as error:
        raise UnusableImageError("too-large", f"over {MAX_PIXELS:,} pixels: {_line(error)}") from error
    except Exception as error:
        kind = _type_not_read(bytes(data[:12]))
        detail = f"a picture of type {kind}, which is not read" if kind else f"no image: {_line(error)}"
        raise UnusableImageError("no-image", detail) from error
    refuse_size(image.height, image.width)
    return image


def _type_not_read(start: bytes) -> str:
    """Return the type of a picture that is not read, by its first bytes; empty if it is none of these types."""
    if start[4:8] == b"ftyp":
        return _NOT_READ_BRANDS.get(start[8:12], "")
    return next((kind for magic, kind in _NOT_READ.items() if start.startswith(magic)), "")


def load_image(image: ImageFile, data: bytes | memoryview) -> ImageFile:
    """Decode all of an image that was opened from these data. Raises UnusableImageError if it ends early, would take
    too long to decode, or cannot be decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of corrupt EXIF and the like, which does no harm
            if image.format in ("JPEG", "MPO"):
                refuse_scans(data, image.height, image.width)
            if not _is_complete(image, data):
                raise _truncated(data)
            area = image.tile[0].extents if image.format == "GIF" else None
            image.load()
            if area is not None:
                _check_gif(image, data, area)
    except UnusableImageError:
        raise
    except Exception as error:
        if "truncated" in str(error) or isinstance(error, EOFError):
            raise _truncated(data) from error
        raise UnusableImageError("undecodable", _line(error)) from error
    return image


def _truncated(data: bytes | memoryview) -> UnusableImageError:
    # Pillow's own text counts the bytes left in its buffer, which says nothing of what is missing.
    detail = f"the end of the image is missing: its data end after {len(data):,} bytes"
    return UnusableImageError("truncated", detail)


def _is_complete(image: ImageFile, data: bytes | memoryview) -> bool:
    """Return whether the data of an opened image reach its end, for formats whose decoders do not check that."""
    if image.format in ("JPEG", "MPO"):
        return has_end(data)
    if image.format == "PNG":
        return _has_all_rows(data)
    if image.format == "BMP":
        tile = image.tile[0]
        row_bytes = tile.args[1] if isinstance(tile.args, tuple) else 0
        return tile.codec_name != "raw" or bool(tile.offset + row_bytes * image.height <= len(data))
    return True


def _has_all_rows(data: bytes | memoryview) -> bool:
    """Return whether a PNG has its end and the data of all rows, as libpng requires; Pillow shows missing rows as
    black. Raises UnusableImageError if a chunk does not match its checksum, and zlib.error if one cannot be
    decompressed."""
    missing, stream, at = 0, zlib.decompressobj(), len(_PNG_START)
    while len(data) - at >= 12:
        num_bytes, kind = int.from_bytes(data[at : at + 4]), bytes(data[at + 4 : at + 8])
        part, at = memoryview(data)[at + 8 : at + 8 + num_bytes], at + 12 + num_bytes
        if at > len(data):
            return False
        if kind == b"IHDR":
            missing = _png_bytes(*struct.unpack(">IIBBxxB", part[:13]))
        elif kind == b"IDAT":
            if zlib.crc32(part, zlib.crc32(kind)) != int.from_bytes(data[at - 4 : at]):
                raise UnusableImageError("undecodable", "a chunk of the PNG's data does not match its checksum")
            missing -= _decompressed_bytes(stream, part, missing)
        elif kind == b"IEND":
            return missing <= 0
    return False


def _check_gif(image: ImageFile, data: bytes | memoryview, area: tuple[int, ...]) -> None:
    """Raise UnusableImageError for a loaded GIF without an end, with pixels missing or outside its size, or with
    colours that its table lacks; `area` is left, top, right and bottom of its first image."""
    frame = _first_frame(data)
    if frame is None:
        raise _truncated(data)
    codes, bits, pixels, colours, images = frame
    absent = (0, image.info.get("transparency"))  # Pillow shows pixels that are missing as one of these
    _, top, right, bottom = area
    width, height = struct.unpack_from("<HH", data, _GIF_SIZE)
    if right > width or bottom > height:
        raise UnusableImageError("undecodable", f"the first image of a GIF is not inside its {width}x{height} pixels")
    last = max(0, bottom - top - 1)
    if image.info.get("interlace") and last % 2 == 0:
        last = max(0, last - 1)  # the last pass has the odd rows
    # Following the codes takes 0.4 us a byte, so it is done for few images.
    if images > 1 or image.getpixel((right - 1, top + last)) in absent:
        values = _lzw_values(codes, bits, pixels + 1)
        if values < pixels:
            raise _truncated(data)
        if values > pixels and images > 1:
            raise UnusableImageError("undecodable", "the first image of a GIF has more colours than pixels")
    highest: Any = image.getextrema()[1]
    if colours and highest not in absent and highest >= colours:
        raise UnusableImageError("undecodable", f"colour {highest} of a GIF that has {colours}")


def _first_frame(data: bytes | memoryview) -> tuple[bytes, int, int, int, int] | None:
    """Return the codes of a GIF's first image, the bits of a literal, its numbers of pixels and colours, and the number
    of images; None if the GIF has no end."""
    frame, images, common = None, 0, _table_bytes(data[_GIF_HEADER - 3])
    at = _GIF_HEADER + common
    try:
        while data[at] != _GIF_END:
            kind, at = data[at], at + 2
            bits = width = height = own = 0
            if kind == _GIF_IMAGE:
                width, height, flags = struct.unpack_from("<HHB", data, at + 3)
                own = _table_bytes(flags)
                bits, at = data[at + 8 + own], at + 9 + own
            elif kind != _GIF_EXTENSION:
                return None
            blocks = []
            while num_bytes := data[at]:
                blocks.append(data[at + 1 : at + 1 + num_bytes])
                at += 1 + num_bytes
            at += 1
            images += kind == _GIF_IMAGE
            if kind == _GIF_IMAGE and frame is None:
                frame = b"".join(blocks), bits, width * height, (own or common) // 3
    except (IndexError, struct.error):
        return None
    return frame and (*frame, images)


def _table_bytes(flags: int) -> int:
    """Return the size of a GIF's table of colours, which follows if the flags say so."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _lzw_values(stream: bytes, bits: int, limit: int) -> int:
    """Return the number of values in a stream of GIF's LZW codes with literals of `bits` bits; counting stops at the
    limit.

    Only the number of values of each code is kept: one more than the code before it has.
    """
    clear, count = 1 << bits, 0
    values, before, width, waiting, waiting_bits = [1] * clear + [0, 0], 0, bits + 1, 0, 0
    for byte in stream:
        waiting |= byte << waiting_bits
        waiting_bits += 8
        while waiting_bits >= width:
            code = waiting & (1 << width) - 1
            waiting >>= width
            waiting_bits -= width
            if code == clear:
                del values[clear + 2 :]
                before, width = 0, bits + 1
                continue
            if before and len(values) < 1 << _GIF_MAX_BITS:
                values.append(before + 1)
                width += len(values) == 1 << width and width < _GIF_MAX_BITS
            if code == clear + 1 or code >= len(values):
                return count
            before = values[code]
            count += before
            if count >= limit:
                return limit
    return count


def _png_bytes(width: int, height: int, bits: int, colours: int, interlaced: int) -> int:
    """Return the number of bytes of a PNG's rows, each with the byte that names its filter (PNG specification, 7)."""
    pixel_bits = bits * _PNG_SAMPLES[colours]
    steps = _PNG_PASSES if interlaced else ((0, 0, 1, 1),)
    sides = ((-(-(width - left) // right), -(-(height - top) // down)) for left, top, right, down in steps)
    return sum(rows * (1 + -(-columns * pixel_bits // 8)) for columns, rows in sides if columns > 0)


def _decompressed_bytes(stream: Any, part: memoryview, limit: int) -> int:
    """Return the number of bytes that a part of a stream decompresses to; it stops soon after the limit."""
    count = 0
    for start in range(0, len(part), 2**16):
        rest: bytes | memoryview = part[start : start + 2**16]
        while rest and count < limit and not stream.eof:
            count += len(stream.decompress(rest, 2**20))
            rest = stream.unconsumed_tail
    return count


def to_rgb(image: Image.Image, data: bytes | memoryview) -> Image.Image:
    """Return a picture that was loaded from these data as RGB: samples of 16 bits keep their upper 8, and transparent
    pixels are laid over white."""
    from PIL import Image

    image = to_eight_bits(image, data)
    if image.mode != "RGBA":
        return image.convert("RGB")
    white = Image.new("RGB", image.size, "white")
    strip = 256  # rows at a time: the copy of an alpha band is a quarter of the image
    for top in range(0, image.height, strip):
        rows = image.crop((0, top, image.width, min(top + strip, image.height)))
        white.paste(rows, (0, top), rows)
    return white


def to_eight_bits(image: Image.Image, data: bytes | memoryview) -> Image.Image:
    """Return a loaded picture with 8 bits a sample: RGBA if some of it is transparent, else in a mode without alpha."""
    from PIL import Image

    bits = data[_PNG_BITS] if image.format == "PNG" else 8
    key = image.info.get("transparency")
    opaque_HW = None
    if image.mode.startswith("I"):
        opaque_HW = np.asarray(image) != key
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8), "L")
    elif isinstance(key, int) and image.mode == "L":
        opaque_HW = np.asarray(image) != key * 255 // (2**bits - 1)  # Pillow widens the samples, but not the key
    elif isinstance(key, tuple) and bits == 16:
        upper_HWC, lower_HWC, key_C = np.asarray(image), _lower_bytes(data), np.array(key)
        opaque_HW = ((upper_HWC != key_C >> 8) | (lower_HWC != key_C & 255)).any(axis=2)
    elif image.mode != "RGBA" and image.has_transparency_data:
        return image.convert("RGBA")
    elif image.format == "BMP" and image.mode == "RGBA" and not image.getchannel("A").getextrema()[1]:
        return image.convert("RGB")  # the fourth byte of many 32-bit bitmaps is unused
    if key is not None and opaque_HW is not None:
        image = image.convert("RGBA")
        image.putalpha(Image.fromarray(opaque_HW.astype(np.uint8) * 255))
    return image


def _lower_bytes(data: bytes | memoryview) -> NDArray[np.uint8]:
    """Return the lower bytes of the samples of an RGB PNG of 16 bits, whose upper ones Pillow returns."""
    image = open_image(data)
    image.tile = [tile._replace(args="RGB;16L") for tile in image.tile]
    image.load()
    return np.asarray(image)


def _line(error: BaseException) -> str:
    """Return an error's text on one line, without the address that Pillow puts into some."""
    text = one_line(error)
    return "cannot identify image file" if text.startswith("cannot identify image file") else text
