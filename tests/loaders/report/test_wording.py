"""Words for findings: rates and predictions."""

import math
from dataclasses import replace

import pytest

from loaders.report.wording import change_rates, rate
from tests.support.findings import diagnosis


def test_a_change_has_the_rates_that_are_known_of_it():
    found = diagnosis()
    workers, resize, _ = found.fixes
    assert change_rates(found, workers) == {"predicted": "1,830", "tried": "1,790", "applied": "1,738"}
    assert change_rates(found, resize) == {"predicted": "1,240"}
    assert change_rates(replace(found, applied=None), workers) == {"predicted": "1,830", "tried": "1,790"}


@pytest.mark.parametrize(
    ("images_per_s", "text"), [(1840.4, "1,840"), (10, "10"), (3.21, "3.2"), (0.034, "0.034"), (math.inf, "no limit")]
)
def test_rates_are_written_with_separators(images_per_s, text):
    assert rate(images_per_s) == text
