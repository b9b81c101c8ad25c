"""Writes a small LAION table with good and odd rows, and the images behind its URLs, and serves them on loopback.

laion.parquet     the table, with LAION-400M's columns and Re-LAION's scores
images/           the files behind the URLs; serve the folder at `base_url`
demo.json         the arguments of the demo; written first
expected.json     the status and reason that a build with its default options must give each row, in the table's order;
                  written last
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypedDict

from dataprep.demo.images import DemoImage, MadeImage, require_photographs
from dataprep.demo.make import REPORT, Progress, made_images
from dataprep.errors import StorageError, UsageError
from dataprep.formats.img2dataset import FAILED_TO_DOWNLOAD, FAILED_TO_RESIZE, FILTERED, SUCCESS
from dataprep.sources.tables import Value

TABLE = "laion.parquet"
EXPECTED = "expected.json"
IMAGES = "images"
ODD_EVERY = 4
"""Distance between odd rows, until all oddities have occurred."""
_CAPTIONS = (
    "A photograph",
    "Ein Bild – mit Umlauten: ä, ö, ü",
    "写真",
    'Quotes " and, commas\nand a second line',
    "<b>HTML &amp; entities</b>",
)


class _Demo(TypedDict):
    """`demo.json`."""

    name: str
    base_url: str
    images: int
    seed: int


@dataclass(frozen=True, slots=True)
class Expected:
    """Status and reason that a build must give a row."""

    status: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Odd:
    """An oddity: a change of the image file, a change of the row, and the row's expected result."""

    expected: Expected
    file: Callable[[bytes], bytes | None] = lambda jpeg: jpeg
    """Function that changes the file's content; returns None if no file is to be written."""
    columns: tuple[tuple[str, Value], ...] = ()


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


def write_demo_laion(
    folder: Path, base_url: str, images: int, seed: int = 0, progress: Progress | None = None
) -> list[Expected]:
    """Write a table and the files behind it; existing files of the same demo stay as they are.

    Args:
        folder: Folder, which is created if needed.
        base_url: URL at which `folder` will be served, such as `http://127.0.0.1:8000`.
        images: Number of rows in the table.
        seed: Seed of the crops.
        progress: Called for each finished image.

    Returns:
        Expected result of each row, in the table's order, if loopback is allowed and robots.txt forbids nothing.

    Raises:
        UsageError: Photographs are missing, the number of rows is out of range, or the folder holds something else.
        StorageError: The folder cannot be written.
    """
    if not 1 <= images <= 1_000_000:
        raise UsageError(f"--images must be 1 to 1,000,000, got {images:,}")
    require_photographs()
    try:
        if not _is_complete(folder, {"name": "laion", "base_url": base_url, "images": images, "seed": seed}):
            _write(folder, base_url, images, seed, progress)
        return [Expected(**end) for end in json.loads((folder / EXPECTED).read_text())]
    except BrokenProcessPool as error:
        raise StorageError(f"{folder}: a process that made images was killed; run the same command again") from error
    except OSError as error:
        raise StorageError(f"{folder}: not written: {error.strerror or error}; choose another folder") from error


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a line for each request is of no use."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 1024  # a fetcher opens its connections at once; of the five by default some would wait seconds


def demo_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """Open a server of a folder, on loopback only; it answers when `serve_forever` runs.

    Args:
        folder: Folder to serve, which may not exist yet.
        port: Port; 0 for any free one.

    Raises:
        UsageError: The port is taken.
    """
    try:
        return _Server(("127.0.0.1", port), functools.partial(_Handler, directory=str(folder)))
    except OSError as error:
        raise UsageError(f"--port {port}: {error.strerror or error}; choose another one, or 0 for any") from error


def _is_complete(folder: Path, document: _Demo) -> bool:
    """Return whether the same demo exists completely; otherwise claim the folder for it."""
    marker = folder / REPORT
    found = json.loads(marker.read_text()) if marker.exists() else None
    if found == document and (folder / EXPECTED).exists():
        return True
    if found is None and (folder / TABLE).exists():
        raise UsageError(f"{folder} holds {TABLE}, which is no demo; choose another folder")
    if found is not None and found.get("name") != document["name"]:
        raise UsageError(f"{folder} holds another demo (see {REPORT}); choose another folder, or remove it")
    (folder / IMAGES).mkdir(parents=True, exist_ok=True)
    (folder / EXPECTED).unlink(missing_ok=True)
    marker.write_text(json.dumps(document, indent=1) + "\n")
    return False


def _write(folder: Path, base_url: str, images: int, seed: int, progress: Progress | None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    odd = dict(zip(range(ODD_EVERY - 1, images, ODD_EVERY), _ODDITIES, strict=False))
    rows, ends = [], []
    specs = [DemoImage("laion", seed, index, index // 20) for index in range(images)]
    with made_images(specs, progress) as made:
        for index, image in enumerate(made):
            oddity = odd.get(index, _Odd(_OK))
            name = f"{IMAGES}/{index:06d}.jpg"
            file = oddity.file(image.file)
            if file is not None:
                (folder / name).write_bytes(file)
            rows.append(_row(index, f"{base_url.rstrip('/')}/{name}", image) | dict(oddity.columns))
            ends.append(oddity.expected)
    pq.write_table(pa.Table.from_pylist(rows), folder / TABLE, row_group_size=64)
    (folder / EXPECTED).write_text(json.dumps([asdict(end) for end in ends], indent=1) + "\n")


def _row(index: int, url: str, made: MadeImage) -> dict[str, Value]:
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
