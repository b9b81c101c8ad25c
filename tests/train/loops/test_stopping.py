"""Signals: the first one asks, the second one acts as it does outside."""

import os
import signal

import pytest

from train.loops.stopping import STOPPED_EXIT_CODE, stop_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_for_a_stop_and_the_second_one_is_what_it_was(number):
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


def test_no_signals_are_taken_where_there_are_none_to_take():
    before = signal.getsignal(signal.SIGTERM)
    with stop_signals(()) as stop:
        assert signal.getsignal(signal.SIGTERM) is before
    assert not stop.asked


def test_the_exit_code_is_that_of_a_shell_after_sigterm():
    assert STOPPED_EXIT_CODE == 143
