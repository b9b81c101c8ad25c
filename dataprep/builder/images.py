"""Checks, repairs and resizes one image, by its content and never by its name.

A valid JPEG keeps its bytes, or with restart markers its pixels. Any other image, and a JPEG that is neither RGB nor
grey, is re-encoded. An image that cannot be decoded completely is rejected, never patched. Every input is treated as
hostile (dataprep/formats/pictures.py).
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dataprep.dataset.paths import named
from dataprep.dataset.records import Event
from dataprep.errors import DataprepError, ImageError, UsageError
from dataprep.formats import pictures
from dataprep.messages import one_line

if TYPE_CHECKING:
    from PIL import Image

try:
    from dataprep.formats._check import read_sound
except ImportError:  # it was not built

    def read_sound(data: bytes, /) -> tuple[int, int, bool] | None:
        """Return None: libjpeg reads every JPEG."""
        return None


RESTART_LIBRARY = "libjpeg-turbo"
"""Library whose version affects the bytes of an image with restart markers, but not its pixels."""
INTERVAL_BYTES = 400
"""Approximate number of bytes between two markers, rounded to complete MCUs, at least one. With 300, files would be
0.4 % larger, with 600 0.2 % smaller; between 150 and 600 the time to decode a crop is the same."""


def with_restarts(data: bytes) -> bytes:
    """Add restart markers to a JPEG, without a change of its pixels.

    Returns:
        The JPEG with markers. It is returned unchanged if it would take twice as many bytes, or if decoders might show
        other pixels: it is damaged, lacks scans of a progressive image, has arithmetic codes, or has more than one
        definition of a quantisation table.
    """
    from dataprep.formats import _restart

    try:
        return _restart.with_restarts(data, INTERVAL_BYTES)
    except ValueError:
        return data


@cache
def library_version() -> str:
    """Return the version of the library that `with_restarts` was built with. Raises UsageError if it was not built."""
    try:
        from dataprep.formats import _restart
    except ImportError as error:
        raise UsageError(
            "`jpeg` restart: dataprep.formats._restart was not built; install a wheel of tpu-dataprep, or "
            "install a C compiler and the headers of libjpeg-turbo (libjpeg-turbo8-dev or libjpeg62-turbo-dev) and "
            "then tpu-dataprep again, or leave `jpeg` restart out"
        ) from error
    return _restart.LIBRARY_VERSION


MAX_SEGMENTS = 1_000
"""Maximum number of segments of a JPEG that are searched for EXIF before its first scan; a usual JPEG has a few."""
REPAIR_QUALITY = 100
_ORIENTATION = 0x0112
"""EXIF's number of the orientation."""
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""Pillow's name of the transposition that turns an image upright, by its EXIF orientation."""
_REASONS: tuple[pictures.Fault, ...] = ("missing", "empty", "too-large", "truncated", "unencodable")
"""Faults that are reasons of rejections; the reason is `undecodable` for all others."""

Check = Literal["decode", "header", "none"]
OnBad = Literal["repair", "reject", "fail"]
Jpeg = Literal["untouched", "restart"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagePolicy:
    """Settings for checking and changing the images of a build."""

    check: Check = "decode"
    on_bad: OnBad = "repair"
    apply_exif: bool = False
    """Rewrite images whose EXIF orientation is not 1, so that readers which ignore it see them upright."""
    short_side: int | None = None
    """Larger images are shrunk to this length of the shorter side, in pixels; None keeps every size."""
    quality: int = 95
    """JPEG quality of resized images; those that are repaired have REPAIR_QUALITY."""
    jpeg: Jpeg = "untouched"
    """`restart` codes every JPEG again with restart markers, pixels unchanged."""


class CheckedImage(NamedTuple):
    """An image to write, and the changes to it."""

    image: bytes
    height: int
    width: int
    orientation: int
    event: Event | None = None


def check_image(key: str, data: bytes | None, policy: ImagePolicy) -> CheckedImage | Event:
    """Check one original image, and repair or resize it if needed, for storage in a shard. Raises ImageError if the
    image would be repaired or rejected, and the policy says `fail`.

    Args:
        data: The original file's bytes; None if the file did not exist when the build was planned.

    Returns:
        The image to write, or the Event of its rejection.
    """
    try:
        checked = _check(key, data, policy)
    except pictures.UnusableImageError as error:
        event = Event(key, "rejected", error.fault if error.fault in _REASONS else "undecodable", str(error))
    except (DataprepError, ImportError):
        raise
    except Exception as error:  # noqa: BLE001  of a codec: nothing but the image is read here, and nothing is written
        event = Event(key, "rejected", "undecodable", one_line(error))
    else:
        if checked.event is None or policy.on_bad == "repair":
            return checked if policy.jpeg == "untouched" else checked._replace(image=with_restarts(checked.image))
        event = Event(key, "rejected", checked.event.reason, checked.event.detail)
    if policy.on_bad == "fail":
        raise ImageError(
            f"{named(key)}: {event.detail}; expected a valid JPEG (`on_bad` fail); "
            "use `on_bad` repair or reject to continue past such images"
        )
    return event


def _check(key: str, data: bytes | None, policy: ImagePolicy) -> CheckedImage:
    if data is None:
        raise pictures.UnusableImageError("missing", "the file did not exist when the build was planned")
    if not data:
        raise pictures.UnusableImageError("empty", "the file has no bytes")
    if not data.startswith(pictures.JPEG_MAGIC):
        return _repair(key, data, policy)
    if policy.check == "none" and policy.short_side is None and not policy.apply_exif:
        return CheckedImage(data, 0, 0, 1)
    sound = read_sound(data) if policy.check == "decode" and policy.short_side is None else None
    if sound is None:
        height, width, colorspace = _jpeg_header(data)
        if colorspace in ("CMYK", "YCCK"):
            return _repair(key, data, policy, reason=colorspace.lower())
        if policy.check == "decode":
            pictures.refuse_scans(data, height, width)
            if not _shrinks(height, width, policy):  # Pillow decodes all of what it shrinks
                _decode_jpeg(data)
        has_exif = _has_exif(data)
    else:
        height, width, has_exif = sound
    orientation = 1
    if has_exif:  # nine in ten files have no EXIF, so Pillow opens few
        with pictures.open_image(data) as image:
            orientation = _orientation_of(image)
    upright = not policy.apply_exif or orientation == 1
    if upright and not _shrinks(height, width, policy):
        return CheckedImage(data, height, width, orientation)
    event = None if upright else Event(key, "repaired", "orientation", f"EXIF orientation {orientation} applied")
    return _rewrite(data, _load(data), orientation, policy, event, repaired=False)


def _jpeg_header(data: bytes) -> tuple[int, int, str]:
    """Return height and width in pixels, and libjpeg's name of the colour space."""
    import simplejpeg

    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data, strict=True)
    except (ValueError, KeyError):  # KeyError: a colour space that simplejpeg has no name for
        # A warning, or a chroma layout that Pillow knows and libjpeg-turbo's own interface does not.
        with pictures.open_image(data) as image:
            height, width, colorspace = image.height, image.width, image.mode
    pictures.refuse_size(height, width)
    return height, width, colorspace


def _decode_jpeg(data: bytes) -> None:
    """Decode all entropy-coded data, at an eighth of the size and without chroma: the full inverse transform and the
    colour conversion take longer, and cannot fail."""
    import simplejpeg

    try:
        simplejpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1, min_factor=1, strict=True)
    except ValueError:
        # A warning, or an error: Pillow accepts what common decoders accept, and load_image asks for the end.
        image = pictures.open_image(data)
        image.draft("L", (1, 1))
        pictures.load_image(image, data)


def _repair(key: str, data: bytes, policy: ImagePolicy, reason: str | None = None) -> CheckedImage:
    """Re-encode an image that is not an RGB or grey JPEG."""
    image = _load(data)
    kind = (reason or image.format or "").lower()
    detail = f"{kind.upper()} ({image.mode}) of {image.width}x{image.height} pixels written as RGB JPEG"
    orientation = _orientation_of(image)
    return _rewrite(data, image, orientation, policy, Event(key, "repaired", kind, detail), repaired=True)


def _rewrite(
    data: bytes, image: Image.Image, orientation: int, policy: ImagePolicy, event: Event | None, *, repaired: bool
) -> CheckedImage:
    from PIL import Image

    rgb = pictures.to_rgb(image, data)
    del image  # at 100 Mpixel every copy is 400 MB
    if policy.apply_exif and orientation != 1:
        # Not ImageOps.exif_transpose: it also writes the EXIF again, and fails if a tag has an odd type.
        rgb = rgb.transpose(Image.Transpose[_TURNS[orientation]])
        orientation = 1
    resized = _shrinks(rgb.height, rgb.width, policy)
    if resized:
        rgb = _shrink(rgb, policy)
    if max(rgb.size) > pictures.MAX_SIDE:
        detail = f"{rgb.width}x{rgb.height} pixels; a JPEG has at most {pictures.MAX_SIDE:,} on a side"
        raise pictures.UnusableImageError("unencodable", detail)
    quality = policy.quality if resized and not repaired else REPAIR_QUALITY
    out, exif = io.BytesIO(), _exif_of(orientation)
    rgb.save(out, "JPEG", quality=quality, subsampling=0 if quality == REPAIR_QUALITY else 2, exif=exif)
    return CheckedImage(out.getvalue(), rgb.height, rgb.width, orientation, event)


def _shrinks(height: int, width: int, policy: ImagePolicy) -> bool:
    return policy.short_side is not None and min(height, width) > policy.short_side


def _shrink(rgb: Image.Image, policy: ImagePolicy) -> Image.Image:
    from PIL import Image

    short = policy.short_side or min(rgb.size)
    scale = short / min(rgb.size)
    size = (max(short, round(rgb.width * scale)), max(short, round(rgb.height * scale)))
    return rgb.resize(size, Image.Resampling.LANCZOS)


def _load(data: bytes) -> Image.Image:
    return pictures.load_image(pictures.open_image(data), data)


def _exif_of(orientation: int) -> bytes:
    """Return EXIF with the orientation, which a conversion reads; empty for upright pixels."""
    from PIL import Image

    if orientation == 1:
        return b""
    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    return exif.tobytes()


def _has_exif(data: bytes) -> bool:
    """Return whether an EXIF block precedes the first scan. Searching the bytes for `Exif` takes 90 us for 110 kB."""
    for marker, at in islice(pictures.jpeg_markers(data), MAX_SEGMENTS):
        if marker == pictures.START_OF_SCAN:
            return False
        if marker == pictures.EXIF_SEGMENT and data.startswith(b"Exif\0\0", at + 2):
            return True
    return False


def _orientation_of(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value: Any = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001  a corrupt EXIF block says nothing about the pixels
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1
