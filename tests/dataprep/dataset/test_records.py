"""The values that travel between processes are frozen, and arrive as they were sent."""

import pickle

import pytest

from dataprep.dataset.records import NO_LABEL, Event, SampleRef, ShardPlan, ShardReceipt, class_name_of, renumbering


def test_values_arrive_in_another_process_as_they_were_sent():
    ref = SampleRef("train/x", "train.tar", 512, 100)
    plan = ShardPlan(index=3, split="train", split_index=1, file="train/1.tar", refs=(ref, ref))
    receipt = ShardReceipt(3, "train", 1, "train/x.tar", 2, 200, "ab", "AAAAAA==", (Event("k", "repaired", "png", ""),))
    for value in (plan, receipt):
        again = pickle.loads(pickle.dumps(value))
        assert again == value
        assert hash(again) == hash(value)
    assert ref.label == NO_LABEL


@pytest.mark.parametrize(
    ("label", "classes", "name"),
    [
        (0, ("ant", "bee"), "ant"),
        (1, ("ant", "bee"), "bee"),
        (2, ("ant", "bee"), None),
        (NO_LABEL, ("ant", "bee"), None),
        (NO_LABEL, (), ""),
        (0, (), None),
    ],
)
def test_label_is_shown_by_the_name_of_its_class(label, classes, name):
    assert class_name_of(label, classes) == name


@pytest.mark.parametrize("classes", [(), ("ant", "1"), ("0", "1"), ("00", "01"), ("²",)])
def test_names_that_are_the_labels_or_no_integers_are_not_renumbered(classes):
    assert renumbering(classes) == ""


def test_names_that_are_other_integers_than_the_labels_are_shown_with_them():
    assert renumbering(("1", "2")) == (
        "labels are renumbered, 0 to 1 in the order of the names of the classes: 1 is 0, 2 is 1; dataset.json lists "
        "the names in classes, by label"
    )
    assert ": 1 is 0, 2 is 1, 3 is 2, ...; " in renumbering(("1", "2", "3", "4"))
    assert len(renumbering(("9" * 1000,))) < 200
