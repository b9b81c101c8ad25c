"""Every recipe of a build, each with originals of any size: published datasets, a user's own, and conversions."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dataprep.demo.make import write_demo
from dataprep.sources import Feature, ImageDataset, SplitFacts, images_in
from dataprep.sources.custom import Image
from dataprep.sources.imagenet import published_classes
from dataprep.storage import Storage
from tests.support.own_data import annotated_rows, build_own, picture, write_pets
from tests.support.tables import write_dogs, write_hub

VAL_SHARE = 4
"""One picture of so many is in val."""


class Scenes(ImageDataset):
    """A class as somebody might write it: pictures in a zip, and a file with what is known of them."""

    name = "scenes"
    facts: Mapping[str, SplitFacts] = {"train": SplitFacts(samples=None), "val": SplitFacts(samples=None)}
    features: Mapping[str, Feature] = {"caption": Feature("text"), "score": Feature("float64")}

    def enumerate(self, root: Storage, split: str) -> Iterator[Image]:
        rows = json.loads(root.read("rows.json"))
        for image in images_in(root, "photos.zip"):
            row = rows[image.key]
            if row["split"] == split:
                values = {name: row[name] for name in self.features}
                yield replace(image, label=row["label"], annotations=values)


SCENES = f"{__name__}:{Scenes.__name__}"
"""The class as the command names it."""


def write_scenes(root: Path, images: int) -> None:
    """Write the originals of `Scenes`."""
    root.mkdir(parents=True)
    rows: dict[str, Any] = {}
    with zipfile.ZipFile(root / "photos.zip", "w") as archive:
        for number, row in enumerate(annotated_rows(images)):
            archive.writestr(f"{number}.jpg", _picture(number))
            split = "train" if number % VAL_SHARE else "val"
            rows[str(number)] = {"split": split, "label": ("day", "dusk", "night")[number % 3], **row}
    (root / "rows.json").write_text(json.dumps(rows))


def write_parquet_imagenet(root: Path, images: int) -> None:
    """Write ImageNet as the Hub has it: names, labels and splits of `ILSVRC/imagenet-1k`, of three classes."""
    wnids = published_classes()[:3]
    rows: dict[str, list[dict[str, Any]]] = {"train": [], "validation": []}
    for number in range(images):
        label = number % len(wnids)
        split = "train" if number % VAL_SHARE else "validation"
        stem = f"{wnids[label]}_{number}" if split == "train" else f"ILSVRC2012_val_{number + 1:08d}"
        image = {"bytes": _picture(number), "path": f"{stem}_{wnids[label]}.JPEG"}
        rows[split].append({"image": image, "label": label, "caption": None})
    half = len(rows["train"]) // 2
    for name, part in (("train-00000", rows["train"][:half]), ("train-00001", rows["train"][half:])):
        write_hub(root / f"data/{name}-of-00002.parquet", part, wnids, row_group_size=7)
    write_hub(root / "data/validation-00000-of-00001.parquet", rows["validation"], wnids, row_group_size=7)


def write_finished(root: Path, images: int) -> None:
    """Write a dataset with classes and annotations, to be converted."""
    with tempfile.TemporaryDirectory(prefix="pets-") as folder:
        write_pets(Path(folder) / "pets", images)
        build_own(Path(folder) / "pets", root)


def _picture(number: int) -> bytes:
    """A small picture, which some builds have to repair."""
    return picture(number, "PNG" if number % 20 == 7 else "JPEG", (32 + number % 50, 24))


def _demo(name: str) -> Callable[[Path, int], object]:
    return lambda root, images: write_demo(name, root, images=images, odd=True)


WRITERS: dict[str, Callable[[Path, int], object]] = {
    **{name: _demo(name) for name in ("coco", "coco-annotated", "imagenet")},
    "pets": write_pets,
    "dogs": write_dogs,
    "scenes": write_scenes,
    "imagenet-parquet": write_parquet_imagenet,
    "finished": write_finished,
}
"""Functions that write originals into a folder that does not exist, with so many images."""
RECIPES = {
    "coco-dup5": "coco",
    "imagenet": "imagenet",
    "imagenet-parquet": "imagenet-parquet",
    "folder": "pets",
    "table": "dogs",
    "coco": "coco-annotated",
    SCENES: "scenes",
    "convert": "finished",
}
"""Every recipe as `build_arguments` takes it, with its originals."""
