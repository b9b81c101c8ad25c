"""Which changes are tried, and what is left of them."""

from dataclasses import replace

import pytest

from loaders.findings import Fix
from loaders.trying import MOST_TRIED, _try_leading


def fix_of(name, rate, needs="restart"):
    return Fix(
        name=name,
        settings={},
        needs=needs,
        images_per_s=rate,
        predicted_images_per_s=rate,
        is_tried=False,
        gain=rate / 100,
        limit="prepare",
        advice="",
    )


def tried_with(rates, fixes):
    """The names and rates that are left, and the names that were tried."""
    tried = []

    def rate_of(fix):
        tried.append(fix.name)
        return rates.get(fix.name)

    left = _try_leading(fixes, 100.0, rate_of)
    return [(fix.name, fix.images_per_s, fix.is_tried) for fix in left], tried


FIXES = [fix_of("batch", 140.0), fix_of("workers", 200.0), fix_of("prefetch", 110.0)]


def test_one_that_keeps_its_promise_far_before_all_others_ends_it():
    left, tried = tried_with({"workers": 190.0}, FIXES)
    assert tried == ["workers"]
    assert left == [("workers", 190.0, True), ("batch", 140.0, False), ("prefetch", 110.0, False)]


def test_what_comes_near_one_that_keeps_its_promise_is_tried_as_well():
    fixes = [fix_of("workers", 200.0), fix_of("resize", 160.0, "rebuild"), fix_of("batch", 140.0)]
    left, tried = tried_with({"workers": 195.0, "resize": 230.0}, fixes)
    assert tried == ["workers", "resize"]
    assert left == [("resize", 230.0, True), ("workers", 195.0, True), ("batch", 140.0, False)]


def test_one_that_does_not_makes_room_for_the_next():
    left, tried = tried_with({"workers": 140.0, "batch": 160.0}, FIXES)
    assert tried == ["workers", "batch"]
    assert left == [("batch", 160.0, True), ("workers", 140.0, True), ("prefetch", 110.0, False)]


def test_what_brings_nothing_goes():
    assert tried_with({"workers": 104.9, "batch": 0.0, "prefetch": 99.0}, FIXES) == (
        [],
        ["workers", "batch", "prefetch"],
    )


def test_what_cannot_be_tried_keeps_its_prediction():
    fixes = [*FIXES, fix_of("location", 300.0, "copy")]
    left, tried = tried_with({}, fixes)
    assert tried == ["location"]
    assert left[0] == ("location", 300.0, False)


def test_what_was_tried_before_is_not_again():
    assert tried_with({}, [replace(FIXES[1], is_tried=True), FIXES[0]])[1] == []


@pytest.mark.parametrize("count", [MOST_TRIED, MOST_TRIED + 2])
def test_no_more_than_a_few(count):
    fixes = [fix_of(f"change-{number}", 200.0 - number) for number in range(count)]
    left, tried = tried_with({fix.name: 50.0 for fix in fixes}, fixes)
    assert len(tried) == MOST_TRIED
    assert len(left) == count - MOST_TRIED


def test_settings_of_one_name_are_tried_one_after_the_other():
    two = [replace(fix_of("workers", 200.0), settings={"threads": 2}), replace(fix_of("workers", 180.0), advice="b")]
    left, tried = tried_with({"workers": 110.0}, two)
    assert tried == ["workers", "workers"]
    assert [fix[1] for fix in left] == [110.0]


def test_what_comes_near_one_that_cannot_be_tried_is_tried_in_its_place():
    fixes = [fix_of("resize", 300.0, "rebuild"), fix_of("cache", 280.0), fix_of("workers", 200.0)]
    left, tried = tried_with({"cache": 275.0, "workers": 290.0}, fixes)
    assert tried == ["resize", "cache"]
    assert [fix[0] for fix in left] == ["cache", "resize", "workers"], "a rate that was seen, and less effort"


def test_one_that_was_tried_does_not_come_before_a_prediction_of_much_more():
    fixes = [fix_of("resize", 300.0, "rebuild"), fix_of("cache", 280.0)]
    left, _ = tried_with({"cache": 250.0}, fixes)
    assert [fix[0] for fix in left] == ["resize", "cache"]
