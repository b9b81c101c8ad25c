"""Buckets in six places, each with the same object."""

from __future__ import annotations

import pytest

from tests.support.gcs_emulator import GCSEmulator
from tests.support.guarded import PLACES, fill_bucket


@pytest.fixture(scope="package")
def placed(gcs: GCSEmulator) -> GCSEmulator:
    """The emulator with the buckets of PLACES."""
    for name in PLACES:
        fill_bucket(gcs, name)
    return gcs
