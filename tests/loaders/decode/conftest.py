"""Pictures of rectangles with their annotations, built in every format of storage."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.marked import build_marked, write_marked


@pytest.fixture(scope="session")
def marked(tmp_path_factory) -> Callable[..., Path]:
    """The rectangles as a dataset of a format, with options of the build; only ever read."""
    folder = tmp_path_factory.mktemp("marked")
    write_marked(folder / "source")
    built: dict[str, Path] = {}

    def path_of(fmt: str = "webdataset", **options: object) -> Path:
        name = f"{fmt}{sorted(options)}"
        if name not in built:
            built[name] = build_marked(folder, fmt, **options)
        return built[name]

    return path_of
