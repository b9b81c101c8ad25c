"""Names below a dataset's root that several packages use; dataprep/builder describes what lies under them."""

from __future__ import annotations

import re

BUILD = "_build"
"""Folder of a running build."""
PLAN_JSON = f"{BUILD}/plan.json"
"""Plan of the build that owns this output; see dataprep/builder/claim.py."""
OVERWRITING = f"{BUILD}/overwriting"
"""List of the names that `--overwrite` removes; while this file exists, no build can begin."""
OVERWRITTEN = f"{BUILD}/overwritten"
"""Marker that `--overwrite` is done and a build may begin; in a bucket it lists the names that were removed."""
UNPACKED = f"{BUILD}/unpacked-"
"""Begin of the names of images that were unpacked from parquet files; see dataprep/sources/unpacked.py."""
RETRY = "_retry"
"""Folder of a running `dataprep retry-failed`."""
RETRY_JSON = f"{RETRY}/plan.json"
"""Plan of that run; see dataprep/fetched/retry_plan.py."""
README, CROISSANT = "README.md", "croissant.json"
"""The cards of a dataset, which no digest includes and users may edit; see dataprep/builder/cards.py."""
READABLE_IMAGES = {
    "JPEG": ("jpg", "jpeg", "jpe", "jfif"),
    "PNG": ("png",),
    "GIF": ("gif",),
    "BMP": ("bmp",),
    "WEBP": ("webp",),
}
"""Formats of pictures that builds, adoptions and loaders read, by Pillow's names, with the suffixes of their files."""
READABLE_SUFFIXES = frozenset(suffix for suffixes in READABLE_IMAGES.values() for suffix in suffixes)
OTHER_PICTURES = frozenset(
    (
        *("arw", "cr2", "cr3", "dng", "nef", "orf", "raw", "rw2", "tif", "tiff", "pbm", "pgm", "pnm", "ppm"),
        *("avif", "heic", "heif", "jp2", "jxl", "psd", "svg"),
    )
)
"""Suffixes of pictures that are not read: this project has no decoder for them that is safe on hostile bytes."""
_SYSTEM = (
    *("__macosx", "icon\r", "thumbs.db", "ehthumbs.db", "desktop.ini", r"\$recycle\.bin", "system volume information"),
    *(r"lost\+found", "@eadir"),
)
"""What macOS, Windows, Linux and file servers leave in folders, in lower case, as regular expressions."""
_HIDDEN = re.compile(rf"(?:^|/)(?:\.|(?:{'|'.join(_SYSTEM)})(?:/|\Z))", re.IGNORECASE)


def is_hidden_name(name: str) -> bool:
    """Return whether a path is hidden or of the system, like the files that macOS, Windows and shells leave behind."""
    return _HIDDEN.search(name) is not None


def is_readable_image(name: str) -> bool:
    """Return whether a file is a picture that can be read, by its suffix."""
    return name.rpartition(".")[2].lower() in READABLE_SUFFIXES
