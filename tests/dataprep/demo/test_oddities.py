"""Oddities: a build treats every file that is no plain JPEG as the demo's report says."""

from collections import Counter

import pytest

from dataprep.builder.images import ImagePolicy, check_image
from dataprep.dataset.records import Event
from dataprep.demo.oddities import ODDITIES
from tests.support.demos import images_of


def test_odd_files_are_treated_as_the_report_says(demo):
    report, folder = demo
    images = images_of(report, folder)
    assert Counter(odd.oddity for odd in report.odd) == Counter(list(ODDITIES))
    expected = {odd.key: (odd.oddity, odd.verdict, odd.reason) for odd in report.odd}
    for key, image in images.items():
        oddity, verdict, reason = expected.get(key, ("plain", "kept", ""))
        checked = check_image(key, image, ImagePolicy())
        event = checked if isinstance(checked, Event) else checked.event
        found = ("kept", "") if event is None else (event.kind, event.reason)
        assert found == (verdict, reason), f"{oddity}: {event}"


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_orientations_are_recorded(demo, orientation):
    report, folder = demo
    key = next(odd.key for odd in report.odd if odd.oddity == f"exif-{orientation}")
    checked = check_image(key, images_of(report, folder)[key], ImagePolicy())
    assert checked.orientation == orientation
