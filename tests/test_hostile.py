"""Whole builds over hostile originals: a sample here, all of them in the soak."""

import pytest

from tests.support.hostile import HOSTILE, fault_of

SAMPLE = sorted(HOSTILE, key=lambda case: case.outcome)[::90]


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.name)
def test_a_build_survives_hostile_originals(case, tmp_path):
    assert fault_of(case, tmp_path) == ""
