"""What tests of benchmarks share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """An empty folder on a block device, which a benchmark slows down; other tests' folders are in memory."""
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        yield Path(folder)
