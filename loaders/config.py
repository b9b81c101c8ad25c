"""Everything that a loader can be told, and which of it the sequence of batches depends on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dataprep.cpu import available_cores
from dataprep.errors import UsageError
from dataprep.placement import POLICIES
from dataprep.randomness import ORDER_VERSION
from loaders.order import BLOCK_BYTES, NUM_STREAMS, WINDOW

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Transform = Callable[[NDArray[np.uint8], np.random.Generator], NDArray[np.uint8]]

ON_ERROR = ("raise", "skip")
EVALUATION_CROP = 0.875
"""Of the resized short side, as ImageNet is evaluated since AlexNet: 224 of 256."""
MAX_THREADS = 16
"""One interpreter hands out work for no more; with more cores, let `processes` do it."""


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """How batches are made.

    Raises:
        UsageError: A value is out of its range; the message says which.
    """

    batch_size: int
    """Images of one step, of all ranks together."""
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    """Processes that share a batch, whatever devices each of them drives."""
    shuffle: bool = True
    """False: evaluation, every sample once, as they are stored."""
    image_size: int = 224
    """Sides of the images delivered, pixels."""
    interpolation: str = "bicubic"
    """`bicubic` and `bilinear` as Pillow's, antialiased; `bilinear-no-antialias` as tf.image.resize's."""
    augment: bool = True
    """Random resized crop and flip; False: resize and centre crop."""
    scale: tuple[float, float] = (0.2, 1.0)
    """Share of the image's area that a crop has, as MAE trains; torchvision's default begins at 0.08."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Width over height of a crop."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    clip_crop: bool = False
    """A crop larger than the image is cut to it, as in BYOL; False: another one is drawn, as torchvision does."""
    resize: int | None = None
    """Short side before the centre crop, pixels; by default the image size over 0.875."""
    fields: tuple[str, ...] = ()
    """Columns that come with the images, e.g. `caption`."""
    transform: Transform | None = None
    """Picklable, called with (image_HWC uint8, rng); returns an image of the same size. The rng is the sample's own."""
    on_error: str = "raise"
    """Of an image or shard that cannot be read: `raise`, or `skip` (masked and counted)."""
    check_digests: bool = True
    """Compare every image's CRC32C with the index: ten microseconds each, and no damaged byte is trained on."""
    num_streams: int = NUM_STREAMS
    window: int = WINDOW
    block_bytes: int = BLOCK_BYTES
    prefetch_bytes: int = 2**30
    """Most bytes of images that are held or under way from a bucket."""
    deadline_s: float = 4.5
    """Without an answer from a bucket, reading fails within this time; a busy bucket's 429 and 5xx get a minute."""
    prefetch_batches: int = 3
    """Batches decoded ahead of the one that is asked for."""
    reads_in_flight: int | None = None
    """Requests under way to a bucket; by default 128. No more than the images of the batches ahead are asked for."""
    threads: int | None = None
    """That decode, in every process; by default one a core, at most 16."""
    processes: int = 0
    """That decode, beside this one; 0: threads of this one do."""
    decoder: str = "auto"
    """`extension`, `library`, or whichever is there."""
    cache_dir: str | None = None
    """Folder on a local disk that keeps what was read from a bucket."""
    cache_bytes: int = 100 * 2**30
    region_policy: str = "refuse"
    """Of a bucket whose reading from here is known to cost money: `refuse`, `warn`, or `off` (nothing is asked)."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "world_size", "image_size", "num_streams", "window", "block_bytes"):
            _require(getattr(self, name) >= 1, f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("prefetch_bytes", "prefetch_batches", "cache_bytes"):
            _require(getattr(self, name) >= 1, f"{name} must be 1 or more, got {getattr(self, name)}")
        _require(self.threads is None or self.threads >= 1, f"threads must be 1 or more, got {self.threads}")
        _require(
            self.reads_in_flight is None or self.reads_in_flight >= 1,
            f"reads_in_flight must be 1 or more, got {self.reads_in_flight}",
        )
        _require(self.deadline_s > 0, f"deadline_s must be more than 0, got {self.deadline_s}")
        _require(self.processes >= 0, f"processes must be 0 or more, got {self.processes}")
        _require(self.on_error in ON_ERROR, f"on_error must be one of {', '.join(ON_ERROR)}, got {self.on_error!r}")
        _require(
            self.region_policy in POLICIES,
            f"region_policy must be one of {', '.join(POLICIES)}, got {self.region_policy!r}",
        )
        _require(0 <= self.flip <= 1, f"flip must be a probability, got {self.flip}")
        _require(0 < self.scale[0] <= self.scale[1] <= 1, f"scale must be a range within 0 to 1, got {self.scale}")
        _require(0 < self.ratio[0] <= self.ratio[1], f"ratio must be a range above 0, got {self.ratio}")
        _require(self.short_side >= self.image_size, f"resize must be {self.image_size} or more, got {self.short_side}")

    @property
    def rows(self) -> int:
        """Images of one step that this rank gets."""
        return self.batch_size // self.world_size

    @property
    def short_side(self) -> int:
        """To which evaluation resizes, pixels."""
        return round(self.image_size / EVALUATION_CROP) if self.resize is None else self.resize

    @property
    def num_threads(self) -> int:
        """Decoding threads of one process."""
        if self.threads is not None:
            return self.threads
        return max(1, min(MAX_THREADS, available_cores() // max(1, self.processes)))

    def sequence_document(self) -> dict[str, Any]:
        """What the sequence of batches depends on, of all this; the ranks and the machinery are none of it."""
        names = ["batch_size", "seed", "shuffle", "image_size", "augment", "num_streams", "window"]
        names += ["scale", "ratio", "flip", "clip_crop"] if self.augment else ["resize"]
        document = {name: getattr(self, name) for name in names}
        document["transform"] = None if self.transform is None else _name_of(self.transform)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in document.items()} | {
            "order_version": ORDER_VERSION
        }


def _name_of(transform: Any) -> str:
    """By which a transform is recognised in a later process."""
    kind = transform if hasattr(transform, "__qualname__") else type(transform)
    return f"{kind.__module__}.{kind.__qualname__}"


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
