"""The ranking of changes."""

from dataclasses import replace

from loaders.diagnosis.fixes import TIE, TRUSTED, ranked
from tests.support.findings import diagnosis


def fix(name, images_per_s, needs="restart", *, is_tried=False):
    return replace(diagnosis().fixes[0], name=name, images_per_s=images_per_s, needs=needs, is_tried=is_tried)


def names(*fixes):
    return [each.name for each in ranked(fixes)]


def test_changes_are_ranked_by_rate_and_the_best_of_each_name_stays():
    found = ranked([fix("workers", 100), fix("cache", 300), fix("workers", 200)])
    assert [(each.name, each.images_per_s) for each in found] == [("cache", 300), ("workers", 200)]
    assert ranked([]) == []


def test_among_the_best_the_least_effort_comes_first():
    assert names(fix("resize", 1000, "rebuild"), fix("workers", 1000 * TIE + 1)) == ["workers", "resize"]
    assert names(fix("resize", 1000, "rebuild"), fix("workers", 1000 * TIE - 1)) == ["resize", "workers"]


def test_a_tried_change_is_ranked_before_a_slightly_higher_prediction():
    tried = fix("workers", 1000 * TRUSTED + 1, is_tried=True)
    assert names(fix("resize", 1000, "rebuild"), tried) == ["workers", "resize"]
