"""Places that are only read: every call that writes is refused, and what was expected, or listed, is asked for once."""

import inspect
import pickle

import pytest

from dataprep.errors import UsageError
from dataprep.storage import expected, open_storage
from dataprep.storage.readonly import Expected, ReadOnlyStorage
from dataprep.storage.remote import S3Storage
from tests.support.s3_server import s3_server

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


def test_expected_objects_are_asked_for_once(gcs, bucket_url):
    plain = open_storage(bucket_url)
    plain.create("a.tar", b"bytes")
    storage = expected(plain)
    assert isinstance(storage, Expected)
    storage.expect(["a.tar", "none.tar"])
    before = gcs.stats()["requests"]
    assert (storage.stat("a.tar"), storage.stat("none.tar")) == (plain.stat("a.tar"), None)
    assert gcs.stats()["requests"] == before + 1  # that of `plain`
    plain.create("b.tar", b"more")
    assert storage.stat("b.tar") == plain.stat("b.tar")


def test_a_disk_is_asked_as_before(tmp_path):
    storage = open_storage(str(tmp_path))
    assert expected(storage) is storage


def test_many_objects_of_s3_are_listed_once_and_remembered(monkeypatch):
    names = [f"{number:03}.jpg" for number in range(100)]
    with s3_server() as server:
        server.put("many", dict.fromkeys(names, b"x"))
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        plain = open_storage("s3://many")
        storage = expected(plain)
        before = len(server.requests)
        found = storage.stats([*names, "none"])
        assert [info and info.name for info in found] == [*names, None]
        assert len(server.requests) == before + 1
        assert storage.stats(names[:70]) == storage.stats(names)[:70] == found[:70]
        assert len(server.requests) == before + 1
        assert [info.version for info in found[:3]] == [plain.stat(name).version for name in names[:3]]
        assert storage.read_range(names[0], 0, 1, found[0].version) == b"x"
        assert type(pickle.loads(pickle.dumps(storage))) is S3Storage
