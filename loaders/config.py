"""Settings of a loader, those that its sequence of batches depends on, and groups of views."""

# ruff: noqa: RUF009  each setting is a field

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from inspect import cleandoc
from math import inf
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypedDict, get_args, runtime_checkable

from dataprep.arrays import NDArray, np
from dataprep.dataset.randomness import ORDER_VERSION
from dataprep.errors import UsageError
from dataprep.host.cpu import cores_of_rank
from dataprep.messages import counted, did_you_mean, there_are
from loaders.decode.crop import CropGroup, RandomCrop
from loaders.decode.decoders import MAX_VIEWS, Backend, Interpolation
from loaders.order import BLOCK_BYTES, NUM_STREAMS, WINDOW
from loaders.packs import Packs, is_pair, whole

if TYPE_CHECKING:
    from loaders.decode.crop import RowView

    Transform = Callable[[NDArray[np.uint8], np.random.Generator], NDArray[np.uint8]]

MAX_SIZE = 2**14
"""Largest side of a view, pixels."""

_WRAPPERS = {"albumentations": "AlbumentationsTransform", "timm": "PilTransform", "torchvision": "TorchvisionTransform"}
"""Class that wraps a library's transforms, because they take other arguments than a loader's."""


@dataclass(frozen=True, kw_only=True)
class Views:
    """A group of views of each image: random resized crops, flipped or not, of one size.

    Raises:
        UsageError: A value has the wrong type or is out of range.
    """

    count: int = 1
    """Number of views of each image in this group."""
    size: int = 224
    """Side of the views, pixels."""
    min_area: float = 0.2
    """Smallest area of a view's crop, as a fraction of the image's area."""
    max_area: float = 1.0
    """Largest area of a view's crop."""
    transform: Callable[[NDArray[np.uint8], np.random.Generator], NDArray[np.uint8]] | None = None
    """Transform for this group, in place of the loader's."""

    def __post_init__(self) -> None:
        for name, most in (("count", MAX_VIEWS), ("size", MAX_SIZE)):
            object.__setattr__(self, name, whole(f"views: {name}", getattr(self, name), most))
        low, high = area = self.min_area, self.max_area
        if not is_pair(area) or not 0 < low <= high <= 1:
            raise UsageError(f"views: min_area and max_area must be a range within 0 to 1, got {low!r}, {high!r}")
        if fault := transform_fault(self.transform):
            raise UsageError(f"views: {fault}")

    @property
    def scale(self) -> tuple[float, float]:
        """Smallest and largest area, in the form that `RandomCrop` takes."""
        return float(self.min_area), float(self.max_area)


@runtime_checkable
class FieldsTransform(Protocol):
    """A `transform` that changes fields of a sample together with its image.

    The loader calls `transform_fields` if a transform has it. In packs, which have no views, it calls the transform
    itself. `AnnotationTransform` implements it for boxes, masks and keypoints.
    """

    @property
    def needed_fields(self) -> tuple[str, ...]:
        """Fields that the transform reads; the loader's setting `fields` must name them."""

    def transform_fields(
        self, image_HWC: NDArray[np.uint8], fields: Mapping[str, Any], view: RowView, rng: np.random.Generator
    ) -> tuple[NDArray[np.uint8], Mapping[str, Any]]:
        """Return an image of the same size, and the values of fields that the batch delivers instead of the stored
        ones.

        Args:
            image_HWC: Row of the batch: the image after crop, scale and flip.
            fields: Stored values of `needed_fields`.
            view: Crop, scale and flip that made the stored image the row.
            rng: Random generator of this sample, which depends on the seed and the sample's position alone.

        Raises:
            FormatError: The values cannot be used; the loader adds the sample to the text.
        """

    def __call__(self, image_HWC: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return an image of the same size."""


def transform_fault(transform: object) -> str:
    """Return why an object cannot be a loader's transform; empty if it can, or if it is None."""
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
    """Place of a group of views in the memory of a batch."""

    shape: tuple[int, int, int, int, int]
    """NVHWC."""
    start: int
    stop: int
    """First byte, and the byte after the last one."""


def checked_groups(value: Any, name: str = "views") -> tuple[Views, ...]:
    """Return groups of views as a tuple; the value may also be a single group. Raises UsageError, with the name of the
    setting, if it is neither, or if an image would have more than 64 views."""
    groups = (value,) if isinstance(value, Views) else tuple(value) if isinstance(value, Iterable) else ()
    if not groups or not all(isinstance(each, Views) for each in groups):
        raise UsageError(f"{name} must be loaders.Views or a tuple of them, got {value!r}")
    if (total := sum(each.count for each in groups)) > MAX_VIEWS:
        raise UsageError(f"{name}: an image may have at most {MAX_VIEWS} views, got {total}")
    return groups


def spans(groups: Iterable[Views], rows: int) -> list[Span]:
    """Return the places of all groups of views in the memory of a batch, one group after the other."""
    found, start = [], 0
    for each in groups:
        stop = start + rows * each.count * each.size**2 * 3
        found.append(Span((rows, each.count, each.size, each.size, 3), start, stop))
        start = stop
    return found


OnError: TypeAlias = Literal["raise", "skip"]
RegionPolicy: TypeAlias = Literal["refuse", "warn", "off"]
EVALUATION_CROP = 0.875
"""Ratio of the centre crop to the resized short side: 224 of 256, as ImageNet has been evaluated since AlexNet."""
LETTERBOX = "letterbox"
"""Value of `resize` for complete images."""
MAX_THREADS = 16
"""Maximum number of decoding threads that one interpreter can keep busy; `processes` use further cores."""


class SharedSettings(TypedDict, total=False):
    """Settings that every loader takes in addition to `batch_size`; `LoaderConfig` says what each means."""

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
    index: str | PathLike[str] | None
    region_policy: RegionPolicy
    billing_project: str | None
    metrics_port: int | None
    metrics_address: str


class LoaderSettings(SharedSettings, total=False):
    """Settings that `open_loader` takes in addition to `batch_size`, including those for a single view."""

    image_size: int
    augment: bool | None
    scale: tuple[float, float] | list[float]
    resize: int | Literal["letterbox"] | None
    views: bool


class _Int(NamedTuple):
    """Checks a whole number, `least` or more; NumPy's integers become Python's."""

    least: int
    below: int = 2**63

    def __call__(self, name: str, value: Any) -> int:
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        _require(whole, f"{name} must be a whole number, got {value!r}")
        _require(value >= self.least, f"{name} must be {self.least} or more, got {value}")
        _require(value < self.below, f"{name} must be less than 2^{self.below.bit_length() - 1}, got {value}")
        return int(value)


class _Float(NamedTuple):
    """Checks that a number is finite and above 0, or with `has_range` False any number, as it is checked later."""

    expected: str
    has_range: bool = True

    def __call__(self, name: str, value: Any) -> float:
        number = isinstance(value, Real) and not isinstance(value, bool)
        fits = number and (0 < value < inf or not self.has_range)
        _require(fits, f"{name} must be {self.expected}, got {value!r}")
        return float(value)


_SECONDS = _Float("a number of seconds above 0")


def _resize(name: str, value: Any) -> Any:
    if value == LETTERBOX:
        return value
    _require(not isinstance(value, str), f"{name} must be a number of pixels or {LETTERBOX!r}, got {value!r}")
    return _Int(1)(name, value)


def _one_of(kind: Any) -> Callable[[str, Any], Any]:
    choices = get_args(kind)

    def checked(name: str, value: Any) -> Any:
        if isinstance(value, str) and value in choices:
            return value
        raise UsageError(f"{name} must be one of {', '.join(choices)}, got {value!r}{did_you_mean(value, choices)}")

    return checked


def _bool(name: str, value: Any) -> bool:
    _require(isinstance(value, bool), f"{name} must be True or False, got {value!r}")
    return bool(value)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts = isinstance(value, tuple | list) and all(isinstance(each, str) for each in value)
    _require(texts, f"{name} must be a tuple of names, got {value!r}")
    return tuple(value)


def _pair(name: str, value: Any) -> tuple[float, float]:
    _require(is_pair(value), f"{name} must be a pair of numbers, got {value!r}")
    return tuple(value)


def _folder(name: str, value: Any) -> str:
    _require(isinstance(value, str | PathLike) and str(value) != "", f"{name} must be a folder, got {value!r}")
    return str(Path.cwd() / value)


def _place(name: str, value: Any) -> str:
    _require(isinstance(value, str | PathLike) and str(value) != "", f"{name} must be a folder or URL, got {value!r}")
    return str(value) if "://" in str(value) else str(Path.cwd() / value)


def _address(name: str, value: Any) -> str:
    is_name = isinstance(value, str) and value.isascii() and value.isprintable() and bool(value.strip())
    _require(is_name, f"{name} must be an address of this machine, e.g. 127.0.0.1, got {value!r}")
    return str(value)


def _project(name: str, value: Any) -> str:
    _require(isinstance(value, str) and value != "", f"{name} must be the name of a project, got {value!r}")
    return str(value)


def _setting(default: Any, text: str, check: Any = None) -> Any:
    """Make a field of `LoaderConfig` with its meaning; `...` is no default, and a default of None means that None is
    accepted. `check` returns a value in the form of the field, or raises UsageError; a bool needs none."""
    about = {"text": text, "check": _bool if isinstance(default, bool) else check}
    return field(metadata=about) if default is ... else field(default=default, metadata=about)


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """All settings of a loader, checked.

    Raises:
        UsageError: A value has the wrong type or is out of range; the message says what was expected and what was got.
    """

    batch_size: int = _setting(..., "Number of images in one step, over all ranks.", _Int(1))
    seed: int = _setting(0, "Seed for the order, crops and transforms.", _Int(-(2**63), 2**64))
    rank: int = _setting(0, "This rank's number, starting at 0.", _Int(0))
    world_size: int = _setting(
        1, "Number of ranks: processes that share a batch, each with any number of devices.", _Int(1)
    )
    shuffle: bool = _setting(
        True, "True: random order, for training. False: each sample once as stored, for evaluation."
    )
    image_size: int = _setting(224, "Side of the delivered images, pixels.", _Int(1))
    interpolation: Interpolation = _setting(
        "bicubic",
        "`bicubic` or `bilinear` as in Pillow; `bilinear-no-antialias` as in tf.image.resize.",
        _one_of(Interpolation),
    )
    augment: bool = _setting(True, "True: random resized crop and flip; False: resize and centre crop.")
    scale: tuple[float, float] = _setting(
        (0.2, 1.0), "Smallest and largest crop area, as fractions of the image's area; by default as in MAE.", _pair
    )
    ratio: tuple[float, float] = _setting(
        (3 / 4, 4 / 3), "Smallest and largest ratio of a crop's width to its height.", _pair
    )
    flip: float = _setting(0.5, "Probability of a horizontal flip.", _Float("a probability", has_range=False))
    clip_crop: bool = _setting(False, "True: clip a crop that exceeds the image, as in BYOL; False: draw a new crop.")
    resize: int | Literal["letterbox"] | None = _setting(
        None,
        "Short side before the centre crop, pixels; by default image_size / 0.875. `letterbox`: complete images in "
        "their own shape, centred on black; with augment they are flipped, but not cropped.",
        _resize,
    )
    fields: tuple[str, ...] = _setting((), "Fields to deliver with the images, e.g. `caption`.", _texts)
    views: bool = _setting(False, "Deliver each image's crop and flip as `batch.views`, for `loaders.transform_boxes`.")
    transform: Transform | None = _setting(
        None,
        "Picklable `f(image_HWC, rng)` on uint8, which returns an image of the same size; each sample has its own rng. "
        "An `AnnotationTransform` also changes fields.",
    )
    on_error: OnError = _setting(
        "raise",
        "What to do if an image is missing, damaged or replaced: `raise`, or `skip` (mask and count it). An unreadable "
        "disk, bucket or shard is always an error.",
        _one_of(OnError),
    )
    check_digests: bool = _setting(True, "Compare every image's CRC32C with the index, if the index has it.")
    num_streams: int = _setting(
        NUM_STREAMS,
        "Number of streams that share a pass's blocks; with a multiple of the ranks, each byte is read once.",
        _Int(1),
    )
    window: int = _setting(
        WINDOW, "Number of successive pieces of a stream (blocks or parts of blocks) whose samples are mixed.", _Int(1)
    )
    block_bytes: int = _setting(
        BLOCK_BYTES,
        "Approximate size of one read from a bucket, which covers the images of consecutive samples.",
        _Int(1),
    )
    prefetch_bytes: int = _setting(2**30, "Maximum bytes of encoded images held or in flight from a bucket.", _Int(1))
    deadline_s: float = _setting(
        4.5, "Seconds without a response from a bucket after which a read fails; 429 and 5xx are retried.", _SECONDS
    )
    stall_s: float = _setting(
        600.0, "Seconds without any image read or decoded, after which waiting for a batch fails.", _SECONDS
    )
    prefetch_batches: int = _setting(3, "Number of batches to decode ahead of the current batch.", _Int(1))
    reads_in_flight: int | None = _setting(
        None,
        "Maximum requests in flight to a bucket, 128 by default; never more than the images in the batches ahead.",
        _Int(1),
    )
    threads: int | None = _setting(
        None,
        "Decoding threads per process; by default one for each core of the process's share, at most 16. The ranks of a "
        "torchrun and worker processes share a host's cores.",
        _Int(1),
    )
    processes: int = _setting(0, "Worker processes that fetch and decode; 0: use threads of this process.", _Int(0))
    decoder: Backend = _setting(
        "auto", "`extension`, `library`, or `auto`: the extension if it was built.", _one_of(Backend)
    )
    cache_dir: str | None = _setting(None, "Folder on a local disk that caches data read from a bucket.", _folder)
    cache_bytes: int = _setting(100 * 2**30, "Maximum size of `cache_dir`.", _Int(1))
    index: str | None = _setting(
        None,
        "Folder or gs:// URL for the index of plain data, such as a folder of pictures; by default a folder in the "
        "user's cache.",
        _place,
    )
    region_policy: RegionPolicy = _setting(
        "refuse",
        "What to do if reading the bucket from here costs money: `refuse` or `warn`; `off`: do not check.",
        _one_of(RegionPolicy),
    )
    billing_project: str | None = _setting(
        None,
        "Project that pays for this process's requests to requester-pays buckets on Cloud Storage; by default the "
        "environment variable GOOGLE_CLOUD_QUOTA_PROJECT.",
        _project,
    )
    metrics_port: int | None = _setting(
        None,
        "Port where Prometheus scrapes metrics of this process's loaders; 0: any free port; by default none.",
        _Int(0, below=2**16),
    )
    metrics_address: str = _setting(
        "127.0.0.1", "Address of `metrics_port`; 0.0.0.0 lets other machines read the metrics.", _address
    )
    packs: Packs | None = _setting(
        None, "Images in their native shapes, for `open_packs`; None: squares of `image_size`."
    )
    view_groups: tuple[Views, ...] = _setting(
        (), "Several views of each image, for `open_views`; (): one view of `image_size`."
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            value, check = getattr(self, each.name), each.metadata["check"]
            if check is not None and (value is not None or each.default is not None):
                object.__setattr__(self, each.name, check(each.name, value))
        if self.billing_project:
            from dataprep.storage.gcs_client import bill  # here: few loaders read from Cloud Storage

            bill(self.billing_project)
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
            "a transform cannot change annotations of several views; use open_loader, or a transform without fields",
        )
        _require(not self.views, "batch.views has the crop of a single view: set views=False, or call open_loader")

    def _check_fields(self, needed: tuple[str, ...]) -> None:
        """Raise UsageError unless a transform gets the fields that it needs."""
        if missing := tuple(name for name in needed if name not in self.fields):
            from loaders.decode.annotations import WITHOUT_SIZE, size_fields  # here: few loaders have annotations

            hint = f"; {WITHOUT_SIZE}" if set(missing) & set(size_fields(self.transform)) else ""
            raise UsageError(
                f"transform needs the fields {', '.join(missing)}, which are not delivered; "
                f"set fields={(*self.fields, *missing)!r}{hint}"
            )
        _require(
            not needed or self.packs is None,
            "a transform cannot change annotations of packs; use open_loader, or a transform without fields",
        )

    def _check_packs(self, packs: Any) -> None:
        _require(isinstance(packs, Packs), f"packs must be loaders.Packs or None, got {packs!r}")
        _require(not self.views, "packs have no views, because views describe square rows: set views=False")
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
        """Random crop and flip that `augment` draws."""
        return RandomCrop(self.scale, self.ratio, self.flip, self.clip_crop)

    @cached_property
    def crop_groups(self) -> tuple[CropGroup, ...]:
        """Groups of views that `augment` draws of each image; a single view is one group."""
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
        if isinstance(self.resize, int):
            return self.resize
        return self.image_size if self.is_letterboxed else round(self.image_size / EVALUATION_CROP)

    @property
    def is_letterboxed(self) -> bool:
        """Whether rows have complete images, instead of crops."""
        return self.resize == LETTERBOX

    @property
    def num_threads(self) -> int:
        """Decoding threads of one process."""
        if self.threads is not None:
            return self.threads
        return max(1, min(MAX_THREADS, cores_of_rank() // max(1, self.processes)))

    def sequence_document(self) -> dict[str, object]:
        """Return the settings that the sequence of batches depends on, without ranks and settings of speed."""
        names = ["batch_size", "seed", "shuffle", "image_size", "augment", "num_streams", "window"]
        if self.is_letterboxed:
            names += ["resize", "flip"] if self.augment else ["resize"]
        else:
            names += ["scale", "ratio", "flip", "clip_crop"] if self.augment else ["resize"]
        if self.packs is not None:
            names = [name for name in names if name not in _IGNORED_BY_PACKS]
        if self.view_groups:
            names = [name for name in names if name not in _SINGLE_VIEW_ONLY]
        document = {name: getattr(self, name) for name in names}
        if self.packs is not None:
            document["packs"] = self.packs.document()
        if self.view_groups:
            document["views"] = {str(number): _group_document(each) for number, each in enumerate(self.view_groups)}
        document["transform"] = None if self.transform is None else _name_of(self.transform)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in document.items()} | {
            "order_version": ORDER_VERSION
        }


OF_PIXELS = (
    *("image_size", "augment", "scale", "ratio", "flip", "clip_crop", "resize"),
    *("packs", "views", "transform", "decoder", "pixels"),
)
"""Parts of a sequence that determine the pixels, not the order of the images."""
_IGNORED_BY_PACKS = ("image_size", "scale", "ratio", "clip_crop", "resize")
"""Settings that packs ignore."""
_SINGLE_VIEW_ONLY = ("image_size", "scale")
"""Settings of a single view; with several views each group has its own."""


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
    """Return a transform's name for saved states: its `state_name`, else the place of its definition."""
    kind = transform if hasattr(transform, "__qualname__") else type(transform)
    return getattr(kind, "state_name", f"{kind.__module__}.{kind.__qualname__}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)


LoaderConfig.__doc__ = f"{cleandoc(LoaderConfig.__doc__ or '')}\n\nArgs:\n" + "\n".join(
    f"    {each.name}: {each.metadata['text']}" for each in fields(LoaderConfig)
)
