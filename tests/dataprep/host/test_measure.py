"""Measuring commands in a process that has other children, and threads that come and go."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dataprep.host.cpu import children, every_child, own_cpu_s
from dataprep.host.measure import measure


@contextmanager
def short_threads() -> Iterator[None]:
    """Meanwhile the threads of this process change all the time."""
    is_over = threading.Event()

    def start_others() -> None:
        while not is_over.is_set():
            threads = [threading.Thread(target=int) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    starter = threading.Thread(target=start_others)
    starter.start()
    try:
        yield
    finally:
        is_over.set()
        starter.join()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen]:
    """A child that has nothing to do with what is measured."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_children_are_found_while_threads_end(sleeper):
    with short_threads():
        for _ in range(300):
            assert sleeper.pid in children(os.getpid())
        for _ in range(50):
            assert sleeper.pid in every_child(os.getpid())


@pytest.mark.timeout(60)
def test_another_child_is_neither_waited_for_nor_ended(sleeper):
    with short_threads():
        for _ in range(20):
            measure([sys.executable, "-S", "-c", ""], {})
    assert sleeper.poll() is None


def test_what_a_command_leaves_behind_ends_with_it(sleeper):
    script = "import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', 'print(1)']).pid)"
    found = measure([sys.executable, "-c", script], {})
    orphan = int(found.stdout.split()[0])
    assert orphan not in every_child(os.getpid())
    assert found.cpu_s > 0
    assert sleeper.poll() is None


def test_processor_time_of_less_than_a_tick_is_seen():
    before_s = own_cpu_s()
    sum(range(20_000))
    assert 0 < own_cpu_s() - before_s < 0.5


def test_processor_time_of_children_is_seen_once_while_they_live_and_when_they_have_ended():
    script = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    before_s = own_cpu_s()
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        living_s = own_cpu_s() - before_s
        child.communicate(b"\n")
    assert living_s > 0.25
    assert living_s - 0.05 < own_cpu_s() - before_s < living_s + 0.25
