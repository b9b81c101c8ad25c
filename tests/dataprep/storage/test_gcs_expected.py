"""Archives in a bucket that are looked for at once, before they are opened."""

from dataprep.storage import open_storage
from dataprep.storage.gcs_expected import ExpectedGCS, expected


def test_expected_objects_are_asked_for_once(gcs, bucket_url):
    plain = open_storage(bucket_url)
    plain.create("a.tar", b"bytes")
    storage = expected(plain)
    assert isinstance(storage, ExpectedGCS)
    storage.expect(["a.tar", "none.tar"])
    before = gcs.stats()["requests"]
    assert (storage.stat("a.tar"), storage.stat("none.tar")) == (plain.stat("a.tar"), None)
    assert gcs.stats()["requests"] == before + 1  # that of `plain`
    plain.create("b.tar", b"more")
    assert storage.stat("b.tar") == plain.stat("b.tar")


def test_a_disk_is_asked_as_before(tmp_path):
    storage = open_storage(str(tmp_path))
    assert expected(storage) is storage
