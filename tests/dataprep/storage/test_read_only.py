"""A place of originals refuses everything that writes."""

from __future__ import annotations

import inspect

import pytest

from dataprep.errors import UsageError
from dataprep.storage.read_only import ReadOnlyStorage

WRITES = [name for name, _ in inspect.getmembers(ReadOnlyStorage, inspect.isfunction) if not name.startswith("_")]


@pytest.mark.parametrize("name", WRITES)
def test_every_call_that_writes_is_refused(name):
    storage = ReadOnlyStorage()
    storage.url = "hf://datasets/some/dogs"
    call = getattr(storage, name)
    with pytest.raises(UsageError, match="hf://datasets/some/dogs: originals are only read from there"):
        call(*[None] * len(inspect.signature(call).parameters))


def test_all_of_them_are_tried():
    assert len(WRITES) == 16
