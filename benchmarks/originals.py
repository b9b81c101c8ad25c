"""The originals that the benchmarks build from: one set of images as a folder, as a tar of tars, as zips.

Files are hard links where the disk allows it, so that every layout holds the same bytes once where it can.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from dataprep.build.archives import ARCHIVES
from dataprep.build.plan import DEFAULT_SHARD_BYTES, BuildOptions
from dataprep.build.request import BuildRequest

DATAPREP = Path(sys.executable).with_name("dataprep")
DEMO_IMAGES = 4000


class NoProgress:
    """For dataprep.build.driver: nobody watches."""

    def __getattr__(self, name: str) -> object:
        return lambda *_: None


def corpus_images(corpus: Path | None, work: Path, count: int | None) -> list[Path]:
    """Images of a folder of class folders, sorted; with `count` that many, spread over all of them.

    Args:
        corpus: `<wnid>/<wnid>_<n>.JPEG`; None makes one of demo data.
        work: Where demo data is unpacked.
        count: All when None.
    """
    if corpus is None:
        corpus = _unpacked_demo(work, count or DEMO_IMAGES)
    images = sorted(corpus.glob("*/*.JPEG"))
    if not images:
        raise SystemExit(f"{corpus}: no <wnid>/<wnid>_<n>.JPEG below it")
    if count is None or count >= len(images):
        return images
    return [images[len(images) * index // count] for index in range(count)]


def default_shards(images: Iterable[Path]) -> int:
    """Return the number of shards that `dataprep build` makes of the images, at least one for each of two workers."""
    return max(2, -(-sum(image.stat().st_size for image in images) // DEFAULT_SHARD_BYTES))


def _unpacked_demo(work: Path, count: int) -> Path:
    archives, corpus = work / "demo", work / "corpus"
    subprocess.run([DATAPREP, "demo-data", "imagenet", archives, "--images", str(count)], check=True)
    with tarfile.open(archives / "ILSVRC2012_img_train.tar") as outer:
        for member in outer:
            with tarfile.open(fileobj=outer.extractfile(member)) as inner:
                inner.extractall(corpus / Path(member.name).stem, filter="data")
    shutil.rmtree(archives)
    return corpus


def image_folder(images: Iterable[Path], root: Path) -> Path:
    """ImageNet's training images unpacked: `root/train/<wnid>/*.JPEG`."""
    for image in images:
        target = root / "train" / image.parent.name / image.name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(image, target)
        except OSError:  # another disk
            shutil.copy2(image, target)
    return root


def train_tar(images: Iterable[Path], root: Path) -> Path:
    """ImageNet's `ILSVRC2012_img_train.tar`: a tar with one tar a class."""
    root.mkdir(parents=True)
    by_class: dict[str, list[Path]] = defaultdict(list)
    for image in images:
        by_class[image.parent.name].append(image)
    with tarfile.open(root / "ILSVRC2012_img_train.tar", "w", format=tarfile.USTAR_FORMAT) as outer:
        for wnid, files in sorted(by_class.items()):
            inner_path = root / f"{wnid}.tar"
            with tarfile.open(inner_path, "w", format=tarfile.USTAR_FORMAT) as inner:
                for file in files:
                    inner.add(file, file.name)
            outer.add(inner_path, inner_path.name)
            inner_path.unlink()
    return root


def coco_zips(images: list[Path], root: Path) -> Path:
    """COCO's `train2017.zip` and `unlabeled2017.zip`: half of the images each, stored, numbered."""
    root.mkdir(parents=True)
    half = len(images) // 2
    for name, part in (("train2017", images[:half]), ("unlabeled2017", images[half:])):
        with zipfile.ZipFile(root / f"{name}.zip", "w", zipfile.ZIP_STORED) as archive:
            for number, image in enumerate(part, start=1):
                archive.write(image, f"{name}/{number:012d}.jpg")
    return root


def write_order(source: Path, order: Path, shards: int) -> None:
    """Which samples our build puts into which shard, in its order, as the other contenders' scripts read it."""
    options = BuildOptions(
        dataset="imagenet", format="webdataset", splits=("train",), num_shards=shards, allow_partial=True
    )
    request = BuildRequest(
        options=options, source_url=str(source), output_url=str(order.parent / "unbuilt"), max_reject_ratio=1
    )
    plan, tables = ARCHIVES.plan_references(request, NoProgress(), keep=False)
    entries = [
        [[str(source / row["source"]), row["key"], row["label"]] for row in table.to_pylist()] for table in tables
    ]
    order.write_text(json.dumps({"classes": plan.classes, "shards": entries}))
