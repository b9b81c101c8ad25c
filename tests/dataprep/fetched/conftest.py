"""A web whose pictures partly fail, and what exists after a retry was begun."""

from pathlib import Path

import pytest

from tests.support.fetched import FAULTS, begin_retry, build_table
from tests.support.picture_web import picture_web


@pytest.fixture(scope="session")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of which a retry was begun, and no row tried; only ever read."""
    folder = tmp_path_factory.mktemp("begun")
    with picture_web() as server:
        server.faults = dict(FAULTS)
        build_table(server, folder, str(folder / "out"), "webdataset")
    begin_retry(str(folder / "out"))
    return folder / "out"
