"""Samples to the bytes of a dataset's files, and back."""

from __future__ import annotations

import difflib

from dataprep.errors import UsageError
from dataprep.formats.base import ShardFormat
from dataprep.formats.tfrecord import TFRecordFormat
from dataprep.formats.webdataset import WebDatasetFormat

FORMATS: dict[str, ShardFormat | None] = {
    "imagefolder": None,  # no shards: see imagefolder.py
    "tfrecord": TFRecordFormat(),
    "webdataset": WebDatasetFormat(),
}


def format_named(name: str) -> ShardFormat | None:
    """The format of that name; None is the image folder, which has no shards.

    Raises:
        UsageError: there is none; it lists them and the nearest.
    """
    if name in FORMATS:
        return FORMATS[name]
    near = difflib.get_close_matches(name.lower(), FORMATS, n=1)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    raise UsageError(f"format {name!r}, expected one of {', '.join(FORMATS)}{hint}")
