"""Threads that take tasks from one queue: results and errors arrive, and closing waits no longer than it is told."""

from __future__ import annotations

import threading
import time

import pytest

from dataprep.host.threads import Threads


@pytest.fixture
def threads():
    threads = Threads(2, "test")
    yield threads
    threads.close(time.monotonic() + 10)


def test_every_task_is_done_once_by_a_named_thread(threads):
    futures = [threads.submit(lambda n=n: (n, threading.current_thread().name)) for n in range(20)]
    done = [future.result(60) for future in futures]
    assert [number for number, _ in done] == list(range(20))
    assert {name for _, name in done} <= {"test-0", "test-1"}


def test_an_error_is_raised_where_the_result_is_waited_for(threads):
    future = threads.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        future.result(60)
    assert threads.submit(lambda: 7).result(60) == 7


def closed_within(threads: Threads, seconds: float) -> bool:
    return threads.close(time.monotonic() + seconds)


def test_closing_cancels_what_has_not_begun_and_leaves_a_hanging_thread_behind():
    threads, begun, release = Threads(1, "test"), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        release.wait()

    hanging, waiting = threads.submit(hang), threads.submit(lambda: 1)
    assert begun.wait(60)
    assert not closed_within(threads, 0.05)
    assert waiting.cancelled()
    assert not hanging.done()
    release.set()
    assert closed_within(threads, 60)
