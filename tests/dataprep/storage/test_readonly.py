"""Places that are only read: every call that writes is refused."""

import inspect

import pytest

from dataprep.errors import UsageError
from dataprep.storage import open_storage
from dataprep.storage.readonly import ReadOnlyStorage

READS = {"list", "open", "read", "read_range", "stat", "stats", "url_of"}
WRITES = [
    name
    for name, _ in inspect.getmembers(ReadOnlyStorage, inspect.isfunction)
    if name not in READS and not name.startswith("_")
]


@pytest.mark.parametrize("name", WRITES)
def test_every_call_that_writes_is_refused(name):
    call = getattr(open_storage("hf://datasets/some/dogs"), name)
    with pytest.raises(UsageError, match="hf://datasets/some/dogs@main: dataprep only reads from there; write"):
        call(*[None] * len(inspect.signature(call).parameters))


def test_all_of_them_are_tried():
    assert len(WRITES) == 15
