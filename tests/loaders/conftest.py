"""Datasets to load: the same images in every format, on disk and in a bucket."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import BUCKET
from tests.support.finished import build_here, finished_dataset

FORMATS = ("webdataset", "tfrecord", "imagefolder")


@pytest.fixture(scope="session")
def dataset(originals, tmp_path_factory) -> Callable[[str], Path]:
    """ImageNet's originals built in a format, on disk; only ever read. `coco`: COCO's, five passes an epoch."""

    def path_of(fmt: str) -> Path:
        name = "coco-webdataset" if fmt == "coco" else f"imagenet-{fmt}"
        return finished_dataset(name, originals, tmp_path_factory)

    return path_of


@pytest.fixture(scope="session")
def bucket_dataset(originals, gcs) -> Callable[[str], str]:
    """The same in a bucket."""
    built = set()

    def url_of(fmt: str) -> str:
        url = f"gs://{BUCKET}/datasets/{fmt}"
        if fmt not in built:
            build_here("imagenet", originals["imagenet"], url, fmt)
            built.add(fmt)
        return url

    return url_of
