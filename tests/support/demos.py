"""Demo originals and the images in them."""

from __future__ import annotations

from pathlib import Path

from dataprep.demo.make import DemoReport
from dataprep.sources import dataset_named
from dataprep.storage import open_storage

DATASET_OF = {"coco": "coco-dup5", "imagenet": "imagenet"}
NAMES = sorted(DATASET_OF)


def images_of(report: DemoReport, folder: Path, split: str = "train") -> dict[str, bytes]:
    """Return the images of a split by key."""
    storage = open_storage(str(folder))
    found = dataset_named(DATASET_OF[report.name]).enumerate(storage, split, allow_partial=True)
    return {ref.key: storage.read_range(ref.source, ref.offset, ref.num_bytes) for ref in found.refs}
