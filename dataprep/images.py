"""Check, repair and resize one image, by its content and never by its name.

A valid JPEG keeps its bytes. What is an image but no RGB or grey JPEG is re-encoded; what cannot be decoded whole is
rejected, never patched up. Every byte that comes in is hostile (docs/architecture.md, "Security").
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dataprep.errors import ImageError
from dataprep.records import Event

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 100_000_000
"""Checked against the header before anything is decoded."""
MAX_SCANS = 500
"""Of one progressive JPEG: a small file can ask for any number of passes over all its pixels."""
MAX_SEGMENTS = 1_000
"""Before the first scan of a JPEG, looked at for EXIF; each but the hostile ones has a few, of up to 64 KiB."""
MAX_SCAN_PIXELS = 5_000_000_000
"""Scans x pixels: bounds the decoding of one hostile file to some ten seconds."""
REPAIR_QUALITY = 100
JPEG_MAGIC = b"\xff\xd8\xff"
REPAIRABLE_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")

Check = Literal["decode", "header", "none"]
OnBad = Literal["repair", "reject", "fail"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagePolicy:
    """What to do with the images of a build."""

    check: Check = "decode"
    on_bad: OnBad = "repair"
    apply_exif: bool = False
    """Rewrite images whose EXIF orientation is not 1, so that readers which ignore it see them upright."""
    short_side: int | None = None
    """Pixels; larger images are shrunk so that their shorter side has this many."""
    quality: int = 95
    """JPEG quality of resized images."""


@dataclass(frozen=True, slots=True)
class CheckedImage:
    """An image that may be written, and what was done to it."""

    image: bytes
    height: int
    width: int
    orientation: int
    event: Event | None = None


class _RejectedError(Exception):
    """An image that cannot be used; caught in this module."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def check_image(key: str, data: bytes, policy: ImagePolicy) -> CheckedImage | Event:
    """Check one original image and bring it into the form that shards hold.

    Args:
        key: The sample's key, for the event.
        data: The original file's bytes.
        policy: What to check and what to do with what is no plain JPEG.

    Returns:
        The image to write, or the Event of its rejection.

    Raises:
        ImageError: The image would be repaired or rejected, and the policy says `fail`.
    """
    try:
        checked = _check(key, data, policy)
    except _RejectedError as error:
        event = Event(key, "rejected", error.reason, str(error))
    else:
        if checked.event is None or policy.on_bad == "repair":
            return checked
        event = Event(key, "rejected", checked.event.reason, checked.event.detail)
    if policy.on_bad == "fail":
        raise ImageError(
            f"{key}: {event.detail}; expected a valid JPEG (--on-bad fail); "
            "use --on-bad repair or reject to go on past such images"
        )
    return event


def _check(key: str, data: bytes, policy: ImagePolicy) -> CheckedImage:
    if not data:
        raise _RejectedError("empty", "the file has no bytes")
    if not data.startswith(JPEG_MAGIC):
        return _repair(key, data, policy)
    if policy.check == "none" and policy.short_side is None and not policy.apply_exif:
        return CheckedImage(data, 0, 0, 1)
    height, width, colorspace = _jpeg_header(data)
    if colorspace in ("CMYK", "YCCK"):
        return _repair(key, data, policy, reason=colorspace.lower())
    if policy.check == "decode":
        _decode_jpeg(data, height, width)
    orientation = _exif_orientation(data)
    upright = not policy.apply_exif or orientation == 1
    if upright and not _shrinks(height, width, policy):
        return CheckedImage(data, height, width, orientation)
    event = None if upright else Event(key, "repaired", "orientation", f"EXIF orientation {orientation} applied")
    return _rewrite(_load(data), orientation, policy, event, repaired=False)


def _jpeg_header(data: bytes) -> tuple[int, int, str]:
    """Height and width in pixels, and libjpeg's name of the colour space."""
    import simplejpeg

    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data, strict=True)
    except (ValueError, KeyError):  # KeyError: a colour space that simplejpeg has no name for
        # A warning, or a chroma layout that Pillow knows and libjpeg-turbo's own interface does not.
        with _open(data) as image:
            height, width, colorspace = image.height, image.width, image.mode
    _refuse_bomb(height, width)
    return height, width, colorspace


def _decode_jpeg(data: bytes, height: int, width: int) -> None:
    """Decode all entropy-coded data, at an eighth of the size and without chroma: 1.26 ms for 113 kB, of which the
    full inverse transform and colour conversion would make 1.59 ms, and neither can fail."""
    import simplejpeg

    scans = _count_scans(data)
    if scans > MAX_SCANS or (scans > 20 and scans * height * width > MAX_SCAN_PIXELS):
        raise _RejectedError("undecodable", f"{scans:,} scans over {width}x{height} pixels; at most {MAX_SCANS}")
    try:
        simplejpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1, min_factor=1, strict=True)
    except ValueError:
        # A warning, or an error: Pillow takes what decoders in use take, and raises on missing data.
        image = _open(data)
        image.draft("L", (1, 1))
        _loaded(image)


def _count_scans(data: bytes) -> int:
    """Start-of-scan markers, 0xFF 0xDA, anywhere in the bytes. As 16-bit words at both alignments: a sixth of the time
    that `bytes.count` takes."""
    import numpy as np

    pairs = (np.frombuffer(data, "<u2", (len(data) - start) // 2, start) for start in (0, 1))
    return sum(int(np.count_nonzero(words == 0xDAFF)) for words in pairs)


def _repair(key: str, data: bytes, policy: ImagePolicy, reason: str | None = None) -> CheckedImage:
    """Re-encode what is an image but no RGB or grey JPEG."""
    image = _load(data)
    kind = (reason or image.format or "").lower()
    detail = f"{kind.upper()} ({image.mode}) of {image.width}x{image.height} pixels written as RGB JPEG"
    orientation = _orientation_of(image)
    return _rewrite(image, orientation, policy, Event(key, "repaired", kind, detail), repaired=True)


def _rewrite(
    image: Image.Image, orientation: int, policy: ImagePolicy, event: Event | None, *, repaired: bool
) -> CheckedImage:
    from PIL import ImageOps

    if policy.apply_exif and orientation != 1:
        image = ImageOps.exif_transpose(image)
        orientation = 1
    rgb = _over_white(image)
    del image  # at 100 Mpixel every copy is 400 MB
    resized = _shrinks(rgb.height, rgb.width, policy)
    if resized:
        rgb = _shrink(rgb, policy)
    quality = policy.quality if resized and not repaired else REPAIR_QUALITY
    out = io.BytesIO()
    rgb.save(out, "JPEG", quality=quality, subsampling=0 if quality == REPAIR_QUALITY else 2)
    return CheckedImage(out.getvalue(), rgb.height, rgb.width, orientation, event)


def _shrinks(height: int, width: int, policy: ImagePolicy) -> bool:
    return policy.short_side is not None and min(height, width) > policy.short_side


def _shrink(rgb: Image.Image, policy: ImagePolicy) -> Image.Image:
    from PIL import Image

    short = policy.short_side or min(rgb.size)
    scale = short / min(rgb.size)
    size = (max(short, round(rgb.width * scale)), max(short, round(rgb.height * scale)))
    return rgb.resize(size, Image.Resampling.LANCZOS)


def _over_white(image: Image.Image) -> Image.Image:
    """RGB of any mode: 16 bits become the upper 8, transparency lies over white."""
    import numpy as np
    from PIL import Image

    if image.mode in ("I", "I;16", "I;16B", "I;16L", "I;16N"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8), "L").convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    rgba = image if image.mode == "RGBA" else image.convert("RGBA")
    del image
    white = Image.new("RGB", rgba.size, "white")
    strip = 256  # rows at a time: the copy of an alpha band is a quarter of the image
    for top in range(0, rgba.height, strip):
        rows = rgba.crop((0, top, rgba.width, min(top + strip, rgba.height)))
        white.paste(rows, (0, top), rows)
    return white


def _open(data: bytes) -> Image.Image:
    """An image whose header was read; refuses bombs by their dimensions."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own bomb warning: ours is the limit
            image = Image.open(io.BytesIO(data), formats=REPAIRABLE_FORMATS)
    except Image.DecompressionBombError as error:
        raise _RejectedError("too-large", f"over {MAX_PIXELS:,} pixels: {_line(error)}") from error
    except Exception as error:
        raise _RejectedError("undecodable", f"no image: {_line(error)}") from error
    _refuse_bomb(image.height, image.width)
    return image


def _load(data: bytes) -> Image.Image:
    return _loaded(_open(data))


def _loaded(image: Image.Image) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # corrupt EXIF and the like: recorded nowhere, harmless
            image.load()
    except Exception as error:
        text = _line(error)
        reason = "truncated" if "truncated" in text or isinstance(error, EOFError) else "undecodable"
        raise _RejectedError(reason, text) from error
    return image


def _refuse_bomb(height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        raise _RejectedError("too-large", f"{width}x{height} pixels; at most {MAX_PIXELS:,}")
    if height * width == 0:
        raise _RejectedError("undecodable", f"{width}x{height} pixels")


def _exif_orientation(data: bytes) -> int:
    """Orientation 1..8 of a JPEG; Pillow is kept off the nine files in ten that have no EXIF."""
    if not _has_exif(data):
        return 1
    with _open(data) as image:
        return _orientation_of(image)


def _has_exif(data: bytes) -> bool:
    """Whether an EXIF block stands before the first scan; also true where the segments are none that can be walked.

    A JPEG is a chain of segments: 0xFF, a marker, two bytes of length (ITU-T T.81, annex B). Searching the bytes for
    `Exif` instead takes 90 us for 110 kB.
    """
    at = 2
    for _ in range(MAX_SEGMENTS):
        if data[at : at + 1] != b"\xff":
            return True
        marker = data[at + 1 : at + 2]
        if marker == b"\xda":
            return False
        if marker == b"\xe1" and data.startswith(b"Exif\0\0", at + 4):
            return True
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
    return False


def _orientation_of(image: Image.Image) -> int:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value: Any = image.getexif().get(0x0112, 1)
    except Exception:  # noqa: BLE001  a corrupt EXIF block says nothing about the pixels
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _line(error: BaseException) -> str:
    """An error's text on one line, without the address that Pillow puts into some."""
    text = " ".join(str(error).split()) or type(error).__name__
    return "cannot identify image file" if text.startswith("cannot identify image file") else text[:200]
