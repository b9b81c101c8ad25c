"""Processes that end with the one that started them."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dataprep.host.processes import Threads, environment
from tests.support.waiting import end_soon

# Starts a child, says its number, and is killed: before the child asks whose child it is, or afterwards.
PARENT = """
import os, signal, time
from dataprep.host.processes import end_with
me, early = os.getpid(), {early}
ready, say_ready = os.pipe()
child = os.fork()
if not child:
    if early:
        while os.getppid() == me:
            time.sleep(0.01)
    end_with(me)
    os.write(say_ready, b".")
    time.sleep(600)
print(child, flush=True)
if not early:
    os.read(ready, 1)
os.kill(me, signal.SIGKILL)
"""


@pytest.mark.parametrize("early", [False, True])
def test_a_child_ends_with_its_parent(early):
    with subprocess.Popen([sys.executable, "-c", PARENT.format(early=early)], stdout=subprocess.PIPE) as parent:
        child_pid = int(parent.stdout.readline())
        assert parent.wait(60) == -signal.SIGKILL
        ended = end_soon([child_pid])
        if not ended:
            os.kill(child_pid, signal.SIGKILL)
        assert ended


def test_a_variable_that_the_user_has_set_stays(monkeypatch):
    monkeypatch.setenv("OF_THE_USER", "1")
    monkeypatch.delenv("OF_OURS", raising=False)
    with environment({"OF_THE_USER": "2", "OF_OURS": "2"}):
        assert (os.environ["OF_THE_USER"], os.environ["OF_OURS"]) == ("1", "2")
    assert os.environ["OF_THE_USER"] == "1"
    assert "OF_OURS" not in os.environ


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
