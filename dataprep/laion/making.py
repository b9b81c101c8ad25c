"""How img2dataset made the images of an adopted dataset, so that more can be made alike.

It writes that nowhere. Flags say it, by its own names and with its own defaults, and are held against the sizes of the
images that are there. What sizes do not tell must be said: `border` and `center_crop` give the same ones, and nobody
else knows the limit by which rows failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from dataprep.errors import UsageError
from dataprep.images import MAX_PIXELS
from dataprep.laion.beside import read_beside
from dataprep.laion.collect import DIGESTS, HASH_MISMATCH, SUCCESS, RowOptions
from dataprep.laion.encode import EncodeOptions, RejectedImageError, resize
from dataprep.laion.filters import RowFilter
from dataprep.laion.layout import Layout
from dataprep.laion.standing import Standing
from dataprep.storage import Storage

DEFAULTS: Mapping[str, Any] = {
    "image_size": 256,
    "resize_only_if_bigger": False,
    "skip_reencode": False,
    "encode_quality": 95,
}
"""img2dataset's own, by field of EncodeOptions; its resize_mode is not among them."""
_FILTERS = {
    "image too small": "min_image_size",
    "image area too large": "max_image_area",
    "aspect ratio too large": "max_aspect_ratio",
}
"""By reason, the limit without which no row has it."""
_SIZES = ("width", "height", "original_width", "original_height")
_SIZES_COMPARED = 32


def rows_as_made(standing: Standing, making: Mapping[str, Any], log: Callable[[str], None]) -> RowOptions:
    """What becomes of rows that are tried again: as img2dataset would have made them.

    Args:
        standing: The dataset.
        making: What was said of it, by field of EncodeOptions or RowFilter; the rest is img2dataset's default.
        log: Takes lines for people.

    Raises:
        UsageError: The images that are there were made otherwise, or something must be said.
    """
    storage, layout = standing.storage, standing.layout
    if "resize_mode" not in making:
        raise UsageError(
            f"{storage.url}: how img2dataset resized its images stands nowhere; say it with --resize-mode; border is "
            "what it does untold"
        )
    encoding = {name: making.get(name, usual) for name, usual in DEFAULTS.items()}
    encoding |= {"resize_mode": making["resize_mode"], "encode_format": layout.schema.image_name}
    encode = EncodeOptions(**encoding)
    limits = {name: making[name] for name in _FILTERS.values() if name in making}
    reasons = standing.manifest.splits[0].reasons
    for reason, limit in _FILTERS.items():
        if reasons.get(reason) and limit not in limits:
            raise UsageError(
                f"{storage.url}: rows failed for {reason!r}; say which limit img2dataset had: "
                f"--{limit.replace('_', '-')}"
            )
    if reasons.get(HASH_MISMATCH):
        log("img2dataset kept no hashes of rows that failed: what comes now is not compared with any")
    _check_sizes(storage, layout, encode)
    digest = next((column.name for column in layout.schema.results if column.name in DIGESTS), "sha256")
    return RowOptions(row_filter=RowFilter(**limits), encode=encode, digest=digest)


def _check_sizes(storage: Storage, layout: Layout, encode: EncodeOptions) -> None:
    """Raise UsageError where these options would have given the images that are there another size."""
    import numpy as np

    for width, height, original_width, original_height in islice(_stored_sizes(storage, layout), _SIZES_COMPARED):
        if None in (width, height, original_width, original_height):
            if encode.resize_mode != "no":
                raise UsageError(
                    f"{storage.url}: the sizes of its images are not known, img2dataset kept their bytes "
                    "(--disable_all_reencoding); say so: --resize-mode no --skip-reencode"
                )
            continue
        if not 0 < original_width * original_height <= MAX_PIXELS:
            continue
        try:
            made = resize(np.empty((original_height, original_width), np.uint8), encode).shape[:2]
        except RejectedImageError:
            continue
        # Its own rounding differs between versions of what it resizes with.
        if max(abs(made[0] - height), abs(made[1] - width)) > 1:
            raise UsageError(
                f"{storage.url}: an image of {original_width} x {original_height} is stored as {width} x {height}; "
                f"{encode.resize_mode} at {encode.image_size} makes {made[1]} x {made[0]}; say with --image-size, "
                "--resize-mode and --resize-only-if-bigger how img2dataset made it"
            )


def _stored_sizes(storage: Storage, layout: Layout) -> Iterator[tuple[Any, Any, Any, Any]]:
    for name in layout.parquet_files:
        table = read_beside(storage, name, ("status", *_SIZES))
        for row in table.to_pylist():
            if row["status"] == SUCCESS:
                yield row["width"], row["height"], row["original_width"], row["original_height"]
