"""Signals: the first one asks, the second one acts as it does outside."""

import os
import signal

import pytest

from train.loops.stopping import STOPPED_EXIT_CODE, stop_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_requests_a_stop_and_the_second_acts_as_before(number):
    seen = []
    before = signal.signal(number, lambda *_: seen.append("outside"))
    try:
        with stop_signals() as stop:
            assert not stop.asked
            os.kill(os.getpid(), number)
            assert stop.asked
            assert seen == []
            os.kill(os.getpid(), number)
            assert seen == ["outside"]
        os.kill(os.getpid(), number)
        assert seen == ["outside"] * 2
    finally:
        signal.signal(number, before)


def test_no_signal_handler_is_installed_if_no_signals_are_given():
    before = signal.getsignal(signal.SIGTERM)
    with stop_signals(()) as stop:
        assert signal.getsignal(signal.SIGTERM) is before
    assert not stop.asked


def test_the_exit_code_of_a_stopped_run_is_that_of_sigterm():
    assert STOPPED_EXIT_CODE == 143
