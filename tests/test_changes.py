"""Builds whose outputs and originals others change meanwhile: a sample here, 500 in `make soak SHOW=changes`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.changed_builds import schedule


@pytest.mark.parametrize("number", range(4))
def test_exit_0_means_complete_and_right_whatever_others_change(tmp_path: Path, bucket_url: str, number: int) -> None:
    schedule(number, tmp_path, bucket_url)
