"""Steps that are traced: how they are given, and when a trace begins and ends."""

import contextlib

import pytest

from dataprep.errors import UsageError
from train.telemetry.logs import StepProfile, parse_steps


def test_malformed_profile_steps_are_refused():
    for text in ("1", "2:1", "a:b", "-1:2", "1:2:3", "1:" + "9" * 5000, "٣:٤"):
        with pytest.raises(UsageError, match="expected A:B"):
            parse_steps(text)


@pytest.mark.parametrize(("steps", "expected"), [((2, 4), [2, 3]), ((0, 1), [0]), ((3, 9), [3, 4]), (None, [])])
def test_a_trace_covers_the_given_steps(tmp_path, steps, expected):
    traced, running = [], []

    @contextlib.contextmanager
    def trace(folder):
        assert folder == tmp_path
        running.append(True)
        yield
        running.clear()

    with contextlib.closing(StepProfile(steps, tmp_path, trace)) as profile:
        for step in range(5):
            profile.before(step)
            if running:
                traced.append(step)
    assert traced == expected
    assert not running


def test_without_a_folder_nothing_is_traced():
    StepProfile((0, 1), None, lambda folder: pytest.fail("traced")).before(0)


def test_profile_steps_are_the_first_and_the_one_after_the_last():
    assert parse_steps("20:25") == (20, 25)
    assert parse_steps("") is None
