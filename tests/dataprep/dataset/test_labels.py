"""Labels and the names of their classes."""

import pytest

from dataprep.dataset.labels import class_name_of, renumbering
from dataprep.dataset.records import NO_LABEL


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
