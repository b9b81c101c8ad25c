"""Datasets to load: the same images in every format, on disk and in a bucket."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import BUCKET
from tests.support.adoption import upload
from tests.support.finished import finished_dataset

FORMATS = ("webdataset", "tfrecord", "imagefolder")


@pytest.fixture(scope="session")
def dataset(originals, tmp_path_factory) -> Callable[[str], Path]:
    """ImageNet's originals built in a format, on disk; only ever read. `coco`: COCO's, five passes an epoch."""

    def path_of(fmt: str) -> Path:
        name = "coco-webdataset" if fmt == "coco" else f"imagenet-{fmt}"
        return finished_dataset(name, originals, tmp_path_factory)

    return path_of


@pytest.fixture(scope="session")
def bucket_dataset(dataset, gcs) -> Callable[[str], str]:
    """The same in a bucket."""
    return cache(lambda fmt: upload(dataset(fmt), f"gs://{BUCKET}/datasets/{fmt}"))
