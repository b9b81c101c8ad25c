"""What a loader is asked for that delivers packs: images of their own shapes, as patches, in rows of one length."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from dataprep.errors import UsageError

MAX_PATCH = 512
"""Largest side of a patch, pixels."""
MAX_TOKENS = 2**16
"""Largest number of tokens in a row; a plan computes with 64-bit integers, which hold the products of such numbers."""


@dataclass(frozen=True, kw_only=True)
class Packs:
    """Images at their own aspect ratio, cut into patches and packed into rows of one length.

    A row holds a fixed number of images. Each gets a number of tokens that is drawn within bounds and scaled so that
    the row is full, and is resized to the grid of whole patches with about so many tokens and about its own shape.

    Raises:
        UsageError: A value is of another type or out of its range, or the images cannot fill a row within the bounds.
    """

    tokens: int
    """Tokens in a row; a token is one patch."""
    images: int
    """Images in a row. `batch_size` counts images, so that a batch has `batch_size // images` rows over all ranks."""
    patch: int = 16
    """Side of a patch, pixels."""
    min_tokens: int | None = None
    """Fewest tokens of an image, before its grid is rounded to whole patches; by default half of the mean."""
    max_tokens: int | None = None
    """Most tokens of an image; by default twice the mean."""
    crop: tuple[float, float] | None = None
    """Smallest and largest area of a random crop of the image's own shape, as shares of its area; None: no crop."""

    def __post_init__(self) -> None:
        for name, most in (("tokens", MAX_TOKENS), ("images", MAX_TOKENS), ("patch", MAX_PATCH)):
            object.__setattr__(self, name, _whole(name, getattr(self, name), most))
        if self.images > self.tokens:
            raise UsageError(f"packs: {self.images} images do not fit into {self.tokens} tokens; give more tokens")
        for name in ("min_tokens", "max_tokens"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _whole(name, getattr(self, name), self.tokens))
        if not self.least <= self.tokens // self.images <= self.most:
            raise UsageError(
                f"packs: {self.images} images of {self.least} to {self.most} tokens cannot fill {self.tokens} tokens, "
                f"{self.tokens // self.images} each; change images, tokens, min_tokens or max_tokens"
            )
        if self.crop is not None:
            object.__setattr__(self, "crop", _shares(self.crop))

    @property
    def least(self) -> int:
        """Fewest tokens of an image."""
        return max(1, self.tokens // self.images // 2) if self.min_tokens is None else self.min_tokens

    @property
    def most(self) -> int:
        """Most tokens of an image."""
        return min(self.tokens, 2 * (self.tokens // self.images)) if self.max_tokens is None else self.max_tokens

    @property
    def patch_bytes(self) -> int:
        """Size of one patch: its pixels row by row, three colours each."""
        return 3 * self.patch**2

    def document(self) -> dict[str, object]:
        """Return the settings on which the batches depend, for a loader's state."""
        crop = None if self.crop is None else list(self.crop)
        names = ("tokens", "images", "patch")
        found: dict[str, object] = {name: getattr(self, name) for name in names}
        return found | {"min_tokens": self.least, "max_tokens": self.most, "crop": crop}


def _whole(name: str, value: Any, most: int) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise UsageError(f"packs: {name} must be a whole number, got {value!r}")
    number = int(value)
    if not 1 <= number <= most:
        raise UsageError(f"packs: {name} must be 1 to {most:,}, got {number:,}")
    return number


def _shares(value: Any) -> tuple[float, float]:
    pair = isinstance(value, tuple | list) and len(value) == len(("low", "high"))
    numbers = pair and all(isinstance(each, Real) and not isinstance(each, bool) for each in value)
    if not numbers or not 0 < value[0] <= value[1] <= 1:
        raise UsageError(f"packs: crop must be a range within 0 to 1, or None, got {value!r}")
    return float(value[0]), float(value[1])
