"""Signals that ask a run to stop after the current step."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
STOPPED_EXIT_CODE = 128 + signal.SIGTERM


class Stop:
    """Whether a signal came."""

    asked = False


@contextlib.contextmanager
def stop_signals(signals: Sequence[signal.Signals] = SIGNALS) -> Iterator[Stop]:
    """Take the first signal as a request to stop; a second one acts as it does outside this context."""
    stop = Stop()
    before = {each: signal.getsignal(each) for each in signals}

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    def ask(_number: int, _frame: FrameType | None) -> None:
        stop.asked = True
        restore()

    for each in before:
        signal.signal(each, ask)
    try:
        yield stop
    finally:
        restore()
