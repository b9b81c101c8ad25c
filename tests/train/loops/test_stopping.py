"""Signals: the first one asks and is announced at once, the second one ends the process."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.waiting import LONGEST_S, wait_for
from train.loops.loop import SAME_S, STOPPED_EXIT_CODE, interrupt_as_sigterm, stop_signals

BUSY_IN_C = """
import hashlib, os, sys
from train.loops.loop import stop_signals
with stop_signals(announce=lambda: os.write(1, b"stopping\\n")) as stop:
    os.write(1, b"started\\n")
    {wait}hashlib.pbkdf2_hmac("sha256", b"", b"", {iterations})
    os.write(1, b"ended\\n")
"""
"""Program whose main thread runs no Python while it works, as in a compilation. Two threads write, each a line in one
call: `print` writes a line and its end in two."""


def busy(iterations, wait=""):
    command = [sys.executable, "-c", BUSY_IN_C.format(iterations=iterations, wait=wait)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "started\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_requests_a_stop_and_afterwards_signals_act_as_before(number, monkeypatch):
    monkeypatch.setattr("train.loops.loop.SAME_S", 36_000.0)
    seen = []
    before = signal.signal(number, lambda *_: seen.append("outside"))
    try:
        with stop_signals(announce=lambda: seen.append("announced")) as stop:
            assert not stop.asked
            os.kill(os.getpid(), number)
            assert stop.asked
            os.kill(os.getpid(), number)  # so soon it is the same one, passed on by another process
        assert seen == ["announced"]
        os.kill(os.getpid(), number)
        assert seen == ["announced", "outside"]
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_announced_while_the_main_thread_compiles_and_a_second_one_ends_it(number):
    with busy(2**31 - 1) as process:
        process.send_signal(number)
        assert process.stdout.readline() == "stopping\n"
        time.sleep(SAME_S + 0.2)
        process.send_signal(number)
        assert process.wait(LONGEST_S) == 128 + number


def test_after_one_signal_the_main_thread_ends_what_it_does():
    with busy(500_000, wait="while not stop.asked: ") as process:
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=LONGEST_S)
    assert sorted(said.split()) == ["ended", "stopping"], "in either order, if the signal comes before the work"
    assert process.returncode == 0


def test_ctrl_c_becomes_sigterm_where_a_framework_stops_all_processes():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with interrupt_as_sigterm(lambda: seen.append("announced")) as stop:
            os.kill(os.getpid(), signal.SIGINT)
            wait_for(lambda: len(seen) == 2)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == ["announced", signal.SIGTERM]
    assert not stop.asked


def test_the_exit_code_of_a_stopped_run_is_that_of_sigterm():
    assert STOPPED_EXIT_CODE == 143
