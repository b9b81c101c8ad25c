"""Names below a dataset's root, the names of images that are read, and the paths that samples' keys were made from.

`dataprep.sources.keys.key_of` makes keys: bytes other than letters, digits, `_`, `-` and `/` are `=XX`.
"""

from __future__ import annotations

import quopri
import re

from dataprep.messages import printable, shortened, shown

BUILD = "_build"
"""Folder of a running build."""
HEAD_SPLIT = "train"
"""Split of a folder whose index may begin with heads."""
PLAN_JSON = f"{BUILD}/plan.json"
"""Plan of the build that owns this output; see dataprep/builder/output.py."""
OVERWRITING = f"{BUILD}/overwriting"
"""List of the names that `overwrite` removes; while this file exists, no build can begin."""
OVERWRITTEN = f"{BUILD}/overwritten"
"""Marker that `overwrite` is done and a build may begin; in a bucket it lists the names that were removed."""
UNPACKED = f"{BUILD}/unpacked-"
"""Prefix of the names of images that were unpacked from parquet files; see dataprep/sources/unpacked.py."""
CHANGE = "_change"
"""Folder of a running change of a finished dataset: `dataprep retry-failed` or `remove`."""
CHANGE_JSON = f"{CHANGE}/plan.json"
"""Plan of that change; see `ChangePlan` of dataprep/builder/finished.py."""
MAP = "_map"
"""Folder of running `dataprep map`; see dataprep/mapping.py."""
README, CROISSANT, WDS_INFO = CARDS = ("README.md", "croissant.json", "_info.json")
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
"""Names of files that macOS, Windows, Linux and file servers leave in folders: regular expressions, in lower case."""
_HIDDEN = re.compile(rf"(?:^|/)(?:\.|(?:{'|'.join(_SYSTEM)})(?:/|\Z))", re.IGNORECASE)
CLOSE = "=00"
"""Separator of a shortened key and its hash: names hold no NUL, so no other key contains it."""
_MADE = re.compile(r"(?:[A-Za-z0-9_/-]|=[0-9A-Fa-f]{2})*")
"""Pattern of keys that were made from a path; keys from data of other tools are used as they are."""
_SHOWN_CHARACTERS = 200


def is_hidden_name(name: str) -> bool:
    """Return whether a path is hidden or a system file, such as those that macOS, Windows and shells leave behind."""
    return _HIDDEN.search(name) is not None


def is_readable_image(name: str) -> bool:
    """Return whether a file is a picture that can be read, by its suffix."""
    return name.rpartition(".")[2].lower() in READABLE_SUFFIXES


def path_of(key: str) -> str:
    """Return the path that a key was made from, without its extension; a shortened key keeps its end."""
    if not _MADE.fullmatch(key):
        return key
    return quopri.decodestring(key).decode("utf-8", "surrogateescape").replace("\0", CLOSE)


def readable(key: str) -> str:
    """Return the path of a key as people read it: bytes that are not UTF-8, and control characters, are replaced."""
    return printable(path_of(key))


def named(key: str) -> str:
    """Return a key as an error names it, with the path that it was made from if that differs: `=C3=A4 = 'ä'`."""
    path = path_of(key)
    return printable(shortened(key, _SHOWN_CHARACTERS)) + (f" = {shown(path)}" if path != key else "")
