"""Makes thumbnails of some images of a split, spread evenly over it; each image is read as one range of its shard."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from dataprep.build.images import ImagePolicy, check_image
from dataprep.dataset.index import open_index
from dataprep.dataset.labels import class_name_of
from dataprep.dataset.manifest import built_as
from dataprep.dataset.records import Event, Manifest, SplitManifest
from dataprep.dataset.trust import open_named_data
from dataprep.errors import DataprepError
from dataprep.formats import FORMATS
from dataprep.formats.checked import MAX_IMAGE_BYTES
from dataprep.formats.imagefolder import image_file, image_suffix
from dataprep.storage import Storage

SHEET_IMAGES = 48
THUMBNAIL_PIXELS = 224
"""Longer side of a thumbnail: sharp in a tile of 112 CSS pixels on displays with two device pixels for each of them."""
THUMBNAIL_QUALITY = 75
_READS_IN_FLIGHT = 16
_COLUMNS = ("key", "image_offset", "image_bytes", "label")
_CHECK = ImagePolicy(check="decode", on_bad="reject")


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """An image of the sheet."""

    key: str
    class_name: str
    """Name of the image's class; empty if the dataset has no classes."""
    jpeg: bytes
    """JPEG of at most THUMBNAIL_PIXELS width and height; empty if the image cannot be shown."""
    problem: str
    """Reason why the image cannot be shown; empty if it can."""


class _Place(NamedTuple):
    key: str
    class_name: str
    shard: int
    offset: int
    num_bytes: int
    file: str
    """File of an image in an adopted image folder; empty if the file follows from format and key."""


def contact_sheet(storage: Storage, manifest: Manifest, split: SplitManifest) -> list[Picture]:
    """Make at most SHEET_IMAGES pictures, always of the same images; for one that cannot be shown, give the reason.

    Raises:
        FormatError: The index cannot be read.
    """
    places = list(_places(storage, manifest, split))
    data = open_named_data(storage, manifest)
    with ThreadPoolExecutor(_READS_IN_FLIGHT, thread_name_prefix="dataprep-sheet") as pool:
        images = pool.map(partial(_read, data, manifest, split), places)
        return [_picture(place, data) for place, data in zip(places, images, strict=True)]


def _places(storage: Storage, manifest: Manifest, split: SplitManifest) -> Iterator[_Place]:
    index = open_index(storage, split, compare=True)
    rows = index.group_rows
    count = min(SHEET_IMAGES, sum(rows))
    wanted = [(2 * i + 1) * sum(rows) // (2 * count) for i in range(count)]
    start = 0
    for group, num_rows in enumerate(rows[: len(split.shards)]):
        here = [position - start for position in wanted if start <= position < start + num_rows]
        start += num_rows
        if not here:
            continue
        columns = [name for name in index.columns if name in (*_COLUMNS, "file")]
        table = index.read_group(group, columns).take(here)
        files = table.column("file").to_pylist() if "file" in columns else [""] * len(here)
        found = zip(*(table.column(name).to_pylist() for name in _COLUMNS), files, strict=True)
        for key, offset, num_bytes, label, file in found:
            yield _Place(key, class_name_of(label, manifest.classes) or "", group, offset, num_bytes, file)


def _read(storage: Storage, manifest: Manifest, split: SplitManifest, place: _Place) -> bytes | str:
    """Read an image's bytes; if they cannot be read, return the reason as a text."""
    try:
        if not 0 < place.num_bytes <= MAX_IMAGE_BYTES:
            return f"the index says {place.num_bytes:,} bytes"
        if place.file:
            file = place.file
        elif FORMATS[manifest.format].one_file_per_image:
            suffix = image_suffix(built_as(manifest))
            root = FORMATS[manifest.format].image_root(split.name, split.repeats["stored"])
            file = image_file(root, place.key, place.class_name, suffix)
        else:
            file = split.shards[place.shard]["file"]
        return storage.read_range(file, place.offset, place.num_bytes)
    except FileNotFoundError:
        return "its file is missing"
    except DataprepError as error:
        return str(error)


def _picture(place: _Place, data: bytes | str) -> Picture:
    problem = data if isinstance(data, str) else ""
    jpeg = b""
    if isinstance(data, bytes):
        checked = check_image(place.key, data, _CHECK)  # limits the memory and time that a hostile image can take
        if isinstance(checked, Event):
            problem = f"{checked.reason}: {checked.detail}"
        else:
            jpeg = _thumbnail(data)
    return Picture(key=place.key, class_name=place.class_name, jpeg=jpeg, problem=problem)


def _thumbnail(data: bytes) -> bytes:
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # large images and corrupt EXIF blocks were checked before
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            image.draft("RGB", (2 * THUMBNAIL_PIXELS, 2 * THUMBNAIL_PIXELS))
            image.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
            small = image.convert("RGB")
    out = io.BytesIO()
    small.save(out, "JPEG", quality=THUMBNAIL_QUALITY, optimize=True)
    return out.getvalue()
