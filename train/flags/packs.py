"""Flags of entries that train on packs: images of their own shapes, several in a row of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, get_args

from dataprep.errors import UsageError
from loaders.packs import Packs
from train.flags.options import COUNT, COUNT_OR_NONE, COUNT_OR_UNSET, flag
from train.flags.shared import UNSET
from train.loops.backend import Devices
from train.models.sizes import PositionKind


@dataclass(frozen=True, kw_only=True)
class PackFlags:
    """Length and contents of the rows; without `--pack_tokens` images are squares."""

    pack_tokens: int = flag(
        0,
        "Train on images of their own shapes, cut into patches, in rows of so many tokens; 0: on square images.",
        COUNT_OR_NONE,
    )
    pack_images: int = flag(8, "Images in a row of --pack_tokens.", COUNT)
    pack_min_tokens: int = flag(UNSET, "Fewest tokens of an image in a row; -1: half of the mean.", COUNT_OR_UNSET)
    pack_max_tokens: int = flag(UNSET, "Most tokens of an image in a row; -1: twice the mean.", COUNT_OR_UNSET)
    pack_positions: str = flag(
        "fractional",
        "Positions of patches: by their share of the image's sides, or by their numbers of row and column.",
        choices=get_args(PositionKind),
    )

    @property
    def position_kind(self) -> PositionKind:
        """The kind of positions, checked by the command line."""
        return cast(PositionKind, self.pack_positions)

    def packs(self, patch: int, *, crop: tuple[float, float]) -> Packs | None:
        """Return what the loader is asked for; None for squares.

        Args:
            patch: Side of the model's patches, pixels.
            crop: Smallest and largest area of a crop, as shares of the image's; (1, 1): images are not cropped.
        """
        if not self.pack_tokens:
            return None
        return Packs(
            tokens=self.pack_tokens,
            images=self.pack_images,
            patch=patch,
            min_tokens=None if self.pack_min_tokens == UNSET else self.pack_min_tokens,
            max_tokens=None if self.pack_max_tokens == UNSET else self.pack_max_tokens,
            crop=None if crop == (1, 1) else crop,
        )

    def refuse_with_packs(self, given: dict[str, bool]) -> None:
        """Raise UsageError for flags that make no sense for packs.

        Args:
            given: Whether each flag is given, by its name.
        """
        for name, is_given in given.items():
            if self.pack_tokens and is_given:
                raise UsageError(f"--{name} is for square images; leave it out with --pack_tokens")


def check_packs(packs: Packs, batch_size: int, devices: Devices, accum_iter: int) -> None:
    """Raise UsageError if the devices and parts of a batch cannot share its rows equally."""
    shares = packs.images * devices.num_devices * accum_iter
    if batch_size % shares:
        raise UsageError(
            f"--pack_images {packs.images}: a batch of {batch_size} in rows of {packs.images} cannot be shared by "
            f"{devices.num_devices} devices x {accum_iter} parts; choose a batch that is a multiple of {shares}"
        )
