"""Builds and retries of a table of URLs, killed anywhere: nothing is fetched twice, and what stands is whole."""

from __future__ import annotations

import shutil

import pytest

from tests.support.builds import dataprep, digests
from tests.support.crashes import stop_everywhere
from tests.support.crashes_laion import (
    stop_retries_of,
)
from tests.support.picture_web import laion_arguments, picture_web


@pytest.fixture
def web():
    with picture_web() as server:
        yield server


def test_a_build_killed_at_a_commit_boundary_is_finished_by_a_rerun(web, tmp_path):
    """Some boundaries of 118; the soak has all."""
    web.faults = {3: 404}
    arguments = laion_arguments(web.write_table(tmp_path / "laion.parquet", 25), tmp_path / "out", "tfrecord")
    assert dataprep(*arguments).returncode == 0
    expected = digests(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    assert stop_everywhere(arguments, tmp_path / "out", expected, every=100) >= 4


def test_a_retry_killed_at_a_commit_boundary_is_finished_by_a_rerun(tmp_path):
    """Some boundaries of 50; a reader finds a whole dataset each time."""
    assert stop_retries_of("tfrecord", tmp_path, every=40) >= 2
