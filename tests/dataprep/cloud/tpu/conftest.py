"""A Google Cloud of folders and real processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_gcloud import FakeCloud, fake_gcloud


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCloud]:
    """`gcloud` on the PATH, with no TPU yet; the test runs in a folder of its own."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with fake_gcloud(tmp_path / "cloud", monkeypatch) as cloud:
        yield cloud
