"""Mutated JPEGs make the extensions in C neither touch memory that is not theirs nor break a promise.

The full count: `make soak SHOW=fuzz`; two minutes: `make fuzz`.
"""

import pytest

from tests.fuzz.run import TARGETS, fuzz, missing, read_report
from tests.support.planted_bugs import BUGS, ROOT

RUNS = 20_000


@pytest.mark.skipif(
    bool(missing()), reason=f"{missing() or 'nothing'} is not installed (Debian: apt install clang cmake cargo)"
)
@pytest.mark.parametrize("target", TARGETS)
def test_mutated_files_break_no_promise(target):
    assert fuzz(target, runs=RUNS).runs >= RUNS


def test_a_run_that_did_not_end_has_no_report():
    with pytest.raises(AssertionError, match="cov: 12"):
        read_report("#5 NEW cov: 12 ft: 30 corp: 4/20b\n")


@pytest.mark.parametrize("name", BUGS)
def test_bugs_are_planted_in_texts_that_exist(name):
    _, file, right, _ = BUGS[name]
    assert (ROOT / file).read_text().count(right) == 1
