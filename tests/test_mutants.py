"""Planted mistakes can still be planted; `python tests/mutants.py` looks whether tests find them."""

from __future__ import annotations

from collections import Counter

from tests.mutants import Mutant, mutants
from tests.selection import is_full, touched


def run_for_a_change_of_its_file(mutant: Mutant) -> bool:
    rows = touched([mutant.file])
    return not is_full(mutant.tests) or any(mutant.tests.startswith(row) for row in rows)


def test_every_mutant_can_be_planted_and_its_tests_run_for_a_change_of_its_file():
    planted = mutants()
    assert [each.fault for each in planted if each.fault] == []
    assert [each for each in planted if not run_for_a_change_of_its_file(each)] == []
    assert [each for each, count in Counter(planted).items() if count > 1 or each.right == each.wrong] == []


def test_every_package_has_mutants():
    assert {each.file.partition("/")[0] for each in mutants()} >= {"dataprep", "loaders", "train"}
