"""Thumbnails of a split: images spread evenly over it, and unusual images.

Unusual are images with the same bytes, and images with extreme sides, shapes or sizes. Each image is read as one range
of its shard, and shown with its caption, classes and values of columns.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from dataprep.arrays import NDArray, np
from dataprep.builder.images import ImagePolicy, check_image
from dataprep.dataset.adopted import is_adopted, open_named_data
from dataprep.dataset.column_files import OpenedColumn, column_names, read_column, value_bounds, value_of
from dataprep.dataset.columns import numbers_or_zero
from dataprep.dataset.features import annotation_values
from dataprep.dataset.hashes import Prints
from dataprep.dataset.index import open_index
from dataprep.dataset.manifest import built_as
from dataprep.dataset.records import Event, Manifest, SplitManifest, ViewedSplit, class_name_of
from dataprep.dataset.views import stored_positions
from dataprep.errors import DataprepError
from dataprep.formats import FORMATS
from dataprep.formats.base import MAX_IMAGE_BYTES
from dataprep.formats.fields import read_fields
from dataprep.formats.imagefolder import annotations_of, image_file, image_suffix, metadata_file
from dataprep.messages import one_line, shortened
from dataprep.storage import Storage

SHEET_IMAGES = 48
NEIGHBOURS = 3
"""Number of images before, and after, each image of the sheet that are shown with it."""
THUMBNAIL_PIXELS = 224
"""Longer side of a thumbnail: sharp in a tile of 112 CSS pixels on displays with two device pixels each."""
NEIGHBOUR_PIXELS = 112
"""Longer side of the thumbnails of neighbours: there are six times as many of them."""
THUMBNAIL_QUALITY = 75
_READS_IN_FLIGHT = 16
MAX_RECORD_BYTES = MAX_IMAGE_BYTES + 2**24
"""Maximum size of a record that is read for its caption; from a larger one only the image is read."""
_COLUMNS = ("key", "image_offset", "image_bytes", "record_offset", "record_bytes", "label")
_CHECK = ImagePolicy(check="decode", on_bad="reject")
NAMES = ("caption", "captions", "txt", "text")
"""Names of features that are captions; the first one that a dataset has is shown."""
SHOWN_CHARACTERS = 300
MAX_FILE_BYTES = 256 * 2**20
"""Maximum size of an image folder's annotations that are read for captions: they are read from the start."""
GROUPS = 12
"""Number of groups of duplicates that are named."""
SHOWN = 4
"""Number of images that are named for each extreme, and in each group of duplicates."""


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
    sha256: str = ""
    """Digest of the image's bytes; empty if they cannot be read."""
    caption: str = ""
    """Caption of the image, shortened; empty if it has none."""
    columns: str = ""
    """Values of the dataset's columns, shortened."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """Pictures of a split."""

    spread: tuple[tuple[Picture, tuple[Picture, ...]], ...] = ()
    """Pictures spread evenly over the split, each with its neighbours in the shards; the neighbours include it."""
    duplicates: tuple[tuple[Picture, ...], ...] = ()
    """Pictures of the same bytes, group by group."""
    extremes: tuple[tuple[str, tuple[Picture, ...]], ...] = ()
    """Extreme pictures by the name of the extreme, such as `widest`."""
    classes: tuple[tuple[str, int], ...] = ()
    """Name and number of samples of every class; empty if the dataset has none."""


class _Place(NamedTuple):
    position: int
    key: str
    class_name: str
    shard: int
    sample: int
    """Number of the image in its shard."""
    offset: int
    num_bytes: int
    record_offset: int
    record_bytes: int
    file: str
    """File of an image in an adopted image folder; empty if the file follows from format and key."""


def open_sheet(storage: Storage, manifest: Manifest, split: SplitManifest) -> Sheet:
    """Make the pictures of a split; reads at most 420 images, always the same ones.

    Raises:
        FormatError: The index cannot be read.
    """
    groups, extremes = find_oddities(storage, split)
    spread = _spread(split.samples)
    around = {at: range(max(0, at - NEIGHBOURS), min(split.samples, at + NEIGHBOURS + 1)) for at in spread}
    odd = {position for positions in (*groups, *extremes.values()) for position in positions}
    large = pictures_at(storage, manifest, split, {*spread, *odd})
    small = pictures_at(storage, manifest, split, {at for near in around.values() for at in near}, NEIGHBOUR_PIXELS)
    named = len(manifest.classes) == len(split.class_counts)
    alike = [[large[at] for at in group if at in large] for group in groups]
    return Sheet(
        classes=tuple(zip(manifest.classes, split.class_counts, strict=True)) if named else (),
        spread=tuple(
            (large[at], tuple(small[each] for each in around[at] if each in small)) for at in spread if at in large
        ),
        duplicates=tuple(
            same for group in alike if len(same := tuple(each for each in group if each.sha256 == group[0].sha256)) > 1
        ),
        extremes=tuple(
            (name, tuple(large[at] for at in positions if at in large)) for name, positions in extremes.items()
        ),
    )


def _spread(samples: int) -> list[int]:
    count = min(SHEET_IMAGES, samples)
    return [(2 * i + 1) * samples // (2 * count) for i in range(count)]


def pictures_at(
    storage: Storage, manifest: Manifest, split: SplitManifest, positions: Iterable[int], pixels: int = THUMBNAIL_PIXELS
) -> dict[int, Picture]:
    """Make the pictures of images by their positions in the order of the shards.

    Args:
        positions: Numbers of the images.
        pixels: Longer side of each thumbnail.

    Raises:
        FormatError: The index cannot be read.
    """
    places = list(_places(storage, manifest, split, sorted(positions)))
    data = open_named_data(storage, manifest)
    captions: Mapping[int, str] = {}
    columns = [read_column(storage, manifest, name) for name in column_names(storage)]
    if FORMATS[manifest.format].one_file_per_image:
        captions = captions_of_folder(storage, manifest, split, {place.position for place in places})
    with ThreadPoolExecutor(_READS_IN_FLIGHT, thread_name_prefix="dataprep-sheet") as pool:
        found = pool.map(partial(_read, data, manifest, split), places)
        values = pool.map(partial(_values, storage, columns, split), places)
        return {
            place.position: _picture(place, image, captions.get(place.position, caption), texts, pixels)
            for place, (image, caption), texts in zip(places, found, values, strict=True)
        }


def _places(storage: Storage, manifest: Manifest, split: SplitManifest, wanted: list[int]) -> Iterator[_Place]:
    index = open_index(storage, split, compare=True)
    rows = index.group_rows
    start = 0
    for group, num_rows in enumerate(rows[: len(split.shards)]):
        here = [position - start for position in wanted if start <= position < start + num_rows]
        start += num_rows
        if not here:
            continue
        columns = [name for name in index.columns if name in (*_COLUMNS, "file")]
        table = index.read_group(group, columns).take(here)
        files = table.column("file").to_pylist() if "file" in columns else [""] * len(here)
        found = zip(here, *(table.column(name).to_pylist() for name in _COLUMNS), files, strict=True)
        for row, key, offset, num_bytes, record_offset, record_bytes, label, file in found:
            position, class_name = start - num_rows + row, class_name_of(label, manifest.classes) or ""
            yield _Place(position, key, class_name, group, row, offset, num_bytes, record_offset, record_bytes, file)


def _read(storage: Storage, manifest: Manifest, split: SplitManifest, place: _Place) -> tuple[bytes | str, str]:
    """Read an image's bytes, and the caption in its record; if they cannot be read, return the reason as a text."""
    try:
        if not 0 < place.num_bytes <= MAX_IMAGE_BYTES:
            return f"the index says {place.num_bytes:,} bytes", ""
        if place.file:
            file = place.file
        elif FORMATS[manifest.format].one_file_per_image:
            suffix = image_suffix(built_as(manifest))
            root = FORMATS[manifest.format].image_root(split.name, split.repeats["stored"])
            file = image_file(root, place.key, place.class_name, suffix)
        else:
            file = split.shards[place.shard]["file"]
            field, start = caption_field(manifest, split), place.offset - place.record_offset
            if field and 0 <= start <= start + place.num_bytes <= place.record_bytes <= MAX_RECORD_BYTES:
                record = storage.read_range(file, place.record_offset, place.record_bytes)
                return record[start : start + place.num_bytes], caption_of_record(manifest, field, record)
        return storage.read_range(file, place.offset, place.num_bytes), ""
    except FileNotFoundError:
        return "its file is missing", ""
    except DataprepError as error:
        return str(error), ""


def _values(storage: Storage, columns: list[OpenedColumn], split: SplitManifest, place: _Place) -> str:
    """Return the values of an image's columns; those that cannot be read are left out."""
    texts = []
    for column in columns:
        with suppress(DataprepError, FileNotFoundError, UnicodeDecodeError):
            texts.append(f"{column.column.name} {_value(storage, column, split, place)}")
    return ", ".join(texts)


def _value(storage: Storage, column: OpenedColumn, split: SplitManifest, place: _Place) -> str:
    kind, file = column.type, column.shard(split.name, place.shard)
    if kind.shape:
        return str(kind)
    at = int(split.kept.numbers(place.shard)[place.sample]) if isinstance(split, ViewedSplit) else place.sample
    start, stop = value_bounds(storage, kind, file)[at : at + 2].tolist()
    if kind.kind == "bytes":
        return f"{stop - start:,} bytes"
    value = value_of(kind, storage.read_range(file.file, start, stop - start))
    if isinstance(value, str):
        return shortened(value, SHOWN_CHARACTERS)
    return f"{value:.6g}" if np.issubdtype(value.dtype, np.floating) else str(value)


def _picture(place: _Place, data: bytes | str, caption: str, columns: str, pixels: int) -> Picture:
    problem = data if isinstance(data, str) else ""
    jpeg = b""
    if isinstance(data, bytes):
        checked = check_image(place.key, data, _CHECK)  # limits the memory and time that a hostile image can take
        if isinstance(checked, Event):
            problem = f"{checked.reason}: {checked.detail}"
        else:
            try:
                jpeg = _thumbnail(data, pixels)
            except Exception as error:  # noqa: BLE001  raised by a codec: only the image is read here
                problem = one_line(error)
    sha256 = hashlib.sha256(data).hexdigest() if isinstance(data, bytes) else ""
    return Picture(
        key=place.key,
        class_name=place.class_name,
        jpeg=jpeg,
        problem=problem,
        sha256=sha256,
        caption=caption,
        columns=columns,
    )


def _thumbnail(data: bytes, pixels: int) -> bytes:
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # large images and corrupt EXIF blocks were checked before
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            image.draft("RGB", (2 * pixels, 2 * pixels))
            image.thumbnail((pixels, pixels))
            small = image.convert("RGB")
    out = io.BytesIO()
    small.save(out, "JPEG", quality=THUMBNAIL_QUALITY, optimize=True)
    return out.getvalue()


def caption_field(manifest: Manifest, split: SplitManifest) -> str:
    """Return the name of the caption field, or an empty string if there is none.

    The manifest does not list the fields of fetched or adopted samples, so there each sample may have a caption.
    """
    found = next((name for name in NAMES if name in manifest.features and manifest.features[name].kind == "text"), "")
    if found or FORMATS[manifest.format].one_file_per_image:
        return found
    return NAMES[0] if split.statuses or is_adopted(manifest) else ""


def caption_of_record(manifest: Manifest, field: str, record: bytes) -> str:
    """Return the caption in a sample's record; empty if it has none."""
    try:
        return _text(read_fields(manifest.format, record, (field,), manifest.features)[field])
    except DataprepError:
        return ""


def captions_of_folder(
    storage: Storage, manifest: Manifest, split: SplitManifest, positions: Collection[int]
) -> Mapping[int, str]:
    """Return the captions of an image folder's samples by their positions; none if its annotations cannot be read."""
    field, name = caption_field(manifest, split), metadata_file(split.name)
    num_bytes = next((entry["bytes"] for entry in manifest.files if entry["file"] == name), 0)
    if not (field and positions and 0 < num_bytes <= MAX_FILE_BYTES):
        return {}
    found, wanted = {}, stored_positions(split, positions)
    try:
        with storage.open(name) as lines:
            for stored in range(max(wanted) + 1):
                line = lines.readline(num_bytes)
                if stored in wanted:
                    _, annotations = annotations_of(line, manifest.features)
                    found[wanted[stored]] = _text(annotation_values(manifest.features, annotations)[field])
    except (DataprepError, FileNotFoundError):
        return {}
    return found


def _text(value: Any) -> str:
    """Return a text, or the first one of a list, shortened; empty for anything else."""
    first = value[0] if isinstance(value, list) and value else value
    return shortened(first.strip(), SHOWN_CHARACTERS) if isinstance(first, str) else ""


class _Extreme:
    """The positions of the smallest values so far; equal values keep their order."""

    def __init__(self) -> None:
        self.values: NDArray[np.float64] = np.empty(0)
        self.positions: NDArray[np.int64] = np.empty(0, np.int64)
        self.differs = False
        """Whether two values differ."""

    def add(self, values: NDArray[np.float64], positions: NDArray[np.int64]) -> None:
        both, places = np.concatenate([self.values, values]), np.concatenate([self.positions, positions])
        self.differs = self.differs or bool((both != both[:1]).any())
        smallest = np.argsort(both, kind="stable")[:SHOWN]
        self.values, self.positions = both[smallest], places[smallest]


def find_oddities(
    storage: Storage, split: SplitManifest
) -> tuple[tuple[tuple[int, ...], ...], dict[str, tuple[int, ...]]]:
    """Find duplicate and extreme images in the index of a split.

    Returns:
        Positions of the first groups of images with the same size and CRC32C; and positions of extreme images by the
        name of the extreme, the most extreme first. Measures that are equal for all images are left out.

    Raises:
        FormatError: The index cannot be read.
    """
    names = (
        "narrowest", "widest", "fewest pixels", "most pixels", "fewest bytes a pixel", "most bytes a pixel",
    )  # fmt: skip
    extremes = {name: _Extreme() for name in names}
    seen, start = Prints(), 0
    for batch in open_index(storage, split, compare=True).batches(["image_bytes", "height", "width", "image_crc32c"]):
        num_bytes, height, width = (numbers_or_zero(batch.column(number), np.int64) for number in range(3))
        positions = np.flatnonzero((height > 0) & (width > 0) & (num_bytes > 0))
        sides, pixels = width[positions] / height[positions], (width * height)[positions]
        density = num_bytes[positions] / pixels
        for name, values in zip(extremes, (sides, -sides, pixels, -pixels, density, -density), strict=True):
            extremes[name].add(values, start + positions)
        seen.add(num_bytes, batch.column(3))
        start += len(batch)
    prints = seen.numbers()
    _, first, counts = np.unique(prints, return_index=True, return_counts=True)
    starts = np.sort(first[counts > 1])[:GROUPS]
    groups = tuple(tuple(np.flatnonzero(prints == prints[place])[:SHOWN].tolist()) for place in starts)
    return groups, {name: tuple(found.positions.tolist()) for name, found in extremes.items() if found.differs}
