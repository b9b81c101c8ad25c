"""Measuring commands in a process that has other children, and threads that come and go."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dataprep.host.cpu import children, every_child
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
        for _ in range(50):
            assert sleeper.pid in children(os.getpid())
        for _ in range(10):
            assert sleeper.pid in every_child(os.getpid())


def test_another_child_is_neither_waited_for_nor_ended(sleeper):
    with short_threads():
        for _ in range(2):
            measure([sys.executable, "-S", "-c", ""], {})
    assert sleeper.poll() is None


def test_what_a_command_leaves_behind_ends_with_it(sleeper):
    script = "import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', 'print(1)']).pid)"
    found = measure([sys.executable, "-c", script], {})
    orphan = int(found.stdout.split()[0])
    assert orphan not in every_child(os.getpid())
    assert found.cpu_s > 0
    assert sleeper.poll() is None


IN_A_PROCESS_OF_ITS_OWN = """
import os, resource, subprocess, sys, time
from dataprep.host.cpu import own_cpu_s

def ended_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

def living_s(pid):
    ticks = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

def check(pid=None):
    more_s = ended_s() + (living_s(pid) if pid else 0)
    found = time.process_time() + more_s, own_cpu_s(), time.process_time() + more_s
    if list(found) != sorted(found):
        raise SystemExit(f"between {found[0]} and {found[2]} s were used, {found[1]} are said")
    return more_s
"""


def run_alone(script: str) -> None:
    words = [sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN + script]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_processor_time_is_exact_where_there_are_no_children():
    """A tick of the kernel's has 10 ms, far more than lies between two looks at the clock."""
    run_alone("for _ in range(100): check()")


def test_processor_time_of_children_is_seen_once_while_they_live_and_when_they_have_ended():
    run_alone("""
busy = "import time\\nwhile time.process_time() < 0.1: pass\\nprint(flush=True)\\ninput()"
child = subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
while open(f"/proc/{child.pid}/stat").read().rpartition(")")[2].split()[0] != "S":
    pass  # it waits for its input, and uses no more
if not check(child.pid):
    raise SystemExit("the child used no processor")
child.communicate(b"\\n")
if not check():
    raise SystemExit("the child that has ended is not counted")
""")
