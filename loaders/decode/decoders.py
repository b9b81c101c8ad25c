"""From an image's bytes and its views to one row of a batch, or to patches of one: decode once, crop, scale, flip.

The extension (`_jpeg.c`, over libjpeg-turbo) decodes only what the views need and scales as Pillow does, bit for bit.
Without it, simplejpeg decodes the rows down to the end of the views, and torch or Pillow scales. In either case Pillow
decodes images that are not plain JPEGs; the extension then scales them. Other views of the same image do not change a
view's pixels.

Shapes: N rows of the batch, V views of an image, T tokens, P values of a patch, H height, W width, C = 3 colours, red
first; uint8.
"""

from __future__ import annotations

import base64
import math
import multiprocessing
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from dataprep.arrays import NDArray, np
from dataprep.errors import ImageError, UsageError
from dataprep.formats.pictures import (
    JPEG_MAGIC,
    MAX_PIXELS,
    UnusableImageError,
    has_end,
    load_image,
    open_image,
    refuse_scans,
    to_rgb,
)
from dataprep.messages import did_you_mean, one_line
from loaders.decode.crop import View, as_views

if TYPE_CHECKING:
    from PIL.Image import Image

    Files: TypeAlias = Sequence[bytes | memoryview]
    """Encoded images."""
    Pixels: TypeAlias = NDArray[np.uint8]
    Numbers: TypeAlias = NDArray[np.int32]
    Reasons: TypeAlias = list[str | None]
    """For each image None, or the reason that it could not be decoded."""

Interpolation: TypeAlias = Literal["bilinear", "bicubic", "bilinear-no-antialias"]
"""Interpolation of a view; the last one is tf.image.resize's and OpenCV's."""
Backend: TypeAlias = Literal["auto", "extension", "library"]
MAX_VIEWS = 64
"""Maximum number of views of one image; `_jpeg.c` has the same bound."""
MAX_SCALED_SIDE = 1 << 24
"""Longest side of a scaled view, of which only the output is computed; `_jpeg.c` has the same bound."""
RESIZE_VERSION = 1
"""Version of the extension's arithmetic; part of a decoder's name."""
_PROBE = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4UG1RV19iZ2hnPk1xeXBk"
    "eFxlZ2P/2wBDARESEhgVGC8aGi9jQjhCY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2P/wAARCAAXAB8D"
    "ASIAAhEBAxEB/8QAGQAAAwEBAQAAAAAAAAAAAAAAAAQFAwIG/8QAJRAAAQMDBAICAwAAAAAAAAAAAQACEQMEURITISIxQTOhBWFx/8QAFwEBAQEB"
    "AAAAAAAAAAAAAAAABAUDBv/EACQRAAAEBwABBQAAAAAAAAAAAAABESECAwQSMUFRExQiUmGB/9oADAMBAAIRAxEAPwDy1G10/CNWZVOy/DvqOeKL"
    "6bSHEHdkTAmRx4/uFvTtdXrZ+pVKnUqva4OAozw2CeBx4kk58Z5lKjnmxQNlDwRdQjcv3OhhIqfaxuJIsTQfpollSQDqa4EEeltRtdPwjVmVSFu6"
    "q+eKDA0AMEgT7P7JTFO11etn6lG9QxWtzSdT4/d2dC7T1LOOG2wbG92xCabbBsb3bEIQiVMZy/Lu23LqveppcDhaaOI0DLbYNje7YhNC2DY3u2IQ"
    "hFqYzl+VHtty6r3qaXAvU0cRoP/Z"
)
"""A JPEG of 31 x 23 pixels with half of the chroma, of colours that change from pixel to pixel."""
_PROBE_VIEWS = (View(0, 0, 23, 31, 16, 16, 0, 0, False), View(3, 6, 13, 17, 24, 24, 0, 0, True))
"""Views that make the probe smaller and larger; the second is inside it."""
FILTERS: dict[Interpolation, int] = {"bilinear": 0, "bicubic": 1, "bilinear-no-antialias": 2}
"""The extension's numbers of the interpolations."""
_NOT_BUILT = (
    "loaders.decode._jpeg was not built; install a wheel of tpu-dataprep, which has it, or install a C compiler and "
    "the headers of libjpeg-turbo (libjpeg-turbo8-dev or libjpeg62-turbo-dev) and then tpu-dataprep again"
)


class Decoder(ABC):
    """Writes images into a batch; safe in many threads, and picklable.

    Attributes:
        name: Libraries that decode and scale, with the versions that pixels depend on; part of a loader's state.
        backend: `extension` or `library`.
    """

    backend: Backend

    def __init__(self, name: str, interpolation: Interpolation) -> None:
        self.name = name
        self._interpolation = interpolation

    @cached_property
    def pixels(self) -> str:
        """Digest of a small picture through two views. Decoders of the same one make the same pixels; others do not."""
        found = b""
        for view in _PROBE_VIEWS:
            out_NHWC = np.zeros((1, view.resized_height, view.resized_width, 3), np.uint8)
            self.decode_many([_PROBE], [view], out_NHWC, [0])
            found += out_NHWC.tobytes()
        return f"{zlib.crc32(found):08x}"

    def image_size(self, data: bytes | memoryview) -> tuple[int, int]:
        """Return height and width in pixels, from the header. Raises ImageError if the bytes are not an image of a
        known format."""
        try:
            return self._jpeg_size(data)
        except (ValueError, KeyError):  # KeyError: a colour space that simplejpeg has no name for
            try:
                with open_image(data) as image:
                    return image.height, image.width
            except UnusableImageError as error:
                raise ImageError(f"not an image of a known format: {error}; expected a JPEG") from error

    def decode_many(self, images: Files, views: Sequence[View], out_NHWC: Pixels, rows: Sequence[int]) -> Reasons:
        """Write image i, seen through views[i], to out_NHWC[rows[i]]; see `decode_views`."""
        return self.decode_views(images, [(view,) for view in views], (out_NHWC[:, None],), rows)

    def decode_views(
        self, images: Files, views: Sequence[Sequence[View]] | Numbers, outs: Sequence[Pixels], rows: Sequence[int]
    ) -> Reasons:
        """Decode each image once, and write view v of image i, views[i][v], to the v-th of rows[i] of all `outs`.

        Every view has the pixels that `decode_many` gives for it alone.

        Args:
            images: Encoded files.
            views: Views of each image, or an array of their numbers: one for each view of the `outs`, at most
                `MAX_VIEWS`.
            outs: NVHWC, C-contiguous; each has some of the views, in their order, and its images have the size of these
                views' outputs.
            rows: Row of the `outs` for each image.

        Returns:
            For each image None, or the reason that it could not be decoded; its rows are then filled with 0.
        """
        if not images:
            return []
        views_NV9 = np.ascontiguousarray(views, np.int32)
        reasons = self._decode_jpegs(images, views_NV9, outs, np.asarray(rows, np.int32))
        for index, reason in enumerate(reasons):
            if reason is not None:
                outs_HWC = images_of_row(outs, rows[index])
                reasons[index] = self._decode_by_pillow(images[index], as_views(views_NV9[index]), outs_HWC, reason)
        return reasons

    def decode_letterboxes(
        self, images: Files, views: Sequence[View], out_NHWC: Pixels, rows: Sequence[int]
    ) -> Reasons:
        """Write the complete image i to the middle of out_NHWC[rows[i]], and 0 around it; see `decode_views`."""
        reasons = []
        for data, view, row in zip(images, views, rows, strict=True):
            height, width, out_HWC = view.resized_height, view.resized_width, out_NHWC[row]
            pixels_1TP = np.empty((1, height * width, 3), np.uint8)  # patches of one pixel, in the order of an image
            reasons += self.decode_patches([data], [view._replace(out_top=0, out_left=0)], pixels_1TP, [0])
            top, left = -view.out_top, -view.out_left
            if view.flip:
                left = out_HWC.shape[1] - width - left
            out_HWC[...] = 0
            out_HWC[top : top + height, left : left + width] = pixels_1TP.reshape(height, width, 3)
        return reasons

    def decode_patches(self, images: Files, views: Sequence[View], out_NTP: Pixels, starts: Sequence[int]) -> Reasons:
        """Write the patches of image i, seen through views[i], to the tokens of `out_NTP` from starts[i] on.

        Args:
            images: Encoded files.
            views: One for each image; their resized sides are multiples of the patch, and the complete resized box is
                used.
            out_NTP: C-contiguous; P is 3 * patch * patch, and a patch holds its pixels row by row.
            starts: First token of each image, counted over all rows of `out_NTP`. Its patches follow row by row.

        Returns:
            For each image None, or the reason that it could not be decoded; its patches are then filled with 0.
        """
        places = np.asarray(starts, np.int32)
        reasons = self._decode_jpeg_patches(images, np.asarray(views, np.int32), out_NTP, places)
        for index, reason in enumerate(reasons):
            if reason is None:
                continue
            view = views[index]
            whole_HWC = np.zeros((view.resized_height, view.resized_width, 3), np.uint8)
            reasons[index] = self._decode_by_pillow(images[index], [view], [whole_HWC], reason)
            cut_patches(whole_HWC, out_NTP, starts[index])
        return reasons

    @abstractmethod
    def _decode_jpeg_patches(self, images: Files, views: Numbers, out_NTP: Pixels, starts: Numbers) -> Reasons:
        """Implement `decode_patches` for plain JPEGs."""

    @abstractmethod
    def _jpeg_size(self, data: bytes | memoryview) -> tuple[int, int]:
        """Return height and width of a JPEG. Raises ValueError or KeyError for anything else."""

    @abstractmethod
    def _decode_jpegs(self, images: Files, views: Numbers, outs: Sequence[Pixels], rows: Numbers) -> Reasons:
        """Implement `decode_views` for plain JPEGs."""

    def _decode_by_pillow(
        self, data: bytes | memoryview, views: Sequence[View], outs_HWC: Sequence[Pixels], reason: str
    ) -> str | None:
        """Decode images that a JPEG decoder refuses: CMYK, arithmetic coding, PNG."""
        try:
            with open_image(data) as image:
                check_views(views, image.height, image.width, outs_HWC)
                rgb = to_rgb(load_image(image, data), data)
        except MemoryError:
            raise  # not the image's fault
        except Exception as error:  # noqa: BLE001  hostile bytes raise anything
            for out_HWC in outs_HWC:
                out_HWC[...] = 0
            return f"{reason}; by Pillow: {_reason(error)}"
        self._scale_image(rgb, views, outs_HWC)
        return None

    def _scale_image(self, image: Image, views: Sequence[View], outs_HWC: Sequence[Pixels]) -> None:
        """Scale the views of an image that Pillow decoded."""
        image_HWC = np.asarray(image)
        for view, out_HWC in zip(views, outs_HWC, strict=True):
            out_HWC[...] = scale_by_pillow(image_HWC, view, out_HWC.shape[:2], self._interpolation)


def open_decoder(interpolation: Interpolation = "bicubic", backend: Backend = "auto") -> Decoder:
    """Open the best decoder that is installed.

    Args:
        interpolation: Interpolation of a view.
        backend: `auto` takes the extension if it was built, else the libraries, with one warning.

    Raises:
        UsageError: A name is unknown, or `backend` is `extension`, which was not built.
    """
    for name, value, kind in (("interpolation", interpolation, Interpolation), ("decoder", backend, Backend)):
        known = get_args(kind)
        if value not in known:
            raise UsageError(f"{name} must be one of {', '.join(known)}, got {value!r}{did_you_mean(value, known)}")
    if backend == "library":
        return _LibraryDecoder(interpolation)
    if extension_available():
        return _ExtensionDecoder(interpolation)
    if backend == "extension":
        raise UsageError(f"decoder 'extension': {_NOT_BUILT}, or choose 'auto'")
    warn_of_libraries(backend)
    return _LibraryDecoder(interpolation)


def warn_of_libraries(backend: Backend) -> None:
    """Warn once in a process if `auto` falls back to the libraries, which are slower."""
    # A loader's worker processes would repeat their parent's warning.
    if backend == "auto" and not extension_available() and multiprocessing.parent_process() is None:
        _warn_once()


@cache
def _warn_once() -> None:
    if find_spec("torch"):
        slower = "simplejpeg decodes and torch scales, which takes about twice the processor time"
    else:
        slower = (
            "simplejpeg decodes and Pillow scales, which takes about three times the processor time; torch is faster"
        )
    warnings.warn(f"{_NOT_BUILT}, or choose decoder='library'; until then {slower}", UserWarning, stacklevel=4)


def extension_available() -> bool:
    """Whether the C extension was built when this package was installed."""
    try:
        import loaders.decode._jpeg  # noqa: F401
    except ImportError:
        return False
    return True


class _ExtensionDecoder(Decoder):
    """The C extension."""

    backend = "extension"

    def __init__(self, interpolation: Interpolation) -> None:
        from loaders.decode import _jpeg

        library, resizer = f"libjpeg-turbo {_jpeg.LIBRARY_VERSION} crop", f"{_title(interpolation)} v{RESIZE_VERSION}"
        super().__init__(f"{library}, {resizer}", interpolation)

    def _jpeg_size(self, data: bytes | memoryview) -> tuple[int, int]:
        from loaders.decode import _jpeg

        return _jpeg.image_size(data)

    def _decode_jpegs(self, images: Files, views: Numbers, outs: Sequence[Pixels], rows: Numbers) -> Reasons:
        from loaders.decode import _jpeg

        return _jpeg.decode_views(images, views, rows, outs, FILTERS[self._interpolation])

    def _decode_jpeg_patches(self, images: Files, views: Numbers, out_NTP: Pixels, starts: Numbers) -> Reasons:
        from loaders.decode import _jpeg

        patch = patch_side(out_NTP)
        return _jpeg.decode_patches(images, views, starts, out_NTP, FILTERS[self._interpolation], patch)

    def _scale_image(self, image: Image, views: Sequence[View], outs_HWC: Sequence[Pixels]) -> None:
        from loaders.decode import _jpeg

        # Pillow's pixels differ from ours without antialiasing, where it scales a narrow box's height first, and where
        # `scale_by_pillow` computes the output alone.
        odd = (
            view.height > 100 * view.width or view.resized_height * view.resized_width > MAX_PIXELS for view in views
        )
        if self._interpolation == "bilinear-no-antialias" or any(odd):
            super()._scale_image(image, views, outs_HWC)
            return
        pixels = image.tobytes("raw", "RGBX")
        for view, out_HWC in zip(views, outs_HWC, strict=True):
            _jpeg.scale_view(pixels, image.height, image.width, view, out_HWC, FILTERS[self._interpolation])


class _LibraryDecoder(Decoder):
    """Uses simplejpeg, and torch or Pillow, with about half of the extension's speed (docs/decisions/0022)."""

    backend = "library"

    def __init__(self, interpolation: Interpolation) -> None:
        import simplejpeg

        try:
            import torch
        except ImportError:
            import PIL

            resizer, self._scale = f"Pillow {PIL.__version__}", scale_by_pillow
        else:
            resizer, self._scale = f"torch {torch.__version__}", _scale_by_torch
        super().__init__(f"simplejpeg {simplejpeg.__version__}, {resizer} {_title(interpolation)}", interpolation)

    def _jpeg_size(self, data: bytes | memoryview) -> tuple[int, int]:
        import simplejpeg

        height, width, _, _ = simplejpeg.decode_jpeg_header(data, strict=False)
        return height, width

    def _decode_jpegs(self, images: Files, views: Numbers, outs: Sequence[Pixels], rows: Numbers) -> Reasons:
        return [
            self._decode_jpeg(data, as_views(numbers_V9), images_of_row(outs, row))
            for data, numbers_V9, row in zip(images, views, rows.tolist(), strict=True)
        ]

    def _decode_jpeg_patches(self, images: Files, views: Numbers, out_NTP: Pixels, starts: Numbers) -> Reasons:
        reasons = []
        for data, numbers, start in zip(images, views.tolist(), starts.tolist(), strict=True):
            view = View(*numbers)
            whole_HWC = np.zeros((view.resized_height, view.resized_width, 3), np.uint8)
            reasons.append(self._decode_jpeg(data, [view], [whole_HWC]))
            cut_patches(whole_HWC, out_NTP, start)
        return reasons

    def _decode_jpeg(self, data: bytes | memoryview, views: Sequence[View], outs_HWC: Sequence[Pixels]) -> str | None:
        import simplejpeg

        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(data, strict=False)
            if colours in ("CMYK", "YCCK"):
                return f"{colours} colours"
            check_views(views, height, width, outs_HWC)
            refuse_scans(data, height, width)
            if data[:3] != JPEG_MAGIC:
                return "its first marker is not behind its start"
            if not has_end(data):
                return "its data end early: it has no end marker"
            image_HWC = _decode_rows(data, max(view.top + view.height for view in views))
        except (UnusableImageError, ValueError, KeyError) as error:
            return _reason(error)
        for view, out_HWC in zip(views, outs_HWC, strict=True):
            out_HWC[...] = self._scale(image_HWC, view, out_HWC.shape[:2], self._interpolation)
        return None


def _decode_rows(data: bytes | memoryview, rows: int) -> Pixels:
    """Decode at least the first `rows` rows of a JPEG. Raises ValueError if it cannot be decoded."""
    import simplejpeg

    shorter = without_lower_rows(data, rows)
    try:
        image_HWC: Pixels = simplejpeg.decode_jpeg(shorter, strict=False)
    except ValueError:
        if shorter is data:
            raise
        # Damaged bytes below the needed rows may be an error only for the shortened image.
        image_HWC = simplejpeg.decode_jpeg(data, strict=False)
    return image_HWC


def images_of_row(outs: Sequence[Pixels], row: int) -> list[Pixels]:
    """Return the images of one row, each HWC, in the order of its views."""
    return [image_HWC for out_NVHWC in outs for image_HWC in out_NVHWC[row]]


def patch_side(patches: Pixels) -> int:
    """Return the side of patches whose last axis holds their pixels."""
    return math.isqrt(patches.shape[-1] // 3)


def cut_patches(image_HWC: Pixels, out_NTP: Pixels, start: int) -> None:
    """Write the patches of an image to the tokens of `out_NTP` from `start` on, counted over all rows of it."""
    side = patch_side(out_NTP)
    rows, columns = image_HWC.shape[0] // side, image_HWC.shape[1] // side
    patches = image_HWC.reshape(rows, side, columns, side, 3).swapaxes(1, 2).reshape(rows * columns, -1)
    out_NTP.reshape(-1, out_NTP.shape[-1])[start : start + len(patches)] = patches


def image_of_patches(patches_TV: Pixels, columns: int) -> Pixels:
    """Assemble the image (H, W, 3) from its patches, `columns` of them in each row of the grid; return a copy."""
    side = patch_side(patches_TV)
    rows = len(patches_TV) // columns
    pixels = patches_TV.reshape(rows, columns, side, side, 3)
    return pixels.swapaxes(1, 2).reshape(rows * side, columns * side, 3)


def check_views(views: Sequence[View], height: int, width: int, outs_HWC: Sequence[Pixels]) -> None:
    """Raise ValueError, as the libraries do, for views that would take too much memory, or reach outside the image."""
    for view, out_HWC in zip(views, outs_HWC, strict=True):
        if height * width > MAX_PIXELS:
            raise ValueError(f"more than {MAX_PIXELS:,} pixels")
        inside = 0 <= view.top <= height - view.height and 0 <= view.left <= width - view.width
        if not inside or view.height < 1 or view.width < 1:
            raise ValueError("the view is not inside the image")
        rows, columns, _ = out_HWC.shape
        inside = 0 <= view.out_top <= view.resized_height - rows and 0 <= view.out_left <= view.resized_width - columns
        if not inside or max(view.resized_height, view.resized_width) > MAX_SCALED_SIDE:
            raise ValueError("the output is not inside the resized view")


def scale_by_pillow(image_HWC: Pixels, view: View, size: tuple[int, ...], interpolation: Interpolation) -> Pixels:
    """Return the output of a view, shape (*size, 3), as torchvision's transforms on PIL images make it."""
    from PIL import Image

    box = Image.fromarray(_box(image_HWC, view))
    rows, columns = size
    left, top, scaled_size = view.out_left, view.out_top, (view.resized_width, view.resized_height)
    area = (0.0, 0.0, float(view.width), float(view.height))
    if math.prod(scaled_size) > MAX_PIXELS:
        # Only the output of a long, thin image is computed: two grey levels off at most, as Pillow rounds the area.
        right, down = view.width / view.resized_width, view.height / view.resized_height
        ends = (min((left + columns) * right, view.width), min((top + rows) * down, view.height))
        area, left, top, scaled_size = (left * right, top * down, *ends), 0, 0, (columns, rows)
    if interpolation == "bilinear-no-antialias":
        scaled = box.transform(scaled_size, Image.Transform.EXTENT, area, Image.Resampling.BILINEAR)
    else:
        scaled = box.resize(scaled_size, getattr(Image.Resampling, interpolation.upper()), area)
    window = scaled.crop((left, top, left + columns, top + rows))
    # Pillow mirrors in a tenth of NumPy's time, which copies three bytes at a time.
    return np.asarray(window.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if view.flip else window)


def _scale_by_torch(image_HWC: Pixels, view: View, size: tuple[int, ...], interpolation: Interpolation) -> Pixels:
    """Return the output of a view: at most two grey levels from Pillow's, 0.003 on average, in a sixth of its time."""
    import torch

    if view.resized_height * view.resized_width > MAX_PIXELS:
        return scale_by_pillow(image_HWC, view, size, interpolation)
    rows, columns = size
    with torch.inference_mode():
        # If the first axis is added before the others move, torch sees channels-last memory and keeps it.
        box_1CHW = torch.from_numpy(_box(image_HWC, view))[None].permute(0, 3, 1, 2)
        scaled_1CHW = torch.nn.functional.interpolate(
            box_1CHW,
            (view.resized_height, view.resized_width),
            mode="bicubic" if interpolation == "bicubic" else "bilinear",
            antialias=interpolation != "bilinear-no-antialias",
        )
        scaled_HWC = scaled_1CHW[0].permute(1, 2, 0)
        window = scaled_HWC[view.out_top : view.out_top + rows, view.out_left : view.out_left + columns]
        # torch mirrors in a tenth of NumPy's time, which copies three bytes at a time.
        return (window.flip(1) if view.flip else window).numpy()


def _box(image_HWC: Pixels, view: View) -> Pixels:
    return image_HWC[view.top : view.top + view.height, view.left : view.left + view.width]


def _title(interpolation: Interpolation) -> str:
    return "bilinear" if interpolation == "bilinear-no-antialias" else f"{interpolation} antialiased"


def _reason(error: BaseException) -> str:
    """Return an error's text on one line, without the address that Pillow puts into some."""
    return one_line(error).partition(" <_io.BytesIO")[0]


_SCAN, _START_OF_IMAGE = 0xDA, b"\xff\xd8"
_WITH_ONE_SCAN = (0xC0, 0xC1)
"""Markers of frames whose rows are coded one after another, if all components are in the first scan; others are
progressive or arithmetic."""
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEGMENTS = frozenset(range(0xC0, 0xFF)) - frozenset(range(0xD0, 0xDA))
"""Markers with a length after them."""
_BELOW = 2
"""Extra rows below the last needed one: chroma with half of the rows is smoothed with the row below."""
_LEAST_SAVED = 16
"""Minimum number of saved rows for which copying the file with another header pays off."""


def without_lower_rows(data: bytes | memoryview, rows: int) -> bytes | bytearray | memoryview:
    """Return a JPEG that begins with the same rows, and ends soon after the first `rows` ones: a copy with a smaller
    height in its header; the file itself if that saves little, if rows are not coded from top to bottom, or if the
    header is unusual."""
    found = _find_height(data)
    if found is None:
        return data
    place, height = found
    if height - rows < _BELOW + _LEAST_SAVED:
        return data
    shorter = bytearray(data)
    shorter[place : place + 2] = (rows + _BELOW).to_bytes(2, "big")
    return shorter


def _find_height(data: bytes | memoryview) -> tuple[int, int] | None:
    """Return the position of the height in a baseline JPEG of one scan, and the height."""
    frame, at = 0, len(_START_OF_IMAGE)
    if bytes(data[:at]) != _START_OF_IMAGE:
        return None
    while at + 9 < len(data) and data[at] == 0xFF and data[at + 1] in _SEGMENTS:
        marker = data[at + 1]
        if marker in _FRAMES:
            if frame or marker not in _WITH_ONE_SCAN:
                return None
            frame = at
        if marker == _SCAN:
            # Number of components in the frame and in the scan.
            if not frame or data[frame + 9] != data[at + 4]:
                return None
            return frame + 5, _number(data, frame + 5)
        at += 2 + _number(data, at + 2)
    return None


def _number(data: bytes | memoryview, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "big")
