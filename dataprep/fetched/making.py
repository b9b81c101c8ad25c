"""The options by which img2dataset made the images of an adopted dataset, so that more can be made in the same way.

img2dataset does not record them. The user gives them as flags, with img2dataset's names and defaults, and they are
compared with the sizes of existing images. Flags that sizes do not reveal are required: `border` and `center_crop` give
the same sizes, and the limits by which rows were filtered are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypedDict

from dataprep.errors import UsageError
from dataprep.fetched.collect import DIGESTS, HASH_MISMATCH, RowOptions
from dataprep.fetched.encode import EncodeOptions, RejectedImageError, ResizeMode, resize
from dataprep.fetched.existing import FetchedDataset
from dataprep.fetched.filters import RowFilter
from dataprep.fetched.layout import Layout
from dataprep.formats.img2dataset import SUCCESS
from dataprep.formats.pictures import MAX_PIXELS
from dataprep.storage import Storage
from dataprep.storage.parquet import read_columns


class HowMade(TypedDict, total=False):
    """The user's flags, as fields of EncodeOptions and RowFilter; all others have img2dataset's defaults."""

    image_size: int
    resize_mode: ResizeMode
    resize_only_if_bigger: bool
    skip_reencode: bool
    encode_quality: int
    min_image_size: int
    max_image_area: int
    max_aspect_ratio: int | float


_FILTERS = {
    "image too small": "min_image_size",
    "image area too large": "max_image_area",
    "aspect ratio too large": "max_aspect_ratio",
}
"""The limit that causes a reason, by reason."""
_SIZES = ("width", "height", "original_width", "original_height")
_SIZES_COMPARED = 32


def rows_as_made(dataset: FetchedDataset, making: HowMade, log: Callable[[str], None]) -> RowOptions:
    """Return the options for rows that are tried again: those of img2dataset when it made the dataset.

    Args:
        dataset: The dataset.
        making: The user's flags.
        log: Called with lines for people.

    Raises:
        UsageError: The existing images were made with other options, or a flag is missing.
    """
    storage, layout = dataset.storage, dataset.layout
    if "resize_mode" not in making:
        raise UsageError(
            f"{storage.url}: img2dataset does not record how it resized its images; give its --resize-mode, which is "
            "border by default"
        )
    encode = EncodeOptions(
        image_size=making.get("image_size", 256),
        resize_mode=making["resize_mode"],
        resize_only_if_bigger=making.get("resize_only_if_bigger", False),
        skip_reencode=making.get("skip_reencode", False),
        encode_format=layout.schema.image_name,
        encode_quality=making.get("encode_quality", 95),
    )
    reasons = dataset.manifest.splits[0].reasons
    for reason, limit in _FILTERS.items():
        if reasons.get(reason) and limit not in making:
            raise UsageError(
                f"{storage.url}: rows failed for {reason!r}; give the limit that img2dataset had: "
                f"--{limit.replace('_', '-')}"
            )
    if reasons.get(HASH_MISMATCH):
        log("img2dataset kept no hashes of rows that failed, so their downloads are not verified")
    _check_sizes(storage, layout, encode)
    digest = next((column.name for column in layout.schema.results if column.name in DIGESTS), "sha256")
    row_filter = RowFilter(
        min_image_size=making.get("min_image_size", 0),
        max_image_area=making.get("max_image_area"),
        max_aspect_ratio=making.get("max_aspect_ratio"),
    )
    return RowOptions(row_filter=row_filter, encode=encode, digest=digest)


def _check_sizes(storage: Storage, layout: Layout, encode: EncodeOptions) -> None:
    """Raise UsageError if these options would have given existing images another size."""
    import numpy as np

    for width, height, original_width, original_height in islice(_stored_sizes(storage, layout), _SIZES_COMPARED):
        if None in (width, height, original_width, original_height):
            if encode.resize_mode != "no":
                raise UsageError(
                    f"{storage.url}: the sizes of its images are not known, img2dataset kept their bytes "
                    "(--disable_all_reencoding); give --resize-mode no --skip-reencode"
                )
            continue
        if not 0 < original_width * original_height <= MAX_PIXELS:
            continue
        try:
            made = resize(np.empty((original_height, original_width), np.uint8), encode).shape[:2]
        except RejectedImageError:
            continue
        # The rounding of img2dataset differs between versions of the library with which it resizes.
        if max(abs(made[0] - height), abs(made[1] - width)) > 1:
            raise UsageError(
                f"{storage.url}: an image of {original_width} x {original_height} is stored as {width} x {height}; "
                f"{encode.resize_mode} at {encode.image_size} makes {made[1]} x {made[0]}; say with --image-size, "
                "--resize-mode and --resize-only-if-bigger how img2dataset made it"
            )


def _stored_sizes(storage: Storage, layout: Layout) -> Iterator[tuple[Any, Any, Any, Any]]:
    for name in layout.parquet_files:
        table = read_columns(storage, name, ("status", *_SIZES))
        for row in table.to_pylist():
            if row["status"] == SUCCESS:
                yield row["width"], row["height"], row["original_width"], row["original_height"]
