"""A process that says it has another Pillow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

import pytest


@contextmanager
def made_with_pillow(version: str) -> Iterator[None]:
    """Let this process say that it has another Pillow."""
    real = metadata.version
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "version", lambda package: version if package == "pillow" else real(package))
        yield
