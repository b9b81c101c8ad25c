"""Revisions: places of samples after removals and growth, and which lists of changes are refused."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset import revisions
from dataprep.dataset.index import publish_row_groups
from dataprep.dataset.records import Change
from dataprep.errors import FormatError
from dataprep.storage import open_storage
from tests.support.splits import manifest_of, split_of


@given(st.lists(st.booleans(), max_size=60))
def test_kept_samples_move_up_and_removed_ones_are_nowhere(gone):
    removed, samples = np.flatnonzero(gone), len(gone)
    after = revisions.moved(removed, np.arange(samples))
    names = [f"sample {number}" for number in range(samples)]
    left = [name for name, is_gone in zip(names, gone, strict=True) if not is_gone]
    assert [left[number] if number >= 0 else None for number in after] == [
        None if is_gone else name for name, is_gone in zip(names, gone, strict=True)
    ]
    assert revisions.kept_numbers(removed, samples).tolist() == [
        number for number, is_gone in enumerate(gone) if not is_gone
    ]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8), st.integers(0, 3))
def test_the_shards_before_a_change_follow_from_those_after_it(shards, added):
    kept, gone = [max(0, count - out) for count, out in shards], [min(pair) for pair in shards]
    removed = {number: np.arange(out) for number, out in enumerate(gone) if out}
    change = Change(2, "train", "removed", len(shards), sum(count for count, _ in shards))
    assert revisions.samples_before(change, removed, kept) == tuple(count for count, _ in shards)
    growth = Change(3, "train", "added", len(shards), sum(kept))
    assert revisions.samples_before(growth, {}, [*kept, *[5] * added]) == tuple(kept)


def _changed(root, removed, keys):
    """A split of which `removed` left in revision 2, and to which a shard came in revision 3."""
    storage = open_storage(str(root))
    table = revisions.removed_table(removed, keys, "2026-01-01T00:00:00Z")
    entry = publish_row_groups(storage, revisions.removed_file(2, "train"), iter([table]), revisions.removed_schema())
    changes = (Change(2, "train", "removed", 2, 3 + len(keys), entry), Change(3, "train", "added", 2, 3))
    return storage, manifest_of(split_of([3, 0, 4]), revision=3, changes=changes)


def test_a_sample_is_followed_through_the_revisions(tmp_path):
    storage, manifest = _changed(tmp_path, {0: np.array([1, 4]), 1: np.array([0, 1])}, ["a", "b", "c", "d"])
    assert not list(revisions.change_faults(manifest))
    assert revisions.changes_after(manifest, 2, "train") == manifest.changes[1:]
    growth, removal = revisions.steps_back(storage, manifest.splits[0], manifest.changes)
    assert growth[1:] == ({}, (3, 0))
    assert removal[2] == (5, 2)
    assert {shard: numbers.tolist() for shard, numbers in removal[1].items()} == {0: [1, 4], 1: [0, 1]}
    assert revisions.first_shards(manifest, "train", 3) == 2


def test_the_list_of_removed_samples_has_no_key(tmp_path):
    storage, manifest = _changed(tmp_path, {0: np.array([1])}, ["a-name-that-must-vanish"])
    data = storage.read(manifest.changes[0].removed["file"])
    assert b"must-vanish" not in data
    assert hashlib.sha256(b"a-name-that-must-vanish").digest() in data


@pytest.mark.parametrize(
    "removed", [{0: np.array([4, 1])}, {0: np.array([1, 1])}, {0: np.array([0, 9])}, {2: np.array([0, 1])}]
)
def test_a_list_with_other_places_is_refused(tmp_path, removed):
    storage, manifest = _changed(tmp_path, removed, ["a", "b"])
    with pytest.raises(FormatError, match="expected the places of 2 samples"):
        list(revisions.steps_back(storage, manifest.splits[0], manifest.changes))


def test_a_damaged_list_is_refused(tmp_path):
    storage, manifest = _changed(tmp_path, {0: np.array([1])}, ["a"])
    path = tmp_path / manifest.changes[0].removed["file"]
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(FormatError, match="not the file that the manifest lists"):
        list(revisions.steps_back(storage, manifest.splits[0], manifest.changes))
    path.unlink()
    with pytest.raises(FormatError, match="missing, but the manifest lists it"):
        list(revisions.steps_back(storage, manifest.splits[0], manifest.changes))


def test_no_chain_leads_over_a_revision_that_says_nothing(tmp_path):
    _, manifest = _changed(tmp_path, {0: np.array([1])}, ["a"])
    assert revisions.changes_after(manifest, 1, "train") == manifest.changes
    assert revisions.changes_after(manifest, 3, "train") == ()
    assert revisions.changes_after(manifest, 4, "train") is None
    assert revisions.changes_after(replace(manifest, changes=manifest.changes[1:]), 1, "train") is None


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ((Change(3, "train", "added", 2, 3), Change(2, "train", "added", 1, 3)), "the earliest first"),
        ((Change(3, "train", "added", 2, 3), Change(3, "train", "added", 2, 3)), "one for each revision"),
        ((Change(4, "train", "added", 2, 3),), "a revision from 2 to 3"),
        ((Change(3, "val", "added", 2, 3),), "a revision from 2 to 3 and a split"),
        ((Change(3, "train", "added", 3, 3),), "added, from 3 samples in 3 shards to 7 in 3"),
        ((Change(3, "train", "removed", 3, 9),), "removed: absent"),
        (
            (Change(3, "train", "removed", 3, 9, {"file": "index", "bytes": 1, "sha256": ""}),),
            "removed/3-train.parquet",
        ),
    ],
)
def test_changes_that_contradict_the_manifest_are_faults(changes, fault):
    manifest = manifest_of(split_of([3, 0, 4]), revision=3, changes=changes)
    assert any(fault in found for found in revisions.change_faults(manifest)), list(revisions.change_faults(manifest))
