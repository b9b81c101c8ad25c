"""What any test may use: an emulated Cloud Storage, and fresh places for a dataset on disk and in a bucket."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataprep.demo_data import write_demo
from tests.support.gcs_emulator import GCSEmulator

BUCKET = "dataprep-tests"
# Virtual devices for XLA, no search for a TPU or a metadata server, no version checks, quiet TensorFlow.
ENVIRONMENT = {
    "PJRT_DEVICE": "CPU",
    "CPU_NUM_DEVICES": "4",
    "TPU_SKIP_MDS_QUERY": "1",
    "NO_ALBUMENTATIONS_UPDATE": "1",
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    "NO_GCE_CHECK": "true",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
_numbers = itertools.count()


def pytest_configure() -> None:
    """Set before any test module is imported: some libraries read these once."""
    os.environ.update(ENVIRONMENT)


@pytest.fixture(scope="session")
def gcs() -> Iterator[GCSEmulator]:
    """A Cloud Storage on loopback, one for each worker of pytest-xdist; all clients are pointed at it."""
    with GCSEmulator() as emulator, pytest.MonkeyPatch.context() as patch:
        emulator.create_bucket(BUCKET)
        patch.setenv("STORAGE_EMULATOR_HOST", emulator.url)
        yield emulator


@pytest.fixture
def bucket_url(gcs: GCSEmulator, request: pytest.FixtureRequest) -> Iterator[str]:
    """A prefix of a bucket that nothing was written to; faults and delays end with the test."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    yield f"gs://{BUCKET}/{next(_numbers)}-{name[:60]}"
    gcs.set_faults(0)
    gcs.set_latency(0)


@pytest.fixture(params=["disk", "bucket"])
def storage_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh folder, then a fresh prefix of a bucket."""
    if request.param == "disk":
        return str(tmp_path / "storage")
    url: str = request.getfixturevalue("bucket_url")
    return url


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small originals in the true layouts, odd files among them: `coco` and `imagenet`."""
    found = {}
    for name in ("coco", "imagenet"):
        found[name] = tmp_path_factory.mktemp(f"originals-{name}")
        write_demo(name, found[name], images=120, odd=True)
    return found
