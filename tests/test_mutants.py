"""Planted mistakes can still be planted; `python tests/mutants.py` looks whether tests find them."""

from __future__ import annotations

from collections import Counter

from tests.mutants import mutants
from tests.selection import is_full


def test_every_mutant_can_be_planted_and_its_tests_belong_to_make_test():
    planted = mutants()
    assert [each.fault for each in planted if each.fault] == []
    assert [each.tests for each in planted if is_full(each.tests)] == []
    assert [each for each, count in Counter(planted).items() if count > 1 or each.right == each.wrong] == []


def test_every_package_has_mutants():
    assert {each.file.partition("/")[0] for each in mutants()} >= {"dataprep", "loaders", "train"}
