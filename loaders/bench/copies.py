"""Copies of some images of a dataset in the layouts that other loaders read, to compare them with ours."""

from __future__ import annotations

import bisect
import itertools
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from dataprep.adoption import AdoptRequest, Progress, adopt
from dataprep.errors import DataprepError, UsageError
from loaders.bench.data import INDEX_DEADLINE_S, BenchData
from loaders.bench.runs import last_line, module_command

SHARDS = 8
"""Number of shards of every layout; with more workers, one for each."""
IMAGE_FOLDER = "imagefolder"
READERS = 8
_JPEG = b"\xff\xd8\xff"


class Copy:
    """Copy of some images, evenly spread over one split. A layout that the folder has already is used as it is.

    Args:
        data: Dataset that is copied.
        folder: Folder of the layouts, one folder for each.
        most: Maximum number of images.
        workers: Workers that will read the copy.
        progress: Receives what is being done.
    """

    def __init__(self, data: BenchData, folder: Path, most: int, workers: int, progress: Progress) -> None:
        split, plan_hash = data.dataset.split, data.dataset.manifest.plan_hash
        self._data, self._progress = data, progress
        self._wanted = min(most, split.samples)
        self._shards = max(SHARDS, workers)
        self._folder = folder / f"{plan_hash[:12]}-{split.name}-{self._wanted}-{self._shards}"

    @cached_property
    def images(self) -> int:
        """Number of images in the copy."""
        return len(self._files)

    @cached_property
    def bytes_per_image(self) -> float:
        """Mean size of an encoded image."""
        return sum(file.stat().st_size for file in self._files) / len(self._files)

    @property
    def is_whole(self) -> bool:
        """Whether the copy has all images and the dataset, too, is on a disk, so that the copy saves nothing."""
        return self.images == self._data.dataset.split.samples and self._data.is_local

    def layout(self, layout: str, python: Path | str = sys.executable) -> Path:
        """Return the folder of a layout, which is written if it does not exist.

        Args:
            layout: A layout that `loaders.bench.peers_layouts` writes, or `imagefolder`.
            python: Interpreter of an environment that can write the layout.

        Raises:
            DataprepError: The layout cannot be written.
        """
        done = self._folder / layout
        if not done.is_dir():
            part = self._folder / f"{layout}.part"
            shutil.rmtree(part, ignore_errors=True)
            if layout == IMAGE_FOLDER:
                self._write_images(part)
            else:
                self._write_layout(layout, part, python)
            part.rename(done)
        return done

    def indexed(self, layout: str) -> str:
        """Return the URL of an index of a layout, for our loader."""
        index = self._folder / f"index-{layout}"
        request = AdoptRequest(url=str(self.layout(layout)), index_url=str(index), format=layout, shuffled=True)
        return adopt(request, self._progress).url

    @cached_property
    def _files(self) -> Sequence[Path]:
        return list(self.layout(IMAGE_FOLDER).glob("*/*"))

    def _write_images(self, folder: Path) -> None:
        """Write `<label>/<position>.jpg` for every image that is a JPEG."""
        self._progress.step(f"copying {self._wanted:,} images")
        samples, storage = self._data.dataset.split.samples, self._data.dataset.storage
        index = self._data.dataset.open_index(INDEX_DEADLINE_S)
        starts = [0, *itertools.accumulate(entry["samples"] for entry in self._data.dataset.split.shards)]

        def copy(number: int) -> bool:
            position = samples * number // self._wanted
            shard = bisect.bisect_right(starts, position) - 1
            entries, entry = index.shard(shard), position - starts[shard]
            at, size = int(entries.image_offset[entry]), int(entries.image_bytes[entry])
            image = storage.read_range(index.file_of(shard, entries, entry), at, size)
            if not image.startswith(_JPEG):
                return False
            target = folder / f"{max(0, int(entries.label[entry])):05d}" / f"{position:09d}.jpg"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(image)
            return True

        with ThreadPoolExecutor(max(READERS, storage.reads_in_flight)) as pool:
            copied = sum(pool.map(copy, range(self._wanted)))
        if not copied:
            raise UsageError(f"{self._data.url}: none of {self._wanted:,} images is a JPEG, which other loaders need")
        if copied < self._wanted:
            self._progress.log(f"{self._wanted - copied:,} images are not JPEGs and are left out for other loaders")

    def _write_layout(self, layout: str, folder: Path, python: Path | str) -> None:
        self._progress.step(f"writing the copy as {layout}")
        words = [layout, "--images", self.layout(IMAGE_FOLDER), "--out", folder, "--shards", self._shards]
        command = module_command(python, "loaders.bench.peers_layouts", *words)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DataprepError(f"{folder}: cannot be written as {layout}: {last_line(done.stderr)}")
