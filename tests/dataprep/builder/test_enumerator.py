"""Which originals a build lists, and which lists of an earlier run it takes."""

from dataclasses import replace

import pytest

from dataprep.builder.growth import ARCHIVES
from dataprep.errors import UsageError
from dataprep.storage import open_storage
from tests.support.build_here import Quiet
from tests.support.own_data import Notes, class_folders, planned
from tests.support.own_data import request as own_request


def test_a_rerun_of_own_data_lists_nothing_again_unless_the_source_has_changed_or_it_starts_over(tmp_path):
    source, output = class_folders(tmp_path / "pets"), tmp_path / "out"

    def plan_and_notes(**more):
        notes = Notes()
        planned = ARCHIVES.plan(replace(own_request(source, output), **more), notes, keep=True)
        planned.kept()
        return planned.plan, notes.lines

    first, listed = plan_and_notes()
    assert any("one per folder" in line for line in listed)
    assert plan_and_notes() == (first, [])
    (source / "train/cats/cat 0.jpeg").unlink()
    second, listed_again = plan_and_notes()
    assert listed_again == listed
    assert sum(second.splits[0].shard_samples) == sum(first.splits[0].shard_samples) - 1
    assert plan_and_notes() == (second, [])
    assert plan_and_notes(overwrite=True) == (second, listed)
    assert plan_and_notes() == (second, [])


def test_a_rerun_in_a_bucket_lists_nothing_again_that_was_listed_for_an_empty_output(tmp_path, bucket_url):
    source = class_folders(tmp_path / "pets")
    first = ARCHIVES.plan(own_request(source, bucket_url), Quiet(), keep=True, is_empty=True)
    first.kept()
    assert first.plan.options.splits == ("train", "val")
    kept = [info.name.removeprefix("_build/").split("-") for info in open_storage(bucket_url).list("_build/")]
    assert [name[0] for name in kept] == ["listing", *["source"] * 5]
    names = sorted(name[1] for name in kept[1:])
    assert names == ["splits", "train", "train", "val", "val"]
    notes = Notes()
    assert ARCHIVES.plan(own_request(source, bucket_url), notes, keep=True).plan == first.plan
    assert notes.lines == []


def test_splits_of_own_data_are_those_that_are_there_or_those_asked_for(tmp_path):
    source = class_folders(tmp_path / "pets")
    assert planned(source).options.splits == ("train", "val")
    assert planned(source, splits=("val",)).options.splits == ("val",)
    with pytest.raises(UsageError, match="`split` test: pets has train and val"):
        planned(source, splits=("test",))
