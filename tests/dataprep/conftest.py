"""Finished datasets of all formats, built when a test first asks for one, and copies of them that may be damaged; and a
Google Cloud of folders and real processes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataprep.cloud.tpu.fleet import worker_program
from dataprep.storage import Storage, open_storage
from tests.support.fake_gcloud import FakeCloud, fake_gcloud
from tests.support.faults import Damaged, linked_copy
from tests.support.fetched import FAULTS, fetched_dataset
from tests.support.finished import finished_dataset
from tests.support.picture_web import PictureWeb, picture_web


@pytest.fixture(scope="session")
def finished(originals, tmp_path_factory) -> Callable[[str], Path]:
    """A whole dataset of DATASETS by its name; only ever read."""
    return lambda name: finished_dataset(name, originals, tmp_path_factory)


@pytest.fixture
def damaged(finished, tmp_path) -> Callable[[str], Damaged]:
    """A fresh copy of one of them, to change at will."""

    def copy(name: str) -> Damaged:
        linked_copy(finished(name), tmp_path / name)
        return Damaged(tmp_path / name)

    return copy


@pytest.fixture(scope="session")
def fetched(tmp_path_factory) -> Callable[[str], Path]:
    """A dataset of rows from the web by its format, beside its table; some rows failed. Only ever read."""
    return lambda fmt: fetched_dataset(fmt, tmp_path_factory)


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCloud]:
    """`gcloud` on the PATH, with no TPU yet; the test runs in a folder of its own."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with fake_gcloud(tmp_path / "cloud", monkeypatch) as cloud:
        yield cloud


@pytest.fixture
def pod(cloud: FakeCloud) -> FakeCloud:
    """A TPU of two workers that have the program: `test_fleet.py` shows how it is copied."""
    cloud.add_tpu("my-tpu", workers=2, acceleratorType="v4-16")
    source, name = worker_program()
    for worker in range(2):
        (cloud.home(worker) / name).write_bytes(source.read_bytes())
    return cloud


@pytest.fixture
def storage(storage_url: str) -> Storage:
    """A folder, then a prefix of a bucket, to which nothing was written."""
    return open_storage(storage_url)


@pytest.fixture
def web() -> Iterator[PictureWeb]:
    """A server of pictures, some of which fail."""
    with picture_web() as server:
        server.faults = dict(FAULTS)
        yield server
