"""Demo originals of COCO with annotations, builds of them, and what pycocotools sees in the original files."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dataprep.builder.images import ImagePolicy
from dataprep.builder.plan import BuildOptions, BuildRequest
from dataprep.dataset.records import Manifest
from dataprep.demo.make import write_demo
from dataprep.sources.coco_annotations import KINDS
from tests.support.build_here import whole
from tests.support.own_data import picture, write_files
from tests.support.raw_zip import Entry, zip_file

IMAGES = 120
FIELDS = {
    "captions": "captions",
    "instances": "objects",
    "keypoints": "person_keypoints",
    "panoptic": "panoptic_objects",
}
"""Field of a sample by kind of annotations."""
FILES = {"captions": "captions", "instances": "instances", "keypoints": "person_keypoints", "panoptic": "panoptic"}
"""First part of the name of an annotation file."""


def write_coco(root: Path) -> None:
    """Write annotated demo originals, odd images among them."""
    write_demo("coco-annotated", root, images=IMAGES, odd=True)


def small_documents() -> dict[str, dict[str, Any]]:
    """Annotations of three images of val by hand; the last image has none."""
    images = [
        {"id": number, "file_name": f"{number:012d}.jpg", "height": 16, "width": 24, "license": 4, "coco_url": "c",
         "flickr_url": "f", "date_captured": "d"} for number in (7, 8, 9)
    ]  # fmt: skip
    person = {"id": 1, "name": "person", "supercategory": "person"}
    polygon = {"id": 70, "image_id": 8, "category_id": 1, "bbox": [1.5, 2, 10.25, 8], "area": 41.125, "iscrowd": 0,
               "segmentation": [[1.5, 2, 11.75, 2, 11.75, 10], [1, 1, 2.5, 1]]}  # fmt: skip
    crowd = {"id": 71, "image_id": 7, "category_id": 90, "bbox": [0, 0, 24, 2], "area": 32, "iscrowd": 1,
             "segmentation": {"size": [16, 24], "counts": [0, 2, *[14, 2] * 15, 142]}}  # fmt: skip
    outside = {"id": 72, "image_id": 7, "category_id": 1, "bbox": [-3.5, 14, 40, 0], "area": 0.0, "iscrowd": 0,
               "segmentation": []}  # fmt: skip
    keypoints = {"keypoints": [3, 4, 2, *[0] * 45, 5.5, 6.5, 1], "num_keypoints": 2}
    segment = {"id": 65793, "category_id": 187, "iscrowd": 0, "bbox": [0, 0, 24, 16], "area": 384}
    captions = [{"id": number, "image_id": 7 + number % 2, "caption": f"caption {number}"} for number in range(10)]
    shared = {"info": {}, "licenses": [], "images": images}
    return {
        "captions": {**shared, "annotations": captions},
        "instances": {
            **shared,
            "annotations": [polygon, crowd, outside],
            "categories": [{"id": 90, "name": "toothbrush"}, person],
        },
        "keypoints": {**shared, "annotations": [polygon | keypoints], "categories": [person]},
        "panoptic": {
            **shared,
            "annotations": [
                {"image_id": number, "file_name": f"{number:012d}.png", "segments_info": [segment]} for number in (7, 8)
            ],
            "categories": [{"id": 187, "name": "sky", "isthing": 0}],
        },
    }


def write_small(root: Path, documents: Mapping[str, Any] | None = None, split: str = "val") -> Path:
    """Write a split of three images with unpacked annotation files; values of `documents` are objects or raw bytes."""
    folder = f"{split}2017"
    entries = [Entry(name=f"{folder}/{number:012d}.jpg".encode(), data=picture(number)) for number in (7, 8, 9)]
    files: dict[str, bytes | str] = {f"{folder}.zip": zip_file(entries)}
    for kind, document in (small_documents() if documents is None else documents).items():
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        files[f"annotations/{FILES[kind]}_{folder}.json"] = data
    for number in (7, 8):
        files[f"annotations/panoptic_{folder}/{number:012d}.png"] = picture(number, "PNG")
    return write_files(root, files)


def coco_request(source: object, output: object, fmt: str = "webdataset", **options: Any) -> BuildRequest:
    """A request for annotated COCO: train and val with all annotations, in two shards each."""
    chosen = {"splits": ("train", "val"), "annotations": KINDS, "num_shards": 2} | options
    images = ImagePolicy(**chosen.pop("images", {}))
    return BuildRequest(
        options=BuildOptions(dataset="coco", format=fmt, allow_partial=True, images=images, **chosen),
        source_url=str(source),
        output_url=str(output),
        max_reject_ratio=0.5,
    )


def build_coco(source: object, output: object, fmt: str = "webdataset", **options: Any) -> Manifest:
    """Build it in this process."""
    return whole(coco_request(source, output, fmt, **options))


def build_small(source: object, output: object, fmt: str = "webdataset", **options: Any) -> Manifest:
    """Build what `write_small` wrote."""
    return build_coco(source, output, fmt, **{"splits": ("val",), "num_shards": 1} | options)


def unpacked(source: Path, folder: Path) -> Path:
    """Unpack the annotation files of demo originals; return their folder."""
    for name in ("annotations_trainval2017.zip", "panoptic_annotations_trainval2017.zip"):
        with zipfile.ZipFile(source / name) as archive:
            archive.extractall(folder)
    for path in (folder / "annotations").glob("*.zip"):
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder / "annotations")
    return folder / "annotations"


def pycocotools_view(annotations: Path, kind: str, split: str) -> tuple[Any, dict[str, list[dict[str, Any]]]]:
    """What pycocotools has of a file: the object, and the annotations of each image by the name of its file.

    It reads no panoptic annotations, which have no ids; those are taken from the JSON itself.
    """
    from pycocotools.coco import COCO

    if kind == "panoptic":
        document = json.loads((annotations / f"panoptic_{split}2017.json").read_text())
        view = SimpleNamespace(
            imgs={image["id"]: image for image in document["images"]},
            cats={category["id"]: category for category in document["categories"]},
            imgToAnns={found["image_id"]: [found] for found in document["annotations"]},
        )
        return view, {image["file_name"]: view.imgToAnns.get(number, []) for number, image in view.imgs.items()}
    with contextlib.redirect_stdout(io.StringIO()):
        view = COCO(annotations / f"{FILES[kind]}_{split}2017.json")
    return view, {image["file_name"]: view.imgToAnns.get(number, []) for number, image in view.imgs.items()}


def as_pycocotools(kind: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The annotations of one sample in the words of the original files."""
    image_id, columns = values["image_id"], values[FIELDS[kind]]
    records = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if kind == "captions":
        return [{"id": record["id"], "image_id": image_id, "caption": record["text"]} for record in records]
    if kind == "panoptic":
        if not values["panoptic_filename"]:
            return []
        segments = [_object(record) for record in records]
        return [{"image_id": image_id, "file_name": values["panoptic_filename"], "segments_info": segments}]
    return [_object(record) | {"image_id": image_id} for record in records]


def _object(record: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: record[name] for name in ("id", "category_id", "bbox", "area")} | {
        "iscrowd": int(record["is_crowd"])
    }
    if record.get("segmentation"):
        found["segmentation"] = json.loads(record["segmentation"])
    if "keypoints" in record:
        flat = [number for point in record["keypoints"] for number in point]
        found |= {"keypoints": flat, "num_keypoints": record["num_keypoints"]}
    return found


def differences(annotations: Path, split: str, samples: Iterable[Mapping[str, Any]]) -> list[str]:
    """What samples have other than pycocotools, field by field; samples are values by feature."""
    found = []
    samples = list(samples)
    for kind in KINDS:
        view, by_file = pycocotools_view(annotations, kind, split)
        names = {number: category["name"] for number, category in view.cats.items()}
        labels = {number: place for place, number in enumerate(sorted(names))}
        for values in samples:
            image = view.imgs[values["image_id"]]
            pairs: list[tuple[str, Any, Any]] = [
                (f"{kind}", as_pycocotools(kind, values), by_file[values["filename"]]),
                *((name, values[name], image[name]) for name in ("license", "coco_url", "flickr_url")),
                # Hugging Face's image folder makes a time of it.
                ("date_captured", str(values["date_captured"]), image["date_captured"]),
                ("id", values["image_id"], image["id"]),
                ("height", values["original_height"], image["height"]),
                ("width", values["original_width"], image["width"]),
            ]
            if kind != "captions":
                columns = values[FIELDS[kind]]
                pairs.append(("category", columns["category"], [names[number] for number in columns["category_id"]]))
                pairs.append(("label", columns["label"], [labels[number] for number in columns["category_id"]]))
            found += [
                f"{values['filename']} {what}: {ours} != {theirs}" for what, ours, theirs in pairs if ours != theirs
            ]
    return found
