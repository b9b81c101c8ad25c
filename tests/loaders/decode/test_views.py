"""Groups of views are checked, and lie one after the other in a batch's memory."""

import pytest

from dataprep.errors import UsageError
from loaders import Views
from loaders.decode.views import checked_groups, spans


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 0}, "views: count must be 1 to 64, got 0"),
        ({"count": True}, "views: count must be a whole number, got True"),
        ({"size": 2**14 + 1}, "views: size must be 1 to 16,384, got 16,385"),
        ({"min_area": 0}, "views: min_area and max_area must be a range within 0 to 1, got 0, 1.0"),
        ({"min_area": 0.5, "max_area": 0.4}, "min_area and max_area must be a range within 0 to 1, got 0.5, 0.4"),
        ({"max_area": "1"}, "min_area and max_area must be a range within 0 to 1, got 0.2, '1'"),
        ({"transform": 1}, "views: transform must be a function, got 1"),
    ],
)
def test_a_group_of_views_is_checked(values, message):
    with pytest.raises(UsageError, match=message):
        Views(**values)


def test_a_group_may_stand_alone_and_a_list_becomes_a_tuple():
    assert checked_groups(Views()) == checked_groups([Views()]) == (Views(),)
    assert checked_groups([Views(count=60), Views(count=4)])[1].scale == (0.2, 1.0)
    for wrong in ((), 3, "views", [Views(), None]):
        with pytest.raises(UsageError, match=r"views must be loaders.Views or a tuple of them, got "):
            checked_groups(wrong)
    with pytest.raises(UsageError, match="views: an image may have 64 views, got 65; take fewer"):
        checked_groups((Views(count=60), Views(count=5)))


def test_groups_lie_one_after_the_other():
    found = spans((Views(count=2, size=4), Views(count=3, size=2)), rows=5)
    assert [each.shape for each in found] == [(5, 2, 4, 4, 3), (5, 3, 2, 2, 3)]
    assert [(each.start, each.stop) for each in found] == [(0, 480), (480, 660)]
    assert spans((), rows=5) == []
