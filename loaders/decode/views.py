"""What a loader is asked for that delivers several views of each image: groups of random crops, each of one size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

from dataprep.errors import UsageError
from loaders.decode.decoders import MAX_VIEWS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
