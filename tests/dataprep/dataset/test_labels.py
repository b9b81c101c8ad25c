"""Labels and the names of their classes."""

import pytest

from dataprep.dataset.labels import class_name_of
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
