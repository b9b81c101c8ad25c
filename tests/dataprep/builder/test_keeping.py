"""Lists of originals are stored for a run that goes on, and never beside a finished dataset."""

from dataprep.builder.enumeration import Keeping, load_note, load_splits
from dataprep.dataset.manifest import MANIFEST

NAME, LISTING = "_build/splits-0123.json", "_build/listing-0123.json"
FOUND = "ab" * 32


def test_what_was_listed_is_there_once_it_is_waited_for(storage):
    keeping = Keeping(storage, is_empty=True)
    keeping.note(NAME, b'["train", "val"]')
    keeping.note(LISTING, FOUND.encode())
    keeping.wait()
    assert load_splits(storage, NAME) == ("train", "val")
    assert load_note(storage, LISTING) == FOUND.encode()


def test_nothing_is_allowed_beside_a_finished_dataset(storage):
    keeping = Keeping(storage)
    assert keeping.is_allowed()
    storage.create(MANIFEST, b"{}")
    assert not keeping.is_allowed()


def test_without_an_output_nothing_is_stored():
    keeping = Keeping(None)
    keeping.note(NAME, b'["train"]')
    keeping.note(LISTING, FOUND.encode())
    keeping.wait()
    assert not keeping.is_allowed() and not keeping.is_under_way()
