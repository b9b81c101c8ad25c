"""The originals of the benchmarks are written from any images, whatever their time says."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from benchmarks.originals import coco_zips


def test_images_of_1970_are_written_to_zips(tmp_path: Path) -> None:
    """Unpacked demo data have this time, because their archives have none."""
    images = [tmp_path / f"{number}.JPEG" for number in range(2)]
    for image in images:
        image.write_bytes(image.name.encode())
        os.utime(image, (0, 0))
    root = coco_zips(images, tmp_path / "zips")
    for name, image in zip(("train2017", "unlabeled2017"), images, strict=True):
        with zipfile.ZipFile(root / f"{name}.zip") as archive:
            assert archive.read(f"{name}/000000000001.jpg") == image.name.encode()
