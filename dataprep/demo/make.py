"""Writes small originals in the archive layouts of the real datasets, to try every command without a download.

    coco       train2017.zip  unlabeled2017.zip  val2017.zip
               annotations_trainval2017.zip  panoptic_annotations_trainval2017.zip  (with annotations)
    imagenet   ILSVRC2012_img_train.tar  ILSVRC2012_img_val.tar
               ILSVRC2012_devkit_t12.tar.gz  ILSVRC2012_bbox_val_v3.tgz

The bytes depend on the arguments, the photographs and the versions of Pillow and NumPy. `demo.json` is written first
and describes the files. A folder that contains originals but no `demo.json` is not changed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from dataprep.arrays import pa, pq
from dataprep.dataset.randomness import permutation
from dataprep.demo.images import ODDITIES, DemoImage, MadeImage, make_image, require_photographs
from dataprep.demo.layouts import CocoLayout, ImageNetLayout
from dataprep.errors import StorageError, UsageError
from dataprep.formats.img2dataset import FAILED_TO_DOWNLOAD, FAILED_TO_RESIZE, FILTERED, SUCCESS
from dataprep.host.processes import SAFE_PATH, environment
from dataprep.sources.tables import Value

REPORT = "demo.json"
IN_PROCESS_IMAGES = 200
"""Largest number of images that this process makes itself, because starting workers takes longer."""
CHUNK_IMAGES = 16
CHUNKS_IN_FLIGHT = 16
"""Number of chunks in flight; limits images that are made but not yet written to 30 MB."""
Name = Literal["coco", "coco-annotated", "imagenet"]
Progress = Callable[[int, int], None]
"""Function that is called with the number of finished images and of all images."""
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


@dataclass(frozen=True, slots=True)
class OddImage:
    """An image that is not a plain JPEG, with the expected result of a build with default options."""

    key: str
    oddity: str
    verdict: str
    """Result of a build: `kept`, `repaired` or `rejected`."""
    reason: str
    """Reason under which a build counts it; empty if the image is kept."""


@dataclass(frozen=True, slots=True)
class DemoReport:
    """Description of a demo."""

    name: str
    seed: int
    images: dict[str, int]
    """Number of images by split."""
    classes: tuple[str, ...]
    files: tuple[str, ...]
    """Paths relative to the directory."""
    odd: tuple[OddImage, ...]
    """Images that are not plain JPEGs, all in the split train."""


def write_demo(
    name: Name, directory: Path, *, images: int, odd: bool, seed: int = 0, progress: Progress | None = None
) -> DemoReport:
    """Write demo originals; existing files of the same demo stay as they are.

    Args:
        name: Dataset whose layout is written; `coco-annotated` is coco with annotations.
        directory: Folder, which is created if needed.
        images: Number of images of the split train; val gets a twentieth of it, and at least one for each class.
        odd: Include one image of each of ImageNet's known oddities.

    Raises:
        UsageError: A number is out of range, photographs are missing, or the folder holds other originals.
        StorageError: The folder cannot be written.
    """
    if not 2 <= images <= 1_000_000:
        raise UsageError(f"`images` must be 2 to 1,000,000, got {images:,}")
    if odd and images < len(ODDITIES):
        raise UsageError(f"`odd` needs at least {len(ODDITIES)} images, got {images}")
    require_photographs()
    annotated = name == "coco-annotated"
    layout = ImageNetLayout(images, seed) if name == "imagenet" else CocoLayout(images, seed, annotated)
    name = "coco" if annotated else name
    oddities = _placed_oddities(images, seed) if odd else {}
    report = DemoReport(
        name=name,
        seed=seed,
        images={"train": images, "val": layout.val_images},
        classes=layout.classes,
        files=layout.files,
        odd=tuple(
            OddImage(layout.train_key(index), oddity, ODDITIES[oddity].verdict, ODDITIES[oddity].reason)
            for index, oddity in sorted(oddities.items())
        ),
    )
    with _writing(directory):
        if not _is_complete(directory, report):
            specs = [
                DemoImage(name, seed, index, layout.photograph(index), oddities.get(index, ""))
                for index in range(images + layout.val_images)
            ]
            with made_images(specs, progress) as made:
                layout.write(directory, made)
    return report


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn what can go wrong while a demo is written into a StorageError."""
    try:
        yield
    except BrokenProcessPool as error:
        raise StorageError(f"{folder}: a process that made images was killed; run the same command again") from error
    except OSError as error:
        raise StorageError(f"{folder}: not written: {error.strerror or error}; choose another folder") from error


def _placed_oddities(images: int, seed: int) -> dict[int, str]:
    """Choose positions of the split train for oddities, and return their names by position."""
    places = permutation(images, seed=seed, purpose="demo/odd")
    return {int(place): name for place, name in zip(places, ODDITIES, strict=False)}


def _is_complete(directory: Path, report: DemoReport) -> bool:
    """Return whether the same demo exists completely; otherwise claim the folder for it."""
    document = json.dumps(asdict(report), indent=1) + "\n"
    marker = directory / REPORT
    present = [file for file in report.files if (directory / file).exists()]
    if marker.exists():
        if marker.read_text() != document:
            raise UsageError(f"{directory} holds another demo (see {REPORT}); choose another folder, or remove it")
        return len(present) == len(report.files)
    if present:
        raise UsageError(f"{directory} holds {present[0]}, which is not a demo; choose another folder")
    directory.mkdir(parents=True, exist_ok=True)
    marker.write_text(document)
    return False


@contextmanager
def made_images(specs: Sequence[DemoImage], progress: Progress | None) -> Iterator[Iterator[MadeImage]]:
    """Make the images for some descriptions, in their order, with one process for each core.

    Raises:
        BrokenProcessPool: One of the processes was killed.
    """

    def counted(made: Iterator[MadeImage]) -> Iterator[MadeImage]:
        for done, image in enumerate(made, start=1):
            if progress is not None:
                progress(done, len(specs))
            yield image

    if len(specs) <= IN_PROCESS_IMAGES:
        yield counted(map(make_image, specs))
        return
    spawn = multiprocessing.get_context("spawn")
    with environment(SAFE_PATH), ProcessPoolExecutor(os.cpu_count(), mp_context=spawn) as pool:
        yield counted(_ahead(pool, specs))


def _ahead(pool: ProcessPoolExecutor, specs: Sequence[DemoImage]) -> Iterator[MadeImage]:
    """Map like `pool.map`, which would submit everything at once and hold all images that are not written yet."""
    pending: deque[Future[list[MadeImage]]] = deque()
    for at in range(0, len(specs), CHUNK_IMAGES):
        pending.append(pool.submit(_make_images, specs[at : at + CHUNK_IMAGES]))
        if len(pending) > CHUNKS_IN_FLIGHT:
            yield from pending.popleft().result()
    while pending:
        yield from pending.popleft().result()


def _make_images(specs: Sequence[DemoImage]) -> list[MadeImage]:
    return [make_image(spec) for spec in specs]


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
        base_url: URL at which `folder` will be served, such as `http://127.0.0.1:8000`.

    Returns:
        Expected result of each row, in the table's order, if loopback is allowed and robots.txt forbids nothing.

    Raises:
        UsageError: Photographs are missing, the number of rows is out of range, or the folder holds something else.
        StorageError: The folder cannot be written.
    """
    if not 1 <= images <= 1_000_000:
        raise UsageError(f"`images` must be 1 to 1,000,000, got {images:,}")
    require_photographs()
    with _writing(folder):
        if not _is_complete_table(folder, {"name": "laion", "base_url": base_url, "images": images, "seed": seed}):
            _write(folder, base_url, images, seed, progress)
        return [Expected(**end) for end in json.loads((folder / EXPECTED).read_text())]


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: no one needs a line for each request."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 1024  # a fetcher opens its connections at once; of the five by default some would wait seconds


def demo_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """Open a server of a folder, on loopback only; it answers when `serve_forever` runs.

    Args:
        port: Port; 0 for any free one.

    Raises:
        UsageError: The port is taken.
    """
    try:
        return _Server(("127.0.0.1", port), functools.partial(_Handler, directory=str(folder)))
    except OSError as error:
        raise UsageError(f"`port` {port}: {error.strerror or error}; choose another one, or 0 for any") from error


def _is_complete_table(folder: Path, document: dict[str, object]) -> bool:
    """Return whether the same demo exists completely; otherwise claim the folder for it."""
    marker = folder / REPORT
    found = json.loads(marker.read_text()) if marker.exists() else None
    if found == document and (folder / EXPECTED).exists():
        return True
    if found is None and (folder / TABLE).exists():
        raise UsageError(f"{folder} holds {TABLE}, which is not a demo; choose another folder")
    if found is not None and found.get("name") != document["name"]:
        raise UsageError(f"{folder} holds another demo (see {REPORT}); choose another folder, or remove it")
    (folder / IMAGES).mkdir(parents=True, exist_ok=True)
    (folder / EXPECTED).unlink(missing_ok=True)
    marker.write_text(json.dumps(document, indent=1) + "\n")
    return False


def _write(folder: Path, base_url: str, images: int, seed: int, progress: Progress | None) -> None:
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
