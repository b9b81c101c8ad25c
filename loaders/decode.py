"""From an image's bytes and a view to one row of a batch: decode, cut, scale, flip.

The extension (`loaders/_jpeg.c`, over libjpeg-turbo) decodes only what the view needs and scales as Pillow does, bit
for bit. Without it simplejpeg decodes the whole image, and torch or Pillow scales. What is no plain JPEG goes through
Pillow in either case. Shapes: N rows of the batch, H height, W width, C = 3 colours, red first; uint8.
"""

from __future__ import annotations

import difflib
import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dataprep.errors import ImageError, UsageError
from dataprep.images import MAX_PIXELS, REPAIRABLE_FORMATS
from loaders.augment import View

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    from loaders.config import LoaderConfig

INTERPOLATIONS = {"bilinear": 0, "bicubic": 1, "bilinear-no-antialias": 2}
"""Numbers that the extension knows them by. Without antialiasing as tf.image.resize and OpenCV have it."""
BACKENDS = ("auto", "extension", "library")
RESIZE_VERSION = 1
"""Of the extension's arithmetic; part of a decoder's name."""


class Decoder(ABC):
    """Writes images into a batch; safe in many threads, and picklable.

    Attributes:
        name: What decodes and scales, with all on which the pixels depend; part of a loader's state.
    """

    def __init__(self, name: str, interpolation: str) -> None:
        self.name = name
        self._interpolation = interpolation

    def image_size(self, data: bytes | memoryview) -> tuple[int, int]:
        """Height and width in pixels, from the header.

        Raises:
            ImageError: It is no image of a known format.
        """
        try:
            return self._jpeg_size(data)
        except (ValueError, KeyError):  # KeyError: a colour space that simplejpeg has no name for
            try:
                with _open(data) as image:
                    return image.height, image.width
            except Exception as error:
                raise ImageError(f"no image of a known format: {_line(error)}; expected a JPEG") from error

    def decode_many(
        self,
        images: Sequence[bytes | memoryview],
        views: Sequence[View],
        out_NHWC: NDArray[np.uint8],
        rows: Sequence[int],
    ) -> list[str | None]:
        """Write image i, seen through views[i], to out_NHWC[rows[i]].

        Args:
            images: Files.
            views: Of the same number.
            out_NHWC: C-contiguous, rows of size x size pixels; the views' outputs are of that size.
            rows: Of the same number.

        Returns:
            Of each image None, or why it could not be decoded: then its row is 0.
        """
        import numpy as np

        reasons = self._decode_jpegs(images, np.asarray(views, np.int32), out_NHWC, np.asarray(rows, np.int32))
        for index, reason in enumerate(reasons):
            if reason is not None:
                reasons[index] = self._decode_by_pillow(images[index], views[index], out_NHWC[rows[index]], reason)
        return reasons

    @abstractmethod
    def _jpeg_size(self, data: bytes | memoryview) -> tuple[int, int]:
        """Height and width of a JPEG. Raises ValueError or KeyError for anything else."""

    @abstractmethod
    def _decode_jpegs(
        self,
        images: Sequence[bytes | memoryview],
        views: NDArray[np.int32],
        out_NHWC: NDArray[np.uint8],
        rows: NDArray[np.int32],
    ) -> list[str | None]:
        """What `decode_many` returns, before Pillow tries what is no plain JPEG."""

    def _decode_by_pillow(
        self, data: bytes | memoryview, view: View, out_HWC: NDArray[np.uint8], reason: str
    ) -> str | None:
        """What no JPEG decoder takes: CMYK, arithmetic coding, PNG."""
        import numpy as np

        try:
            with _open(data) as image:
                check_view(view, image.height, image.width, len(out_HWC))
                image_HWC = np.asarray(image.convert("RGB"))
        except Exception as error:  # noqa: BLE001  hostile bytes raise anything
            out_HWC[...] = 0
            return f"{reason}; by Pillow: {_line(error)}"
        out_HWC[...] = scale_by_pillow(image_HWC, view, len(out_HWC), self._interpolation)
        return None


def open_decoder(interpolation: str = "bicubic", backend: str = "auto") -> Decoder:
    """The best decoder that is installed.

    Args:
        interpolation: How a view is scaled.
        backend: `auto` takes the extension where it was built.

    Raises:
        UsageError: An unknown name, or the extension is asked for and was not built.
    """
    for name, value, known in (("interpolation", interpolation, INTERPOLATIONS), ("decoder", backend, BACKENDS)):
        if value not in known:
            nearest = difflib.get_close_matches(str(value), known, 1)
            raise UsageError(
                f"{name} must be one of {', '.join(known)}, got {value!r}"
                + (f"; did you mean {nearest[0]!r}?" if nearest else "")
            )
    if backend == "library" or (backend == "auto" and not extension_available()):
        return _LibraryDecoder(interpolation)
    if not extension_available():
        raise UsageError(
            "decoder 'extension': loaders._jpeg was not built; install a C compiler and the headers of libjpeg-turbo "
            "(libjpeg-turbo8-dev or libjpeg62-turbo-dev) and install dataprep again, or choose 'auto'"
        )
    return _ExtensionDecoder(interpolation)


def extension_available() -> bool:
    """Whether the extension was built when this was installed."""
    try:
        import loaders._jpeg  # noqa: F401
    except ImportError:
        return False
    return True


def decoder_name(config: LoaderConfig) -> str:
    """The name of the decoder that a loader of these settings takes.

    Raises:
        UsageError: As `open_decoder`.
    """
    return open_decoder(config.interpolation, config.decoder).name


class _ExtensionDecoder(Decoder):
    def __init__(self, interpolation: str) -> None:
        from loaders import _jpeg

        library, resizer = f"libjpeg-turbo {_jpeg.LIBRARY_VERSION} crop", f"{_title(interpolation)} v{RESIZE_VERSION}"
        super().__init__(f"{library}, {resizer}", interpolation)

    def _jpeg_size(self, data: bytes | memoryview) -> tuple[int, int]:
        from loaders import _jpeg

        return _jpeg.image_size(data)

    def _decode_jpegs(
        self,
        images: Sequence[bytes | memoryview],
        views: NDArray[np.int32],
        out_NHWC: NDArray[np.uint8],
        rows: NDArray[np.int32],
    ) -> list[str | None]:
        from loaders import _jpeg

        return _jpeg.decode_many(images, views, rows, out_NHWC, INTERPOLATIONS[self._interpolation])


class _LibraryDecoder(Decoder):
    """simplejpeg, and torch or Pillow: twice the time of the extension."""

    def __init__(self, interpolation: str) -> None:
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

    def _decode_jpegs(
        self,
        images: Sequence[bytes | memoryview],
        views: NDArray[np.int32],
        out_NHWC: NDArray[np.uint8],
        rows: NDArray[np.int32],
    ) -> list[str | None]:
        return [
            self._decode_jpeg(data, View(*view), out_NHWC[row])
            for data, view, row in zip(images, views.tolist(), rows.tolist(), strict=True)
        ]

    def _decode_jpeg(self, data: bytes | memoryview, view: View, out_HWC: NDArray[np.uint8]) -> str | None:
        import simplejpeg

        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(data, strict=False)
            if colours in ("CMYK", "YCCK"):
                return f"{colours} colours"
            check_view(view, height, width, len(out_HWC))
            image_HWC = simplejpeg.decode_jpeg(data, strict=False)
        except (ValueError, KeyError) as error:
            return _line(error)
        out_HWC[...] = self._scale(image_HWC, view, len(out_HWC), self._interpolation)
        return None


def check_view(view: View, height: int, width: int, size: int) -> None:
    """Refuse what would take too much memory, or reach outside of the image.

    Raises:
        ValueError: So that it can be told from what libraries raise by nothing: it is a reason as theirs are.
    """
    scaled_pixels = view.resized_height * view.resized_width
    if max(height * width, scaled_pixels) > MAX_PIXELS:
        raise ValueError(f"more than {MAX_PIXELS:,} pixels")
    inside = 0 <= view.top <= height - view.height and 0 <= view.left <= width - view.width
    if not inside or view.height < 1 or view.width < 1:
        raise ValueError("the view is not inside the image")
    if not (0 <= view.out_top <= view.resized_height - size and 0 <= view.out_left <= view.resized_width - size):
        raise ValueError("the output is not inside the resized view")


def scale_by_pillow(image_HWC: NDArray[np.uint8], view: View, size: int, interpolation: str) -> NDArray[np.uint8]:
    """The output of a view, shape (size, size, 3), as torchvision's transforms on PIL images make it."""
    import numpy as np
    from PIL import Image

    box = Image.fromarray(_box(image_HWC, view))
    scaled_size = (view.resized_width, view.resized_height)
    if interpolation == "bilinear-no-antialias":
        extent = (0, 0, view.width, view.height)
        scaled = box.transform(scaled_size, Image.Transform.EXTENT, extent, Image.Resampling.BILINEAR)
    else:
        scaled = box.resize(scaled_size, getattr(Image.Resampling, interpolation.upper()))
    return _window(np.asarray(scaled), view, size)


def _scale_by_torch(image_HWC: NDArray[np.uint8], view: View, size: int, interpolation: str) -> NDArray[np.uint8]:
    """Within two grey levels of Pillow, 0.003 in the mean, in a fifth of its time."""
    import numpy as np
    import torch

    box_1CHW = torch.from_numpy(np.ascontiguousarray(_box(image_HWC, view))).permute(2, 0, 1)[None]
    scaled_1CHW = torch.nn.functional.interpolate(
        box_1CHW,
        (view.resized_height, view.resized_width),
        mode="bicubic" if interpolation == "bicubic" else "bilinear",
        antialias=interpolation != "bilinear-no-antialias",
    )
    return _window(scaled_1CHW[0].permute(1, 2, 0).numpy(), view, size)


def _box(image_HWC: NDArray[np.uint8], view: View) -> NDArray[np.uint8]:
    return image_HWC[view.top : view.top + view.height, view.left : view.left + view.width]


def _window(scaled_HWC: NDArray[np.uint8], view: View, size: int) -> NDArray[np.uint8]:
    window = scaled_HWC[view.out_top : view.out_top + size, view.out_left : view.out_left + size]
    return window[:, ::-1] if view.flip else window


def _open(data: bytes | memoryview) -> Image.Image:
    """An image whose header was read; formats that a build repairs, no others: Pillow runs programs for some."""
    from PIL import Image

    return Image.open(io.BytesIO(data), formats=REPAIRABLE_FORMATS)


def _title(interpolation: str) -> str:
    return "bilinear" if interpolation == "bilinear-no-antialias" else f"{interpolation} antialiased"


def _line(error: BaseException) -> str:
    """An error's text on one line, without the address that Pillow puts into some."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.partition(" <_io.BytesIO")[0][:200]
