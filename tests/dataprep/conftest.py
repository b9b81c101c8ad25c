"""Finished datasets of all formats, built when a test first asks for one, and copies of them that may be damaged."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.faults import Damaged, linked_copy
from tests.support.finished import finished_dataset


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
