"""Which changes are tried, and what is left of them."""

from dataclasses import replace

import pytest

from loaders.diagnosis.findings import Fix
from loaders.diagnosis.trials import MOST_TRIED, _try_leading


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


def tried_with(rates, fixes, limit="prepare", again=lambda: 100.0):
    """The names and rates that are left, and the names that were tried."""
    tried = []

    def rate_of(fix):
        tried.append(fix.name)
        return rates.get(fix.name)

    left = _try_leading(fixes, 100.0, limit, rate_of, again)
    return [(fix.name, fix.images_per_s, fix.is_tried) for fix in left], tried


FIXES = [fix_of("batch", 140.0), fix_of("workers", 200.0), fix_of("prefetch", 110.0)]


def test_trials_end_when_a_change_reaches_its_predicted_rate_far_before_the_others():
    left, tried = tried_with({"workers": 190.0}, FIXES)
    assert tried == ["workers"]
    assert left == [("workers", 190.0, True), ("batch", 140.0, False), ("prefetch", 110.0, False)]


def test_a_change_predicted_near_the_best_is_tried_as_well():
    fixes = [fix_of("workers", 200.0), fix_of("resize", 160.0, "rebuild"), fix_of("batch", 140.0)]
    left, tried = tried_with({"workers": 195.0, "resize": 230.0}, fixes)
    assert tried == ["workers", "resize"]
    assert left == [("resize", 230.0, True), ("workers", 195.0, True), ("batch", 140.0, False)]


def test_a_change_that_misses_its_prediction_is_followed_by_the_next():
    left, tried = tried_with({"workers": 140.0, "batch": 160.0}, FIXES)
    assert tried == ["workers", "batch"]
    assert left == [("batch", 160.0, True), ("workers", 140.0, True), ("prefetch", 110.0, False)]


def test_a_change_that_gains_nothing_is_left_out():
    assert tried_with({"workers": 104.9, "batch": 0.0, "prefetch": 99.0}, FIXES) == (
        [],
        ["workers", "batch", "prefetch"],
    )


def test_a_small_gain_over_a_run_that_was_slow_by_chance_is_none():
    left, _ = tried_with({"workers": 112.0, "batch": 118.0}, FIXES, again=lambda: 108.0)
    assert left == [("batch", 118.0, True), ("prefetch", 110.0, False)]


def test_a_run_is_watched_once_more_only_where_the_best_gain_is_small():
    def again():
        raise AssertionError("watched again")

    assert tried_with({"workers": 190.0}, FIXES, again=again)[0][0] == ("workers", 190.0, True)
    assert tried_with({"location": None}, [fix_of("location", 115.0, "copy")], again=again)[0]
    assert tried_with({"workers": 50.0}, FIXES[1:2], again=again)[0] == []


def test_a_change_that_cannot_be_tried_keeps_its_prediction():
    fixes = [*FIXES, fix_of("location", 300.0, "copy")]
    left, tried = tried_with({}, fixes)
    assert tried == ["location"]
    assert left[0] == ("location", 300.0, False)


def test_a_change_is_not_tried_twice():
    assert tried_with({}, [replace(FIXES[1], is_tried=True), FIXES[0]])[1] == []


@pytest.mark.parametrize("count", [MOST_TRIED, MOST_TRIED + 2])
def test_the_number_of_trials_is_bounded(count):
    fixes = [fix_of(f"change-{number}", 200.0 - number) for number in range(count)]
    left, tried = tried_with({fix.name: 50.0 for fix in fixes}, fixes)
    assert len(tried) == MOST_TRIED
    assert len(left) == count - MOST_TRIED


def test_settings_of_one_change_are_tried_one_after_the_other():
    two = [replace(fix_of("workers", 200.0), settings={"threads": 2}), replace(fix_of("workers", 180.0), advice="b")]
    left, tried = tried_with({"workers": 110.0}, two)
    assert tried == ["workers", "workers"]
    assert [fix[1] for fix in left] == [110.0]


def test_a_change_predicted_near_an_untriable_one_is_tried():
    fixes = [fix_of("resize", 300.0, "rebuild"), fix_of("cache", 280.0), fix_of("workers", 200.0)]
    left, tried = tried_with({"cache": 275.0, "workers": 290.0}, fixes)
    assert tried == ["resize", "cache"]
    assert [fix[0] for fix in left] == ["cache", "resize", "workers"], "a rate that was seen, and less effort"


def test_a_tried_change_is_ranked_after_a_much_higher_prediction():
    fixes = [fix_of("resize", 300.0, "rebuild"), fix_of("cache", 280.0)]
    left, _ = tried_with({"cache": 250.0}, fixes)
    assert [fix[0] for fix in left] == ["resize", "cache"]


def test_a_cache_behind_a_narrow_link_that_is_predicted_too_low_is_tried_and_found_the_best():
    fixes = [fix_of("resize", 900.0, "rebuild"), fix_of("cache", 454.0)]
    left, tried = tried_with({"cache": 1232.0, "resize": 900.0}, fixes, "fetch")
    assert tried == ["cache"], "more than smaller images may bring"
    assert left[0] == ("cache", 1232.0, True)


def test_a_change_without_a_predicted_or_measured_gain_is_not_named():
    fixes = [fix_of("cache", 90.0)]
    assert tried_with({"cache": 101.0}, fixes, "fetch") == ([], ["cache"])
    assert tried_with({}, fixes, "fetch") == ([], ["cache"])
