"""The datasets of the situations: photographs as they are, and large; built once, on disk or in a bucket."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.originals import build, corpus_images, image_folder
from benchmarks.situations.situation import Situation
from dataprep.storage import open_storage

BUCKET = "dataprep-situations"
PHOTOS = 1000
LARGE_PHOTOS = 300
LARGE_WIDTH = 2000
"""Width of enlarged photographs, pixels."""
QUALITY = 90
"""JPEG quality of enlarged photographs and of resized datasets."""
SHARDS = 4


class Datasets:
    """Datasets of situations, each built when it is first needed.

    Args:
        work: Folder that keeps originals, datasets on disk and caches.
        corpus: Folder of `<wnid>/<wnid>_<n>.JPEG`; None: demo data.
    """

    def __init__(self, work: Path, corpus: Path | None) -> None:
        self._work, self._corpus = work, corpus
        self._copied: set[str] = set()

    def url(self, situation: Situation) -> str:
        """Return the URL of a situation's dataset; buckets are in the emulator, whose address is in the environment."""
        folder = self._work / "disk" / self._name(situation)
        if not (folder / "dataset.json").exists():
            self._build(situation, folder)
        if not situation.is_in_bucket:
            return str(folder)
        url = f"gs://{BUCKET}/{folder.name}"
        if url not in self._copied:
            _copy(folder, url)
            self._copied.add(url)
        return url

    def cache_dir(self, situation: Situation) -> Path:
        """Return the folder of a situation's cache."""
        return self._work / "cache" / self._name(situation)

    def _name(self, situation: Situation) -> str:
        side = "" if situation.short_side is None else f"-{situation.short_side}"
        return f"{situation.dataset}-{situation.format}{side}"

    def _build(self, situation: Situation, folder: Path) -> None:
        side = situation.short_side
        resize = () if side is None else ("--resize", side, "--quality", QUALITY)
        shards = 0 if situation.format == "imagefolder" else SHARDS
        build(self._source(situation.dataset), folder, *resize, fmt=situation.format, shards=shards)

    def _source(self, name: str) -> Path:
        """Return a folder of originals in ImageNet's layout; it exists only if it is whole."""
        folder = self._work / "originals" / name
        if not folder.exists():
            if name == "photos":
                images = corpus_images(self._corpus, self._work, PHOTOS)
            else:
                images = sorted((self._source("photos") / "train").glob("*/*.JPEG"))
            making = folder.with_name(f"{name}-{os.getpid()}")
            shutil.rmtree(making, ignore_errors=True)
            SOURCES[name](images, making)
            making.rename(folder)
        return folder


def _copy(folder: Path, url: str) -> None:
    """Copy a dataset from disk to a bucket, with the same bytes."""
    storage = open_storage(url)
    files = [path for path in folder.rglob("*") if path.is_file()]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda path: storage.create(str(path.relative_to(folder)), path.read_bytes()), files))


def _rewrite(images: list[Path], root: Path, rewritten: Callable[[Path], bytes]) -> None:
    def write(image: Path) -> None:
        target = root / "train" / image.parent.name / image.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(rewritten(image))

    with ThreadPoolExecutor() as threads:
        list(threads.map(write, images))


def _enlarge(images: list[Path], root: Path) -> None:
    """Write some of the images, enlarged to the width of a camera's."""
    _rewrite([images[len(images) * n // LARGE_PHOTOS] for n in range(min(LARGE_PHOTOS, len(images)))], root, _enlarged)


def _enlarged(path: Path) -> bytes:
    from PIL import Image

    with Image.open(path) as image:
        size = (LARGE_WIDTH, round(image.height * LARGE_WIDTH / image.width))
        output = io.BytesIO()
        image.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(output, "JPEG", quality=QUALITY)
    return output.getvalue()


SOURCES: dict[str, Callable[[list[Path], Path], object]] = {
    "photos": image_folder,
    "large": _enlarge,
}
