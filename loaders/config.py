"""Every setting of a loader, which of them the sequence of batches depends on, and the views of each image."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict, get_args

from dataprep.dataset.randomness import ORDER_VERSION
from dataprep.errors import UsageError
from dataprep.host.cpu import cores_of_rank
from dataprep.messages import counted, did_you_mean, there_are
from loaders.decode.annotations import WITHOUT_SIZE, FieldsTransform, size_fields
from loaders.decode.crop import CropGroup, RandomCrop
from loaders.decode.decoders import MAX_VIEWS, Backend, Interpolation
from loaders.order import BLOCK_BYTES, NUM_STREAMS, WINDOW
from loaders.packs import Packs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Transform = Callable[[NDArray[np.uint8], np.random.Generator], NDArray[np.uint8]]

MAX_SIZE = 2**14
"""Largest side of a view, pixels."""

_WRAPPERS = {"albumentations": "AlbumentationsTransform", "timm": "PilTransform", "torchvision": "TorchvisionTransform"}
"""Class that turns the transforms of a library, which take other arguments, into a loader's."""


@dataclass(frozen=True, kw_only=True)
class Views:
    """A group of views of each image: random resized crops, flipped or not, of one size.

    Raises:
        UsageError: A value is of another type or out of its range.
    """

    count: int = 1
    """Number of views of each image in this group."""
    size: int = 224
    """Side of the views, pixels."""
    min_area: float = 0.2
    """Smallest area of a view's crop, as a share of the image's."""
    max_area: float = 1.0
    """Largest area of a view's crop."""
    transform: Callable[[NDArray[np.uint8], np.random.Generator], NDArray[np.uint8]] | None = None
    """Takes the place of the loader's `transform` for this group: each group may be augmented in its own way."""

    def __post_init__(self) -> None:
        for name, most in (("count", MAX_VIEWS), ("size", MAX_SIZE)):
            object.__setattr__(self, name, _whole(name, getattr(self, name), most))
        area = self.min_area, self.max_area
        if not all(isinstance(each, Real) and not isinstance(each, bool) for each in area) or not (
            0 < area[0] <= area[1] <= 1
        ):
            raise UsageError(
                f"views: min_area and max_area must be a range within 0 to 1, got {area[0]!r}, {area[1]!r}"
            )
        if fault := transform_fault(self.transform):
            raise UsageError(f"views: {fault}")

    @property
    def scale(self) -> tuple[float, float]:
        """Smallest and largest area, as the crop of a single view has them."""
        return float(self.min_area), float(self.max_area)


def transform_fault(transform: object) -> str:
    """Return why this cannot be a loader's transform; empty if it can, or if there is none."""
    if transform is None:
        return ""
    if not callable(transform):
        return f"transform must be a function, got {transform!r}"
    library = type(transform).__module__.partition(".")[0]
    if library not in _WRAPPERS:
        return ""
    return (
        f"transform must be a function (image_HWC, rng) -> image_HWC, got {type(transform).__name__} of {library}; "
        f"wrap it: loaders.{_WRAPPERS[library]}(transform)"
    )


class Span(NamedTuple):
    """Where a group of views lies in the memory of a batch."""

    shape: tuple[int, int, int, int, int]
    """NVHWC."""
    start: int
    stop: int
    """First byte, and the one after the last."""


def checked_groups(value: Any, name: str = "views") -> tuple[Views, ...]:
    """Return groups of views as a tuple; a single group may stand alone.

    Args:
        value: What was given.
        name: Name of the setting, for messages.

    Raises:
        UsageError: They are not groups of views, or an image would have more than 64 views.
    """
    groups = (value,) if isinstance(value, Views) else tuple(value) if isinstance(value, Iterable) else ()
    if not groups or not all(isinstance(each, Views) for each in groups):
        raise UsageError(f"{name} must be loaders.Views or a tuple of them, got {value!r}")
    if (total := sum(each.count for each in groups)) > MAX_VIEWS:
        raise UsageError(f"{name}: an image may have {MAX_VIEWS} views, got {total}; take fewer")
    return groups


def spans(groups: Iterable[Views], rows: int) -> list[Span]:
    """Return where each group of views lies in the memory of a batch, one group after the other."""
    found, start = [], 0
    for each in groups:
        stop = start + rows * each.count * each.size**2 * 3
        found.append(Span((rows, each.count, each.size, each.size, 3), start, stop))
        start = stop
    return found


def _whole(name: str, value: Any, most: int) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise UsageError(f"views: {name} must be a whole number, got {value!r}")
    number = int(value)
    if not 1 <= number <= most:
        raise UsageError(f"views: {name} must be 1 to {most:,}, got {number:,}")
    return number


OnError: TypeAlias = Literal["raise", "skip"]
RegionPolicy: TypeAlias = Literal["refuse", "warn", "off"]
EVALUATION_CROP = 0.875
"""Ratio of the centre crop to the resized short side: 224 of 256, as ImageNet has been evaluated since AlexNet."""
MAX_THREADS = 16
"""Maximum number of decoding threads that one interpreter can keep busy; `processes` use further cores."""


class SharedSettings(TypedDict, total=False):
    """Settings that every loader takes besides `batch_size`; `LoaderConfig` says what each means."""

    seed: int
    rank: int
    world_size: int
    shuffle: bool | None
    interpolation: Interpolation
    ratio: tuple[float, float] | list[float]
    flip: float
    clip_crop: bool
    fields: tuple[str, ...] | list[str]
    transform: Transform | None
    on_error: OnError
    check_digests: bool
    num_streams: int
    window: int
    block_bytes: int
    prefetch_bytes: int
    deadline_s: float
    stall_s: float
    prefetch_batches: int
    reads_in_flight: int | None
    threads: int | None
    processes: int
    decoder: Backend
    cache_dir: str | PathLike[str] | None
    cache_bytes: int
    region_policy: RegionPolicy
    metrics_port: int | None
    metrics_address: str


class LoaderSettings(SharedSettings, total=False):
    """Settings that `open_loader` takes besides `batch_size`: also those of a single view of each image."""

    image_size: int
    augment: bool | None
    scale: tuple[float, float] | list[float]
    resize: int | None
    views: bool


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """All settings of a loader, checked.

    Raises:
        UsageError: A value is of another type or out of its range; the message says what was expected and what was got.
    """

    batch_size: int
    """Number of images in one step, over all ranks."""
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    """Number of ranks: processes that share a batch, whatever devices each of them drives."""
    shuffle: bool = True
    """True: random order, for training. False: every sample once in the stored order, for evaluation."""
    image_size: int = 224
    """Side of the images that are delivered, pixels."""
    interpolation: Interpolation = "bicubic"
    """`bicubic` and `bilinear` as Pillow's, antialiased; `bilinear-no-antialias` as tf.image.resize's."""
    augment: bool = True
    """True: random resized crop and flip; False: resize and centre crop."""
    scale: tuple[float, float] = (0.2, 1.0)
    """Smallest and largest area of a crop, as shares of the image's, as in MAE; torchvision's begins at 0.08."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Smallest and largest ratio of a crop's width to its height."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    clip_crop: bool = False
    """True: a crop larger than the image is cut to it, as in BYOL; False: another one is drawn, as in torchvision."""
    resize: int | None = None
    """Short side before the centre crop, pixels; by default the image size divided by 0.875."""
    fields: tuple[str, ...] = ()
    """Fields that are delivered with the images, e.g. `caption`."""
    views: bool = False
    """Deliver how each image was cropped and flipped, as `batch.views`, for boxes: see `loaders.transform_boxes`."""
    transform: Transform | None = None
    """Picklable `f(image_HWC, rng)` on uint8, which returns an image of the same size; the rng is the sample's own. An
    `AnnotationTransform` also changes fields."""
    on_error: OnError = "raise"
    """What to do about an image that is missing, damaged or replaced: `raise`, or `skip` (mask and count it). A disk,
    bucket or shard that cannot be read is an error in any case."""
    check_digests: bool = True
    """Compare every image's CRC32C with the index where that has it, so that no damaged byte is trained on."""
    num_streams: int = NUM_STREAMS
    """Number of streams that share the blocks of a pass; a multiple of the number of ranks reads every byte once."""
    window: int = WINDOW
    """Number of successive pieces (blocks, or parts of one) of a stream whose samples are mixed with each other."""
    block_bytes: int = BLOCK_BYTES
    """Approximate size of one read from a bucket: the encoded images of consecutive samples."""
    prefetch_bytes: int = 2**30
    """Maximum bytes of encoded images held or in flight from a bucket."""
    deadline_s: float = 4.5
    """Seconds without an answer from a bucket after which reading fails; its 429 and 5xx are retried for a minute."""
    stall_s: float = 600.0
    """Seconds without any image read or decoded after which waiting for a batch is an error."""
    prefetch_batches: int = 3
    """Number of batches that are decoded ahead of the one that is in use."""
    reads_in_flight: int | None = None
    """Requests in flight to a bucket, 128 by default; never more than there are images in the batches ahead."""
    threads: int | None = None
    """Decoding threads in every process; by default one for each core of the process's share, at most 16. Ranks of
    one torchrun and worker processes share the cores of a host."""
    processes: int = 0
    """Worker processes that fetch and decode; 0: threads of this process do."""
    decoder: Backend = "auto"
    """`extension`, `library`, or `auto` for the extension where it was built."""
    cache_dir: str | None = None
    """Folder on a local disk that keeps what was read from a bucket."""
    cache_bytes: int = 100 * 2**30
    """Maximum size of that folder."""
    region_policy: RegionPolicy = "refuse"
    """What to do about a bucket whose reading costs money from here: `refuse`, `warn`, or `off` (do not check)."""
    metrics_port: int | None = None
    """Port on which Prometheus scrapes metrics of this process's loaders; 0: any free one; by default none."""
    metrics_address: str = "127.0.0.1"
    """Address of this machine that this port is on; 0.0.0.0 lets every other machine read the metrics."""
    packs: Packs | None = None
    """Images of their own shapes in rows of one length, for `open_packs`; None: squares of `image_size`."""
    view_groups: tuple[Views, ...] = ()
    """Several views of each image, for `open_views`; (): one, of `image_size`."""

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if value is not None or LoaderConfig.__dataclass_fields__[name].default is not None:
                object.__setattr__(self, name, kind.checked(name, value))
        _ = self.crop  # checks the ranges of scale, ratio and flip
        transform = self.transform
        fault = transform_fault(transform)
        _require(not fault, fault)
        self._check_fields(transform.needed_fields if isinstance(transform, FieldsTransform) else ())
        _require(self.short_side >= self.image_size, f"resize must be {self.image_size} or more, got {self.short_side}")
        if self.packs is not None:
            self._check_packs(self.packs)
        if self.view_groups != ():
            self._check_view_groups()

    def _check_view_groups(self) -> None:
        object.__setattr__(self, "view_groups", checked_groups(self.view_groups, "view_groups"))
        _require(self.packs is None, "several views of an image are squares, packs are not: choose one")
        _require(self.augment, "several views of an image are random crops: set augment=True, or call open_loader")
        _require(
            not any(isinstance(each, FieldsTransform) and each.needed_fields for each in self.transforms),
            "several views of an image carry no annotations through a transform; use open_loader, or a transform "
            "without fields",
        )
        _require(not self.views, "batch.views has the crop of a single view: set views=False, or call open_loader")

    def _check_fields(self, needed: tuple[str, ...]) -> None:
        """Raise UsageError unless a transform gets the fields that it needs."""
        missing = tuple(name for name in needed if name not in self.fields)
        _require(
            not missing,
            f"transform needs the fields {', '.join(missing)}, which are not delivered; "
            f"set fields={(*self.fields, *missing)!r}"
            + (f"; {WITHOUT_SIZE}" if set(missing) & set(size_fields(self.transform)) else ""),
        )
        _require(
            not needed or self.packs is None,
            "packs carry no annotations through a transform; use open_loader, or a transform without fields",
        )

    def _check_packs(self, packs: Any) -> None:
        _require(isinstance(packs, Packs), f"packs must be loaders.Packs or None, got {packs!r}")
        _require(not self.views, "packs have no views, which are of square rows: set views=False")
        rows, images, ranks = self.batch_size // packs.images, packs.images, self.world_size
        _require(
            self.batch_size % (images * ranks) == 0,
            f"packs: {self.batch_size} images in rows of {images} cannot be shared by {counted(ranks, 'rank')}; "
            f"choose a batch_size that is a multiple of {images * ranks}",
        )
        _require(
            rows // ranks % max(1, self.processes) == 0,
            f"packs: {counted(rows // ranks, 'row')} of a rank cannot be shared by {self.processes} processes; "
            "choose processes that divide them",
        )

    @property
    def rows(self) -> int:
        """Number of rows in a batch of this rank: its images of one step."""
        return self.batch_size // self.world_size

    @property
    def row_images(self) -> int:
        """Images in a row: 1, or with packs `packs.images`."""
        return 1 if self.packs is None else self.packs.images

    @cached_property
    def crop(self) -> RandomCrop:
        """How `augment` crops and flips."""
        return RandomCrop(self.scale, self.ratio, self.flip, self.clip_crop)

    @cached_property
    def crop_groups(self) -> tuple[CropGroup, ...]:
        """Views of each image that `augment` draws: one, or all groups of several."""
        if not self.view_groups:
            return (CropGroup(1, self.image_size, self.crop),)
        return tuple(
            CropGroup(each.count, each.size, replace(self.crop, scale=each.scale)) for each in self.view_groups
        )

    @cached_property
    def transforms(self) -> tuple[Transform | None, ...]:
        """The transform of each view of an image."""
        if not self.view_groups:
            return (self.transform,)
        return tuple(each.transform or self.transform for each in self.view_groups for _ in range(each.count))

    @property
    def short_side(self) -> int:
        """Short side to which an evaluation resizes, pixels."""
        return round(self.image_size / EVALUATION_CROP) if self.resize is None else self.resize

    @property
    def num_threads(self) -> int:
        """Decoding threads of one process."""
        if self.threads is not None:
            return self.threads
        return max(1, min(MAX_THREADS, cores_of_rank() // max(1, self.processes)))

    def sequence_document(self) -> dict[str, object]:
        """Return the settings on which the sequence of batches depends, without ranks and settings of speed alone."""
        names = ["batch_size", "seed", "shuffle", "image_size", "augment", "num_streams", "window"]
        names += ["scale", "ratio", "flip", "clip_crop"] if self.augment else ["resize"]
        if self.packs is not None:
            names = [name for name in names if name not in _OF_SQUARES]
        if self.view_groups:
            names = [name for name in names if name not in _OF_SINGLE_VIEWS]
        document = {name: getattr(self, name) for name in names}
        if self.packs is not None:
            document["packs"] = self.packs.document()
        if self.view_groups:
            document["views"] = {str(number): _group_document(each) for number, each in enumerate(self.view_groups)}
        document["transform"] = None if self.transform is None else _name_of(self.transform)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in document.items()} | {
            "order_version": ORDER_VERSION
        }


_OF_SQUARES = ("image_size", "scale", "ratio", "clip_crop", "resize")
"""Settings that packs ignore."""
_OF_SINGLE_VIEWS = ("image_size", "scale")
"""Settings of a single view, which several views have in their groups."""


def check_names(names: Iterable[str]) -> None:
    """Raise UsageError for settings that do not exist; it names the nearest one and lists all."""
    known = sorted(LoaderConfig.__dataclass_fields__)
    wrong = sorted(set(names) - set(known))
    if wrong:
        raise UsageError(f"no setting {', '.join(wrong)}{there_are(wrong[0], known)}")


def _group_document(group: Views) -> dict[str, object]:
    found: dict[str, object] = {"count": group.count, "size": group.size, "scale": list(group.scale)}
    return found | ({} if group.transform is None else {"transform": _name_of(group.transform)})


def _name_of(transform: Any) -> str:
    """Return the name by which a later process recognises a transform: its `state_name`, else where it is defined."""
    kind = transform if hasattr(transform, "__qualname__") else type(transform)
    return getattr(kind, "state_name", f"{kind.__module__}.{kind.__qualname__}")


@dataclass(frozen=True, slots=True)
class _Int:
    """A whole number, `least` or more; NumPy's integers become Python's."""

    least: int
    below: int = 2**63

    def checked(self, name: str, value: Any) -> int:
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        _require(whole, f"{name} must be a whole number, got {value!r}")
        _require(value >= self.least, f"{name} must be {self.least} or more, got {value}")
        _require(value < self.below, f"{name} must be less than 2^{self.below.bit_length() - 1}, got {value}")
        return int(value)


@dataclass(frozen=True, slots=True)
class _Float:
    """A number, finite and above 0; without `has_range` any number, whose range another check knows."""

    expected: str
    has_range: bool = True

    def checked(self, name: str, value: Any) -> float:
        number = isinstance(value, Real) and not isinstance(value, bool)
        fits = number and (0 < value < inf or not self.has_range)
        _require(fits, f"{name} must be {self.expected}, got {value!r}")
        return float(value)


@dataclass(frozen=True, slots=True)
class _Bool:
    def checked(self, name: str, value: Any) -> bool:
        _require(isinstance(value, bool), f"{name} must be True or False, got {value!r}")
        return bool(value)


@dataclass(frozen=True, slots=True)
class _OneOf:
    choices: tuple[str, ...]

    def checked(self, name: str, value: Any) -> Any:
        if isinstance(value, str) and value in self.choices:
            return value
        expected = f"must be one of {', '.join(self.choices)}"
        raise UsageError(f"{name} {expected}, got {value!r}{did_you_mean(value, self.choices)}")


@dataclass(frozen=True, slots=True)
class _Texts:
    """Names; a list of them becomes a tuple."""

    def checked(self, name: str, value: Any) -> tuple[str, ...]:
        texts = isinstance(value, tuple | list) and all(isinstance(each, str) for each in value)
        _require(texts, f"{name} must be a tuple of names, got {value!r}")
        return tuple(value)


@dataclass(frozen=True, slots=True)
class _Pair:
    def checked(self, name: str, value: Any) -> tuple[float, float]:
        pair = isinstance(value, tuple | list) and len(value) == len(("low", "high"))
        pair = pair and all(isinstance(each, Real) and not isinstance(each, bool) for each in value)
        _require(pair, f"{name} must be a pair of numbers, got {value!r}")
        return tuple(value)


@dataclass(frozen=True, slots=True)
class _Folder:
    def checked(self, name: str, value: Any) -> str:
        _require(isinstance(value, str | PathLike) and str(value) != "", f"{name} must be a folder, got {value!r}")
        return str(Path.cwd() / value)


@dataclass(frozen=True, slots=True)
class _Address:
    def checked(self, name: str, value: Any) -> str:
        is_name = isinstance(value, str) and value.isascii() and value.isprintable() and bool(value.strip())
        _require(is_name, f"{name} must be an address of this machine, e.g. 127.0.0.1, got {value!r}")
        return str(value)


_Kind: TypeAlias = _Int | _Float | _Bool | _OneOf | _Texts | _Pair | _Folder | _Address
_KINDS: dict[str, _Kind] = {
    **dict.fromkeys(("batch_size", "world_size", "image_size", "num_streams", "window", "block_bytes"), _Int(1)),
    **dict.fromkeys(("prefetch_bytes", "prefetch_batches", "cache_bytes", "resize"), _Int(1)),
    **dict.fromkeys(("threads", "reads_in_flight"), _Int(1)),
    **dict.fromkeys(("rank", "processes"), _Int(0)),
    "seed": _Int(-(2**63), 2**64),
    **dict.fromkeys(("deadline_s", "stall_s"), _Float("a number of seconds above 0")),
    "flip": _Float("a probability", has_range=False),
    **dict.fromkeys(("shuffle", "augment", "clip_crop", "check_digests", "views"), _Bool()),
    "interpolation": _OneOf(get_args(Interpolation)),
    "on_error": _OneOf(get_args(OnError)),
    "decoder": _OneOf(get_args(Backend)),
    "region_policy": _OneOf(get_args(RegionPolicy)),
    **dict.fromkeys(("scale", "ratio"), _Pair()),
    "fields": _Texts(),
    "cache_dir": _Folder(),
    "metrics_port": _Int(0, below=2**16),
    "metrics_address": _Address(),
}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
