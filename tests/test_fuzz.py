"""What the fuzzers' reports and planted bugs rest on. The fuzzers themselves run in `make fuzz`, two minutes, and
`make soak SHOW=fuzz`, ten."""

import pytest

from tests.fuzz.run import read_report
from tests.support.planted_bugs import BUGS, ROOT


def test_a_run_that_did_not_end_has_no_report():
    with pytest.raises(AssertionError, match="cov: 12"):
        read_report("#5 NEW cov: 12 ft: 30 corp: 4/20b\n")


@pytest.mark.parametrize("name", BUGS)
def test_bugs_are_planted_in_texts_that_exist(name):
    _, file, right, _ = BUGS[name]
    assert (ROOT / file).read_text().count(right) == 1
