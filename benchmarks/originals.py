"""The originals that the benchmarks build from: one set of images as a folder, as a tar of tars, as zips.

Files of folders are hard links if the disk allows it, so that they take no further space.
"""

from __future__ import annotations

import argparse
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
from typing import Any

from dataprep.builder.archives import ARCHIVES
from dataprep.builder.plan import DEFAULT_SHARD_BYTES, BuildOptions, BuildRequest
from dataprep.host.processes import WORKER_ENVIRONMENT
from dataprep.host.versions import machine_document

ROOT = Path(__file__).resolve().parents[1]
PEERS = Path(__file__).resolve().parent / "peers"
PEERS_PYTHON = ROOT / ".bench-venv/bin/python"
DATAPREP = Path(sys.executable).with_name("dataprep")
DEMO_IMAGES = 4000


class NoProgress:
    """Progress for dataprep.builder.driver that is not shown."""

    def __getattr__(self, name: str) -> object:
        return lambda *_: None


def commit() -> str:
    """Return the commit of this checkout, with `+` where files differ from it, other than results of benchmarks."""

    def told(*words: str) -> str:
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False).stdout.strip()

    changed = told("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)benchmarks/results")
    return told("describe", "--always", "--exclude=*") + ("+" if changed else "")


def corpus_images(corpus: Path | None, work: Path, count: int | None) -> list[Path]:
    """Return the images of a folder of class folders, sorted; with `count`, this number of them, evenly spread.

    Args:
        corpus: Folder of `<wnid>/<wnid>_<n>.JPEG`; None makes one of demo data.
        work: Folder into which demo data are unpacked.
        count: Number of images; None: all.
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
    """Write ImageNet's training images as unpacked, `root/train/<wnid>/*.JPEG`; return `root`."""
    for image in images:
        target = root / "train" / image.parent.name / image.name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(image, target)
        except OSError:  # another disk
            shutil.copy2(image, target)
    return root


def train_tar(images: Iterable[Path], root: Path) -> Path:
    """Write ImageNet's `ILSVRC2012_img_train.tar`, a tar with one tar for each class; return `root`."""
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
    """Write COCO's `train2017.zip` and `unlabeled2017.zip`, each with half of the images, stored; return `root`."""
    root.mkdir(parents=True)
    half = len(images) // 2
    for name, part in (("train2017", images[:half]), ("unlabeled2017", images[half:])):
        # Unpacked demo data are of 1970, which a zip can not say.
        with zipfile.ZipFile(root / f"{name}.zip", "w", zipfile.ZIP_STORED, strict_timestamps=False) as archive:
            for number, image in enumerate(part, start=1):
                archive.write(image, f"{name}/{number:012d}.jpg")
    return root


def write_order(source: Path, order: Path, shards: int) -> None:
    """Write the samples of each shard in the order of our build, for the scripts of the other contenders."""
    options = BuildOptions(
        dataset="imagenet", format="webdataset", splits=("train",), num_shards=shards, allow_partial=True
    )
    request = BuildRequest(
        options=options, source_url=str(source), output_url=str(order.parent / "unbuilt"), max_reject_ratio=1
    )
    plan, tables = ARCHIVES.plan_references(request, NoProgress())
    entries = [
        [[str(source / row["source"]), row["key"], row["label"]] for row in table.to_pylist()] for table in tables
    ]
    order.write_text(json.dumps({"classes": plan.classes, "shards": entries}))


def levelled_environment(**more: str) -> dict[str, str]:
    """Return the environment variables of every contender, with those that some of them need.

    PYTHONDONTWRITEBYTECODE is left out: with it every process compiles modules of ours and of packages again.
    """
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "NO_GCE_CHECK": "true"}
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return inherited | WORKER_ENVIRONMENT | quiet | more | {"PYTHONPATH": str(ROOT)}


def common_options(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that all benchmarks of builds have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="folder of <wnid>/<wnid>_<n>.JPEG; default: demo data")
    parser.add_argument("--images", type=int, help="number of images of the corpus; default: all, 4,000 of demo data")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-warm-up", action="store_true", help="measure the first round, too")
    parser.add_argument("--work", type=Path, default=ROOT / "build/benchmarks", help="folder on the disk to measure")
    parser.add_argument("--json", type=Path, help="file to which the table is written as JSON")
    return parser


def machine_facts() -> dict[str, Any]:
    """Return what a measurement depends on besides its input: the machine, its software, and the commit.

    It may be called after the measurement, so it does not say what other programs did before.
    """
    machine = {name: value for name, value in machine_document(0.0).items() if name != "busy_cores_before"}
    return {"machine": machine, "commit": commit()}
