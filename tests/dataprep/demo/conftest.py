from __future__ import annotations

from pathlib import Path

import pytest

from dataprep.demo.make import DemoReport, write_demo
from dataprep.sources import dataset_named
from dataprep.storage import open_storage

DATASET_OF = {"coco": "coco-dup5", "imagenet": "imagenet"}
NAMES = sorted(DATASET_OF)


def images_of(report: DemoReport, folder: Path, split: str = "train") -> dict[str, bytes]:
    """Return the images of a split by key."""
    storage = open_storage(str(folder))
    found = dataset_named(DATASET_OF[report.name]).enumerate(storage, split, allow_partial=True)
    return {ref.key: storage.read_range(ref.source, ref.offset, ref.num_bytes) for ref in found.refs}


@pytest.fixture(scope="session", params=NAMES)
def demo(request, tmp_path_factory):
    """The report and the folder of a demo with every oddity."""
    folder = tmp_path_factory.mktemp(f"demo-{request.param}")
    return write_demo(request.param, folder, images=60, odd=True), folder
