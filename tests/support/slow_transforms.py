"""Transforms that take time, or all of it, under a lock, as Python code is, or beside each other; one that fails."""

import threading
import time

_LOCK = threading.Lock()


def one_at_a_time(image_HWC, rng):
    """Eight milliseconds, in one thread of a process at a time."""
    with _LOCK:
        time.sleep(0.008)
    return image_HWC


def computing(image_HWC, rng):
    """Five milliseconds of CPU time, with the interpreter lock, as a loop in Python takes them."""
    until_s = time.thread_time() + 0.005
    while time.thread_time() < until_s:
        pass
    return image_HWC


def without_end(image_HWC, rng):
    """Never returns."""
    threading.Event().wait()


def failing(image_HWC, rng):
    """Raises an error of its own."""
    raise ZeroDivisionError("of the transform's own")
