"""The workers of a TPU in a Google Cloud of folders and real processes."""

import pytest

from dataprep.cloud.tpu.fleet import Fleet
from tests.support.fake_gcloud import FakeCloud
from tests.support.tpu import two_workers


@pytest.fixture
def fleet(pod: FakeCloud) -> Fleet:
    """The two workers of `pod`."""
    return two_workers()
