"""A small LAION table over images that a local server can serve, with what such tables have besides good rows.

laion.parquet     the table, with LAION-400M's columns and Re-LAION's scores
images/           the files behind the URLs; serve the folder at `base_url`
expected.json     by position in the table, the status and reason that a build with its default options must give
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dataprep.demo_images import DemoImage, MadeImage, make_image, require_photographs
from dataprep.errors import UsageError
from dataprep.laion.collect import FAILED_TO_DOWNLOAD, FAILED_TO_RESIZE, FILTERED, SUCCESS

TABLE = "laion.parquet"
EXPECTED = "expected.json"
IMAGES = "images"
ODD_EVERY = 4
"""Every fourth row is odd, as far as there are oddities."""
_CAPTIONS = (
    "A photograph",
    "Ein Bild – mit Umlauten: ä, ö, ü",
    "写真",
    'Quotes " and, commas\nand a second line',
    "<b>HTML &amp; entities</b>",
)


@dataclass(frozen=True, slots=True)
class Expected:
    """What must become of a row."""

    status: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Odd:
    """One oddity: an image file's contents, what the row says instead, and the row's end."""

    expected: Expected
    file: Callable[[bytes], bytes | None] = lambda jpeg: jpeg
    """None where no file is written."""
    columns: tuple[tuple[str, Any], ...] = ()


_OK = Expected(SUCCESS)
_ODDITIES = (
    _Odd(Expected(FAILED_TO_DOWNLOAD, "http 404"), lambda _: None),
    _Odd(Expected(FAILED_TO_DOWNLOAD, "not image"), lambda _: b"<!DOCTYPE html><html>Not Found</html>"),
    _Odd(Expected(FAILED_TO_RESIZE, "truncated"), lambda jpeg: jpeg[: len(jpeg) // 2]),
    _Odd(Expected(FAILED_TO_DOWNLOAD, "not image"), lambda _: b""),
    _Odd(Expected(FILTERED, "no url"), columns=(("URL", None),)),
    _Odd(Expected(FAILED_TO_DOWNLOAD, "bad url"), columns=(("URL", "file:///etc/passwd"),)),
    _Odd(Expected(FAILED_TO_DOWNLOAD, "refused address"), columns=(("URL", "http://169.254.169.254/latest/"),)),
    _Odd(_OK, columns=(("TEXT", None), ("similarity", None), ("NSFW", None), ("punsafe", None))),
    _Odd(_OK, columns=(("NSFW", "NSFW"), ("punsafe", 0.98))),
    _Odd(_OK, columns=(("md5", "0" * 32),)),
)


def write_demo_laion(folder: Path, base_url: str, images: int, seed: int = 0) -> list[Expected]:
    """Write a table and the files behind it.

    Args:
        folder: Made if need be.
        base_url: Where `folder` will be served, e.g. `http://127.0.0.1:8000`.
        images: Rows of the table.
        seed: Of the crops.

    Returns:
        What must become of each row, in the table's order, where loopback is allowed and robots.txt forbids nothing.

    Raises:
        UsageError: Photographs are missing, or the number of rows is out of range.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not 1 <= images <= 1_000_000:
        raise UsageError(f"--images must be 1 to 1,000,000, got {images:,}")
    require_photographs()
    (folder / IMAGES).mkdir(parents=True, exist_ok=True)
    odd = dict(zip(range(ODD_EVERY - 1, images, ODD_EVERY), _ODDITIES, strict=False))
    rows, ends = [], []
    for index in range(images):
        made = make_image(DemoImage("laion", seed, index, index // 20))
        oddity = odd.get(index, _Odd(_OK))
        name = f"{IMAGES}/{index:06d}.jpg"
        file = oddity.file(made.file)
        if file is not None:
            (folder / name).write_bytes(file)
        rows.append(_row(index, f"{base_url.rstrip('/')}/{name}", made) | dict(oddity.columns))
        ends.append(oddity.expected)
    pq.write_table(pa.Table.from_pylist(rows), folder / TABLE, row_group_size=64)
    (folder / EXPECTED).write_text(json.dumps([asdict(end) for end in ends], indent=1) + "\n")
    return ends


def _row(index: int, url: str, made: MadeImage) -> dict[str, Any]:
    return {
        "SAMPLE_ID": 1_000_000_007 * (index + 1),
        "URL": url,
        "TEXT": f"{_CAPTIONS[index % len(_CAPTIONS)]} {index}",
        "HEIGHT": made.height,
        "WIDTH": made.width,
        "LICENSE": "?",
        "NSFW": "UNLIKELY",
        "similarity": 0.3 + index % 50 / 250,
        "punsafe": index % 10 / 100,
        "pwatermark": index % 7 / 10,
        "md5": hashlib.md5(made.file, usedforsecurity=False).hexdigest(),
    }
