"""A writer to a bucket that loses the right to write: what it sends late does not come to stand."""

import time
from threading import Event

import pytest

from dataprep.errors import ConflictError
from dataprep.storage import gcs_staged, open_storage
from dataprep.storage.checksums import crc32c_of, crc32c_text

ROOT = "_build/plan/id"
DATA = b"a shard" * 1000
DISCARDED_S = 60
"""Deadline for the removal of a copied object, for which its writer does not wait."""


class Taken(ConflictError):
    """The place is another's."""


@pytest.fixture
def place(bucket_url):
    return open_storage(bucket_url)


def publish(staged, name):
    spool = staged.spool_path(name)
    with staged.sending(spool, name) as sent:
        spool.write_bytes(DATA)
        sent(len(DATA))
    staged.publish(spool, name, crc32c_text(crc32c_of(DATA)))


def create(staged, name):
    staged.create(name, DATA)


def create_last(staged, name):
    staged.create_last(name, DATA, lambda: None)


PUTS = (publish, create, create_last)


@pytest.mark.parametrize("put", PUTS)
def test_a_staged_object_is_published_and_nothing_else_is_left(put, place):
    put(place.staged(ROOT, lambda: None), "train/a.tar")
    _wait_for_removal(place)
    assert [(info.name, info.num_bytes) for info in place.list()] == [("train/a.tar", len(DATA))]


@pytest.mark.parametrize("put", PUTS)
def test_a_writer_does_not_wait_for_the_removal_of_what_was_copied(put, place):
    released = Event()
    for _ in range(gcs_staged.DISCARDS_IN_FLIGHT):
        gcs_staged._discarding.submit(released.wait)
    try:
        put(place.staged(ROOT, lambda: None), "train/a.tar")
        assert place.read("train/a.tar") == DATA
        assert [info.num_bytes for info in place.list(f"{ROOT}/")] == [len(DATA)]
    finally:
        released.set()
    _wait_for_removal(place)
    assert list(place.list(f"{ROOT}/")) == []


def _wait_for_removal(place):
    until_s = time.monotonic() + DISCARDED_S
    while list(place.list(f"{ROOT}/")) and time.monotonic() < until_s:
        time.sleep(0.01)


@pytest.mark.parametrize("put", PUTS)
def test_an_upload_that_ends_after_the_place_was_taken_leaves_nothing(put, place):
    def still_ours():
        raise Taken("taken")

    with pytest.raises(Taken):
        put(place.staged(ROOT, still_ours), "train/a.tar")
    assert list(place.list()) == []


@pytest.mark.parametrize("put", PUTS)
def test_a_place_that_is_taken_after_the_look_gets_no_copy(put, place):
    """Whoever takes it removes what lies in the folder, so that the copy has no source."""
    looks = []

    def still_ours():
        looks.append(len(list(place.list(f"{ROOT}/"))))
        if len(looks) > 1:
            raise Taken("taken")
        place.delete_tree(ROOT)

    with pytest.raises(Taken):
        put(place.staged(ROOT, still_ours), "train/a.tar")
    assert looks == [1, 0]
    assert list(place.list()) == []


@pytest.mark.parametrize("put", PUTS)
def test_an_existing_object_is_not_replaced(put, place):
    place.create("train/a.tar", b"another")
    with pytest.raises(ConflictError, match=r"another object exists there already, 7 bytes .* move it away"):
        put(place.staged(ROOT, lambda: None), "train/a.tar")
    assert place.read("train/a.tar") == b"another"
    assert list(place.list(f"{ROOT}/")) == []


def test_the_last_object_is_uploaded_while_others_are_put_and_copied_when_they_are_there(place):
    """A place that is taken while they are put gets no copy."""
    looked, seen = Event(), []

    def others():
        assert looked.wait(DISCARDED_S)
        seen.append([info.name for info in place.list() if not info.name.startswith(ROOT)])
        place.delete_tree(ROOT)

    taken = iter((looked.set, _raise_taken))
    with pytest.raises(Taken):
        place.staged(ROOT, lambda: next(taken)()).create_last("dataset.json", DATA, others)
    assert seen == [[]]
    assert list(place.list()) == []


def _raise_taken():
    raise Taken("taken")
