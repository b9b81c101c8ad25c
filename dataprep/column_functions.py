"""Functions that make columns: what they take and return, how workers find them, and what becomes of their values."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from dataprep.arrays import NDArray, np
from dataprep.dataset.column_files import ColumnType
from dataprep.errors import UsageError
from dataprep.formats import pictures
from dataprep.messages import counted, one_line, quoted, shown, there_are
from dataprep.sources.base import CLASS_NAME
from dataprep.sources.custom import calling, imported, module_digest

BUILT_IN: Mapping[str, str] = {name: f"{__name__}:{name}" for name in ("phash", "sharpness")}
"""`module:NAME` of the functions of this package, by the names that users give."""
MODELS: Mapping[str, str] = {
    "open_clip": "train.models.encoders:OpenClip",
    "timm": "train.models.encoders:Timm",
    "vae": "train.models.encoders:Vae",
}
"""`module:NAME` of the classes of networks, by the libraries that users give: `timm:MODEL`."""
_TAKES = "_dataprep_columns"
"""Attribute of a function or class with what it takes."""
F = TypeVar("F")


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Decorator of a function, or of a class whose objects are called, that says what it takes and returns:

        @dataprep.Columns(size=224, returns=dataprep.ColumnType("array", "float16", (512,)))
        def encode(samples): ...

    Without it, a function gets RGB arrays and the type of its first value is the column's. A class is created once in
    each process. Raises UsageError for a value out of range.
    """

    images: Literal["rgb", "bytes", "none"] = "rgb"
    """Decoded images, the bytes of their files, or none."""
    size: int | None = None
    """Pixels of a side of decoded images: the shorter side is scaled to it, and the centre cut; None for no change."""
    fields: tuple[str, ...] = ()
    """Stored fields and other columns that it gets."""
    returns: ColumnType | None = None
    """Type of a value; None takes that of the first."""
    batch: int = 64
    """Samples of a call; the last call for a shard has fewer."""
    nan: bool = False
    """Whether NaN is a value; otherwise it is an error."""
    version: str = ""
    """Version of the values; empty takes a digest of the module's source."""

    def __post_init__(self) -> None:
        """Check the values."""
        if (
            self.images not in ("rgb", "bytes", "none")
            or not isinstance(self.returns, ColumnType | None)
            or not isinstance(self.fields, tuple)
            or not 1 <= self.batch < 2**31
            or (self.size is not None and (self.images != "rgb" or not 1 <= self.size <= pictures.MAX_SIDE))
        ):
            raise UsageError(
                f"{self}: expected images rgb, bytes or none, a size of 1 pixel or more for rgb, a tuple of fields, a "
                "ColumnType, and a batch of 1 or more"
            )

    def __call__(self, function: F) -> F:
        """Mark a function or class, and return it."""
        setattr(function, _TAKES, self)
        return function


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """A batch of samples, as a function gets it."""

    keys: tuple[str, ...]
    images: Any
    """RGB arrays, each uint8 of shape (height, width, 3), or one array of shape (batch, size, size, 3); or bytes."""
    labels: NDArray[np.int64]
    """Shape (batch,); -1 without a label."""
    fields: Mapping[str, Sequence[Any]]
    """Values of the fields by name; None where a sample lacks it."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.keys)


@dataclass(frozen=True, kw_only=True, slots=True)
class Function:
    """A function as workers find it."""

    place: str
    """`module:NAME`, or `timm:MODEL`."""
    version: str
    digest: str
    """Digest of the source of its module here, or version of the model's weights."""
    takes: Columns
    folder: str
    """Folder in which its module may be."""
    devices: int = 0
    """Accelerators of a machine, of which each process takes one for itself; 0: a process sees all."""
    model: str = ""
    """Name of a model and its weights, with which a class of MODELS is created."""
    size: int | None = None
    """Pixels of a side of the model's images; None as its configuration says."""

    def load(self) -> Callable[[Samples], Any]:
        """Import the function, or create the object that is called. Raises SourceError if that raises, and UsageError
        if the module, a package that it needs or the function is missing, or the module here is another."""
        if self.devices:
            take_device(self.devices)
        if Path(self.folder).is_dir() and self.folder not in sys.path:
            sys.path.append(self.folder)
        given = []
        if self.model:
            found = _imported(MODELS[self.place.partition(":")[0]])[0]
            weights = found.find(self.model)
            given, digest = [weights, self.size], weights.version
        else:
            found, digest = _imported(self.place)
        if digest != self.digest:
            what = "other weights, or another version of the library" if self.model else "another edition of its module"
            raise UsageError(f"{self.place}: {socket.gethostname()} has {what}; give every worker the same")
        if not isinstance(found, type):
            return found  # type: ignore[no-any-return]
        with calling(f"{self.place}: creating it"):
            return found(*given)  # type: ignore[no-any-return]


@cache
def take_device(devices: int) -> int:
    """Leave this process, and the frameworks that it imports later, one accelerator that no other process has taken.
    Raises UsageError if all are taken."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(devices)))
    for number, device in enumerate(visible.split(",")[:devices]):
        path = Path(tempfile.gettempdir(), f"accelerator-{os.getuid()}-{device}.lock")
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends
        except BlockingIOError:
            os.close(lock)
            continue
        os.environ |= {"CUDA_VISIBLE_DEVICES": device, "TPU_VISIBLE_CHIPS": device, "HIP_VISIBLE_DEVICES": device}
        return number
    raise UsageError(f"`devices` {devices}: other processes have taken {visible}")


def place_of(function: str | Callable[..., Any]) -> str:
    """Return the `module:NAME` of a function; a text is one. Raises UsageError if workers cannot import it."""
    if isinstance(function, str):
        return function
    name = getattr(function, "__qualname__", type(function).__qualname__)
    place = f"{getattr(function, '__module__', '__main__')}:{name}"
    if not CLASS_NAME.fullmatch(place) or place.startswith("__main__:") or _imported(place)[0] is not function:
        raise UsageError(f"{name}: workers import functions; put it at the top of a module of its own")
    return place


def find_function(
    given: str, *, version: str = "", batch: int | None = None, size: int | None = None, devices: int = 0
) -> Function:
    """Find a function by its `module:NAME`, its name in BUILT_IN, or a model by its name. Raises UsageError if there is
    none, and SourceError if the model's library, or the Hub that has it, refuses."""
    place, library, model = BUILT_IN.get(given, given), *given.partition(":")[::2]
    if library in MODELS and model:
        found = _imported(MODELS[library])[0]
        weights = found.find(model)
        place, model, digest = f"{library}:{weights.name}", weights.given, weights.version
        own = digest
    elif not CLASS_NAME.fullmatch(place):
        known = [*BUILT_IN, *(f"{each}:MODEL" for each in MODELS)]
        raise UsageError(
            f"`columns`: {quoted(given)}, expected module:NAME, or a table such as captions.parquet"
            f"{there_are(given, known)}"
        )
    else:
        model = ""
        found, digest = _imported(place)
        own = getattr(found, _TAKES, Columns()).version or digest
    takes = getattr(found, _TAKES, Columns())
    if size is not None:
        takes, own = takes if model else replace(takes, size=size), f"{own}, {size} pixels"
    return Function(
        place=place,
        version=version or own,
        digest=digest,
        takes=takes if batch is None else replace(takes, batch=batch),
        folder=str(Path.cwd()),
        devices=devices,
        model=model,
        size=size,
    )


def _imported(place: str) -> tuple[Any, str]:
    """Return what `module:NAME` is, and the digest of its module."""
    module, name = imported(place), place.partition(":")[2]
    found = getattr(module, name, None)
    if not callable(found):
        own = ((each, value) for each, value in vars(module).items() if not each.startswith("_") and callable(value))
        known = [each for each, value in own if getattr(value, "__module__", "") == module.__name__]
        raise UsageError(f"{place}: not a function of its module{there_are(name, known)}")
    return found, module_digest(module)


def decoded(data: bytes, size: int | None = None) -> NDArray[np.uint8]:
    """Return an image as RGB, shape (height, width, 3), or (size, size, 3): its shorter side scaled, its centre cut.
    Raises UnusableImageError if it cannot be decoded."""
    import simplejpeg

    rgb: NDArray[np.uint8] | None = None
    if data.startswith(pictures.JPEG_MAGIC):
        with suppress(ValueError, KeyError):  # Pillow reads what is left: CMYK, and what libjpeg warns of
            height, width, colours, _ = simplejpeg.decode_jpeg_header(data, strict=True)
            pictures.refuse_size(height, width)
            pictures.refuse_scans(data, height, width)
            if colours not in ("CMYK", "YCCK"):
                rgb = simplejpeg.decode_jpeg(data, "RGB", strict=True)
    if rgb is None:
        with pictures.open_image(data) as image:
            rgb = np.array(pictures.to_rgb(pictures.load_image(image, data), data))
    return rgb if size is None else scaled(rgb, size)


def scaled(rgb: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Return an RGB array as (size, size, 3): its shorter side scaled, its centre cut."""
    from PIL import Image

    height, width = rgb.shape[:2]
    side = min(height, width)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    return np.array(Image.fromarray(rgb).resize((size, size), Image.Resampling.BICUBIC, box))


# Values that a function returns


def type_of(result: Any) -> ColumnType:
    """Return the type of the first of the values that a function has returned. Raises ValueError."""
    values = _rows(result)
    first = values[0] if len(values) else None
    if isinstance(first, str):
        return ColumnType("text")
    if isinstance(first, bytes | bytearray | memoryview):
        return ColumnType("bytes")
    array = _array(first)
    try:
        return ColumnType("array", array.dtype.name, array.shape)  # type: ignore[arg-type]
    except UsageError as error:
        raise ValueError(f"a value of type {type(first).__name__} ({array.dtype} {array.shape}): {error}") from error


def conformed(kind: ColumnType, result: Any, keys: Sequence[str], *, nan: bool) -> Any:
    """Return the values that a function has returned for samples: an array (samples, *shape), or a list of values of a
    free size. Raises ValueError if their number or a value is not what the type says."""
    values = _rows(result)
    if len(values) != len(keys):
        raise ValueError(f"{counted(len(values), 'value')} for {counted(len(keys), 'sample')}")
    found = []
    for key, value in zip(keys, values, strict=True):
        try:
            found.append(_converted(kind, value, nan=nan))
        except (ValueError, TypeError) as error:
            raise ValueError(f"value of {shown(key)}: {one_line(error)}, expected {kind}") from error
    return found if kind.is_free else np.stack(found)


def _rows(result: Any) -> Any:
    """Return values one by one; tensors as arrays in this process's memory."""
    if isinstance(result, str | bytes) or not hasattr(result, "__len__"):
        raise ValueError(f"one {type(result).__name__}, expected a value for each sample")
    return _array(result) if hasattr(result, "dtype") else result


def _array(value: Any) -> NDArray[Any]:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)  # a tensor of PyTorch has it


def _converted(kind: ColumnType, value: Any, *, nan: bool) -> Any:
    if kind.kind == "text":
        if not isinstance(value, str):
            raise ValueError(f"a {type(value).__name__}")
        value.encode()
        return value
    if kind.kind == "bytes":
        if not isinstance(value, bytes | bytearray | memoryview):
            raise ValueError(f"a {type(value).__name__}")
        return bytes(value)
    array, dtype = _array(value), np.dtype(kind.dtype)
    fits = len(array.shape) == len(kind.shape)
    fits = fits and all(want in (None, have) for want, have in zip(kind.shape, array.shape, strict=True))
    are_whole = array.dtype.kind in "biu" and dtype.kind in "biu"
    if not fits or not (are_whole or np.can_cast(array.dtype, dtype, "same_kind")):
        raise ValueError(f"{array.dtype} {array.shape}")
    with np.errstate(over="ignore"):
        cast = array.astype(dtype, copy=False)
    if dtype.kind != "f":
        if cast.dtype != array.dtype and (cast != array).any():
            raise ValueError(f"{array.dtype} out of range")
        return cast
    if not nan and np.isnan(cast).any():
        raise ValueError("NaN; a function says with nan=True that it is a value")
    if (np.isinf(cast) & ~np.isinf(array)).any():
        raise ValueError(f"{array.dtype} out of range")
    return cast


# Functions of pictures: they calculate with whole numbers, so the results are the same on every machine

_FREQUENCIES = 8
"""Frequencies along a side of a perceptual hash, which has a bit for each."""
_SIDE = 32
_SCALE = 2.0**17
"""Factor of the cosines, which are rounded then: the sums stay below 2^53, so floats add them without an error."""


@Columns(returns=ColumnType("array", "uint64"), version="1")
def phash(samples: Samples) -> NDArray[np.uint64]:
    """Return the perceptual hash of each picture, shape (pictures,): resized or re-coded copies differ in few bits.

    The bits say which of the 64 lowest frequencies of a 32x32 grey picture are above their median (discrete cosine
    transform, first frequency in the highest bit), as `imagehash.phash` has them. Source: Zauner, "Implementation and
    Benchmarking of Perceptual Image Hash Functions", 2010, section 3.1.
    """
    cosines = _cosines()
    found = np.zeros(len(samples.images), np.uint64)
    for number, image_HWC in enumerate(samples.images):
        small = _grey(image_HWC, side=_SIDE).astype(np.float64)
        frequencies = cosines @ small @ cosines.T
        bits = frequencies > np.median(frequencies)
        found[number] = np.packbits(bits).view(">u8")[0]
    return found


@Columns(returns=ColumnType("array", "float32"), version="1")
def sharpness(samples: Samples) -> NDArray[np.float32]:
    """Return the variance of the Laplacian of each grey picture, shape (pictures,): low where it is out of focus.

    It depends on the picture's size, too. Source: Pech-Pacheco et al., "Diatom autofocusing in brightfield microscopy",
    ICPR 2000; the Laplacian has the kernel 0 1 0, 1 -4 1, 0 1 0 and mirrored borders, as OpenCV's.
    """
    found = np.zeros(len(samples.images), np.float32)
    for number, image_HWC in enumerate(samples.images):
        grey = np.pad(_grey(image_HWC).astype(np.int64), 1, "reflect")
        laplacian = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:] - 4 * grey[1:-1, 1:-1]
        mean_square, mean = (laplacian**2).sum() / laplacian.size, laplacian.sum() / laplacian.size
        found[number] = mean_square - mean**2
    return found


def _grey(image_HWC: NDArray[np.uint8], *, side: int = 0) -> NDArray[np.uint8]:
    """Return the luma of a picture, ITU-R 601-2, as a square of this side unless it is 0."""
    from PIL import Image

    image = Image.fromarray(image_HWC).convert("L")
    return np.asarray(image.resize((side, side), Image.Resampling.LANCZOS) if side else image)


@cache
def _cosines() -> NDArray[np.float64]:
    """Return the lowest frequencies of the discrete cosine transform, shape (_FREQUENCIES, _SIDE), as whole numbers."""
    frequency, place = np.arange(_FREQUENCIES)[:, None], np.arange(_SIDE)
    return np.round(_SCALE * np.cos(np.pi * frequency * (2 * place + 1) / (2 * _SIDE)))
