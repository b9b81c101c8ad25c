"""Writes small originals in the archive layouts of the real datasets, to try every command without a download.

    coco       train2017.zip  unlabeled2017.zip  val2017.zip
               annotations_trainval2017.zip  panoptic_annotations_trainval2017.zip  (with annotations)
    imagenet   ILSVRC2012_img_train.tar  ILSVRC2012_img_val.tar
               ILSVRC2012_devkit_t12.tar.gz  ILSVRC2012_bbox_val_v3.tgz

The bytes depend on the arguments, the photographs and the versions of Pillow and NumPy. `demo.json` is written first
and describes the files. A folder that contains originals but no `demo.json` is not changed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from dataprep.dataset.randomness import permutation
from dataprep.demo.images import DemoImage, MadeImage, make_image, require_photographs
from dataprep.demo.layouts import CocoLayout, ImageNetLayout
from dataprep.demo.oddities import ODDITIES
from dataprep.errors import StorageError, UsageError
from dataprep.host.processes import SAFE_PATH, environment

REPORT = "demo.json"
IN_PROCESS_IMAGES = 100
"""Up to this number of images this process makes them itself, because starting workers takes longer."""
CHUNK_IMAGES = 16
CHUNKS_IN_FLIGHT = 16
"""Number of chunks in flight; limits the images that are made and not yet written to 30 MB."""

Name = Literal["coco", "coco-annotated", "imagenet"]
Progress = Callable[[int, int], None]
"""Function that is called with the number of finished images and of all images."""


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
        seed: Seed of the crops.
        progress: Called for each finished image.

    Raises:
        UsageError: A number is out of range, photographs are missing, or the folder holds other originals.
        StorageError: The folder cannot be written.
    """
    if not 2 <= images <= 1_000_000:
        raise UsageError(f"--images must be 2 to 1,000,000, got {images:,}")
    if odd and images < len(ODDITIES):
        raise UsageError(f"--odd needs at least {len(ODDITIES)} images, got {images}")
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
    try:
        if not _is_complete(directory, report):
            specs = [
                DemoImage(name, seed, index, layout.photograph(index), oddities.get(index, ""))
                for index in range(images + layout.val_images)
            ]
            with made_images(specs, progress) as made:
                layout.write(directory, made)
    except BrokenProcessPool as error:
        raise StorageError(f"{directory}: a process that made images was killed; run the same command again") from error
    except OSError as error:
        raise StorageError(f"{directory}: not written: {error.strerror or error}; choose another folder") from error
    return report


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
        raise UsageError(f"{directory} holds {present[0]}, which is no demo; choose another folder")
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
