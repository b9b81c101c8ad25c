"""Nothing of the current folder is imported, by no command and no child: it may be a stranger's dataset."""

from __future__ import annotations

import pytest

from tests.support.builds import build_warm
from tests.support.planted_modules import CASES, planted_copy, planted_that_ran, run_inside


@pytest.fixture(scope="module")
def downloaded(originals, tmp_path_factory):
    work = tmp_path_factory.mktemp("planted")
    source = originals["imagenet"]
    build_warm("imagenet", source, work / "shards", "webdataset")
    return planted_copy(work / "shards", source, work)


@pytest.mark.parametrize("name", ["verify", "python -m", "loader"])
def test_command_inside_a_folder_of_planted_modules_runs_none(downloaded, name):
    run = run_inside(downloaded, CASES[name])
    assert planted_that_ran(downloaded) == []
    assert run.returncode == 0, run.stderr[-2000:]
