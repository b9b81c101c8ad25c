"""No change is left out that may be the best one, for what is known of the errors of predictions."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from loaders.diagnosis.findings import Fix
from loaders.diagnosis.prediction_errors import (
    LARGER,
    USUAL,
    error_range,
    highest_rate,
    lowest_rate,
    may_gain,
    next_to_try,
)

LIMITS = ("fetch", "prepare", "transfer", "compute", "cores")
NAMES = ("workers", "prefetch", "cache", "resize", "batch", "location")
OBSERVED = 100.0
limits = st.sampled_from(LIMITS)


def fix_of(name, rate, *, is_tried=False):
    return Fix(
        name=name,
        settings={},
        needs="restart",
        images_per_s=rate,
        predicted_images_per_s=rate,
        is_tried=is_tried,
        gain=rate / OBSERVED,
        limit="compute",
        advice="",
    )


changes = st.lists(
    st.builds(fix_of, st.sampled_from(NAMES), st.floats(1, 1e4), is_tried=st.booleans()),
    unique_by=lambda fix: fix.name,
)


def test_a_cache_behind_a_narrow_link_is_tried_though_another_change_is_predicted_twice_as_fast():
    fixes = [fix_of("resize", 1100.0, is_tried=True), fix_of("cache", 454.0)]

    assert next_to_try(fixes, "fetch") is fixes[1]
    assert next_to_try(fixes, "prepare") is None, "elsewhere no such error is known"


def test_a_cache_behind_a_narrow_link_is_considered_without_a_predicted_gain():
    assert may_gain(fix_of("cache", 60.0), "fetch", 1.05)
    assert not may_gain(fix_of("cache", 60.0), "prepare", 1.05)
    assert not may_gain(fix_of("prefetch", 104.0), "fetch", 1.05)


def test_every_range_holds_the_prediction_itself():
    for known in (USUAL, *LARGER.values()):
        assert 0 < known.least <= 1 <= known.most


@given(changes, limits, st.sets(st.sampled_from(NAMES)))
def test_a_change_is_left_out_only_if_its_upper_bound_is_below_the_lower_bound_of_another(fixes, limit, untriable):
    leading = next_to_try(fixes, limit, untriable)

    certain = max((lowest_rate(fix, limit) for fix in fixes), default=0.0)
    candidates = [fix for fix in fixes if not fix.is_tried and fix.name not in untriable]
    if leading is None:
        assert all(highest_rate(fix, limit) < certain for fix in candidates)
    else:
        assert leading in candidates
        assert highest_rate(leading, limit) == max(highest_rate(fix, limit) for fix in candidates) >= certain


@given(changes, limits, st.data())
def test_the_best_change_is_found_if_all_errors_are_within_the_known_ranges(fixes, limit, data):
    """Rates are drawn within the known ranges; then whatever is not tried cannot be the best."""
    untried = [replace(fix, is_tried=False) for fix in fixes]
    rates = {}
    for fix in untried:
        known = error_range(fix.name, limit)
        rates[fix.name] = fix.images_per_s * data.draw(st.floats(known.least, known.most), label=fix.name)

    found = untried
    while (leading := next_to_try(found, limit)) is not None:
        tried = replace(leading, images_per_s=rates[leading.name], is_tried=True)
        found = [tried if fix is leading else fix for fix in found]

    if rates:
        best_tried = max((fix.images_per_s for fix in found if fix.is_tried), default=0.0)
        assert best_tried == max(rates.values())


@given(changes, limits)
def test_bounds_of_a_tried_change_are_its_measured_rate(fixes, limit):
    for fix in fixes:
        if fix.is_tried:
            assert lowest_rate(fix, limit) == highest_rate(fix, limit) == fix.images_per_s
        else:
            assert lowest_rate(fix, limit) <= fix.images_per_s <= highest_rate(fix, limit)
