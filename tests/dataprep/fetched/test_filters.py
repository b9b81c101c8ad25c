"""Filters: what a row's own columns keep out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.errors import UsageError
from dataprep.fetched.filters import RowFilter, filter_reason, refuse_absent_columns, size_reason

ROW = {
    "url": "http://h/a.jpg",
    "width": 640,
    "height": 480,
    "similarity": 0.31,
    "punsafe": 0.1,
    "pwatermark": 0.2,
    "nsfw": "UNLIKELY",
    "language": "en",
}


@pytest.mark.parametrize(
    ("limits", "changes", "reason"),
    [
        ({}, {}, ""),
        ({}, {"url": None}, "no url"),
        ({}, {"url": "  "}, "no url"),
        ({"min_image_size": 480}, {}, ""),
        ({"min_image_size": 481}, {}, "image too small"),
        ({"min_image_size": 481}, {"width": None}, ""),
        ({"min_image_size": 481}, {"height": 0}, ""),
        ({"max_image_area": 640 * 480}, {}, ""),
        ({"max_image_area": 640 * 480 - 1}, {}, "image area too large"),
        ({"max_aspect_ratio": 640 / 480}, {}, ""),
        ({"max_aspect_ratio": 1.3}, {}, "aspect ratio too large"),
        ({"min_similarity": 0.31}, {}, ""),
        ({"min_similarity": 0.32}, {}, "similarity"),
        ({"min_similarity": 0.3}, {"similarity": None}, "similarity"),
        ({"max_punsafe": 0.1}, {}, ""),
        ({"max_punsafe": 0.09}, {}, "punsafe"),
        ({"max_punsafe": 0.5}, {"punsafe": None}, "punsafe"),
        ({"max_pwatermark": 0.19}, {}, "pwatermark"),
        ({"nsfw": ("unlikely",)}, {}, ""),
        ({"nsfw": ("UNLIKELY", "UNSURE")}, {"nsfw": "NSFW"}, "nsfw"),
        ({"nsfw": ("UNLIKELY",)}, {"nsfw": None}, "nsfw"),
        ({"languages": ("de", "EN")}, {}, ""),
        ({"languages": ("de",)}, {}, "language"),
    ],
)
def test_each_filter_gives_its_reason(limits, changes, reason):
    assert filter_reason(ROW | changes, RowFilter(**limits)) == reason


def test_a_limit_on_an_absent_column_is_refused():
    refuse_absent_columns(RowFilter(min_image_size=5), {"url": "URL"})
    refuse_absent_columns(RowFilter(max_punsafe=0.0), {"url": "URL", "punsafe": "punsafe"})
    with pytest.raises(UsageError, match="--max-punsafe needs a column punsafe, the table has none"):
        refuse_absent_columns(RowFilter(max_punsafe=0.0), {"url": "URL"})
    with pytest.raises(UsageError, match="--nsfw needs a column nsfw"):
        refuse_absent_columns(RowFilter(nsfw=("UNLIKELY",)), {"url": "URL"})


@given(width=st.integers(1, 10_000), height=st.integers(1, 10_000), least=st.integers(0, 10_000))
@settings(deadline=None, derandomize=True)
def test_a_size_is_judged_whichever_side_is_longer(width, height, least):
    limits = RowFilter(min_image_size=least, max_aspect_ratio=2)
    assert size_reason(width, height, limits) == size_reason(height, width, limits)
    kept = min(width, height) >= least and max(width, height) <= 2 * min(width, height)
    assert (size_reason(width, height, limits) == "") == kept


@pytest.mark.parametrize("limits", [{"min_image_size": -1}, {"max_image_area": 0}, {"max_aspect_ratio": 0.5}])
def test_impossible_limits_are_refused(limits):
    with pytest.raises(UsageError, match="must be"):
        RowFilter(**limits)
