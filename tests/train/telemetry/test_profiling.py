"""Steps that are traced: how they are given, and when a trace begins and ends."""

import contextlib
import itertools
import time

import pytest

from dataprep.errors import UsageError
from dataprep.storage import open_storage
from dataprep.watching import PROFILE_REQUEST
from tests.support.virtual_time import RetryClock
from train.telemetry import logs
from train.telemetry.logs import Logs, StepProfile, parse_steps


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


def test_a_trace_that_was_asked_for_lasts_to_the_first_update_after_its_time(tmp_path, monkeypatch):
    clock, traces = RetryClock(), []
    monkeypatch.setattr("train.telemetry.logs.time", clock)

    @contextlib.contextmanager
    def trace(folder):
        traces.append([])
        yield

    asked = itertools.chain([0.0, 2.5], itertools.repeat(0.0))
    with contextlib.closing(StepProfile(None, tmp_path, trace, lambda: next(asked))) as profile:
        for step in range(9):
            profile.before(step)
            if traces and profile._until_s is not None:
                traces[-1].append(step)
            clock.sleep(1)
    assert traces == [[1, 2, 3]]


def test_a_running_training_notices_new_requests(bucket_url, tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "LOOK_S", 0.01)
    monkeypatch.setattr(logs, "LOOK_ON_DISK_S", 0.01)
    for url in (str(tmp_path), bucket_url):
        storage = open_storage(url)
        storage.replace(PROFILE_REQUEST, b'{"seconds": 9}', None)  # of an earlier attempt
        run = Logs(url, enabled=False)
        run.open(step=0, total_steps=9)
        storage.replace(PROFILE_REQUEST, b'{"seconds": 5, "asked_s": 1}', b'{"seconds": 9}')
        while not (asked_s := run.asked_s()):
            time.sleep(0.01)
        assert (asked_s, run.asked_s()) == (5, 0)
        run.close()


def test_without_a_folder_nothing_is_traced():
    StepProfile((0, 1), None, lambda folder: pytest.fail("traced")).before(0)


def test_profile_steps_are_the_first_and_the_one_after_the_last():
    assert parse_steps("20:25") == (20, 25)
    assert parse_steps("") is None
