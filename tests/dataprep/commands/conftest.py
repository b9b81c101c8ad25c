"""A machine in a zone, as its metadata server says, and the same dataset on disk and in buckets."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataprep.cloud import placement
from tests.support.adoption import upload
from tests.support.gcs_emulator import GCSEmulator
from tests.support.metadata_server import MetadataServer, vm_in


@pytest.fixture
def american_vm(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServer]:
    """This machine is in us-central1-a, and has said nothing yet."""
    placement._say.cache_clear()
    with vm_in("us-central1-a", monkeypatch) as server:
        yield server


@pytest.fixture(scope="session")
def uploaded(finished: Callable[[str], Path], gcs: GCSEmulator) -> Callable[[str, str], str]:
    """Puts a finished dataset of DATASETS into a bucket, which is faster than to build it there."""
    return lambda name, url: upload(finished(name), url)
