"""Signals that ask a run to stop after the current step."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
STOPPED_EXIT_CODE = 128 + signal.SIGTERM
SAME_S = 1.0
"""Time after the first signal in which others are the same one: a terminal sends Ctrl-C to all its processes, and one
that started this process may pass it on."""
_SHOW_CURSOR = b"\x1b[?25h\n"
"""Sequence that undoes what a progress bar on a terminal does."""


class Stop:
    """Whether a signal came."""

    asked = False


@contextlib.contextmanager
def stop_signals(
    signals: Sequence[signal.Signals] = SIGNALS, announce: Callable[[], None] = lambda: None
) -> Iterator[Stop]:
    """Take the first signal as a request to stop; a second one ends the process at once, with code 128 + its number.

    Python runs a handler only between two of the main thread's instructions, and compiling a network may be one of them
    for minutes. So a thread reads the signals' numbers from a pipe, into which Python writes them as they come.

    Args:
        signals: The signals.
        announce: Called by that thread after the first signal.
    """
    stop = Stop()

    def ask(_number: int, _frame: FrameType | None) -> None:
        stop.asked = True

    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    thread = threading.Thread(target=_watch, args=(reading, frozenset(signals), announce), daemon=True)
    thread.start()
    woken_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {each: signal.signal(each, ask) for each in signals}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(woken_before)
        os.close(writing)  # which ends the thread
        thread.join()
        os.close(reading)


@contextlib.contextmanager
def interrupt_as_sigterm(announce: Callable[[], None]) -> Iterator[Stop]:
    """Send this process SIGTERM at the first Ctrl-C, for a framework that stops all processes at SIGTERM; a second
    Ctrl-C ends this process at once. Whether they stop is the framework's to say, never that of the `Stop`."""

    def pass_on() -> None:
        announce()
        os.kill(os.getpid(), signal.SIGTERM)

    with stop_signals((signal.SIGINT,), pass_on):
        yield Stop()


def _watch(pipe: int, signals: frozenset[int], announce: Callable[[], None]) -> None:
    """Announce the first signal, and end the process after the second one."""
    first_s = None
    while number := os.read(pipe, 1):
        if number[0] not in signals:
            continue
        if first_s is None:
            first_s = time.monotonic()
            announce()
        elif time.monotonic() - first_s > SAME_S:
            if sys.stderr.isatty():
                os.write(sys.stderr.fileno(), _SHOW_CURSOR)
            os._exit(128 + number[0])
