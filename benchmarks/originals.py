"""The originals that the benchmarks build from: one set of images as a folder, as a tar of tars, as zips.

Files of folders are hard links if the disk allows it, so that they take no further space.
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

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import DATAPREP, levelled_environment
from dataprep.builder.growth import ARCHIVES
from dataprep.builder.plan import DEFAULT_SHARD_BYTES, BuildOptions, BuildRequest
from dataprep.host.measure import Measurement, measure

DEMO_IMAGES = 4000


class NoProgress:
    """Progress for dataprep.builder.driver that is not shown."""

    def __getattr__(self, name: str) -> object:
        return lambda *_: None


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


def bytes_of(images: Iterable[Path]) -> int:
    """Return the size of all images together."""
    return sum(image.stat().st_size for image in images)


def default_shards(images: Iterable[Path]) -> int:
    """Return the number of shards that `dataprep build` makes of the images, at least one for each of two workers."""
    return max(2, -(-bytes_of(images) // DEFAULT_SHARD_BYTES))


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
    plan, tables = ARCHIVES.plan_references(build_request("imagenet", str(source), shards), NoProgress())
    entries = [
        [[str(source / row["source"]), row["key"], row["label"]] for row in table.to_pylist()] for table in tables
    ]
    order.write_text(json.dumps({"classes": plan.classes, "shards": entries}))


def build_request(dataset: str, source: str, shards: int, output: str = "unbuilt") -> BuildRequest:
    """Return the request of `build_command`, for a program that only plans."""
    options = BuildOptions(
        dataset=dataset, format="webdataset", splits=("train",), num_shards=shards, allow_partial=True
    )
    return BuildRequest(options=options, source_url=source, output_url=output, max_reject_ratio=1)


def build_command(
    source: object, output: object, *more: object, dataset: str = "imagenet", fmt: str = "webdataset", shards: int = 0
) -> list[str]:
    """Return the command line of a build of any number of training images, of which none has to be whole."""
    words = [DATAPREP, "build", dataset, "--source", source, "--output", output, "--format", fmt, "--json"]
    words += ["--max-reject-ratio", 1] + (["--num-shards", shards] if shards else [])
    words += [] if dataset == "folder" else ["--split", "train", "--allow-partial"]
    return list(map(str, [*words, *more]))


def build(source: object, output: object, *more: object, fmt: str = "webdataset", shards: int = 0) -> str:
    """Build a dataset as a user would; return its place."""
    command = build_command(source, output, *more, fmt=fmt, shards=shards)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return str(output)


def measured_writer(command: list[str], out: Path) -> tuple[Measurement, int | None]:
    """Measure a program that writes a dataset, and remove that; return also how many samples it says it wrote."""
    found = measure(command, levelled_environment())
    shutil.rmtree(out)
    said = json.loads(found.stdout.strip().splitlines()[-1]) if found.stdout.strip() else {}
    return found, said["splits"][0]["samples"] if "splits" in said else said.get("samples")
