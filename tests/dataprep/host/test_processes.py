"""Processes that end with the one that started them."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

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
        try:
            psutil.Process(child_pid).wait(60)
        except psutil.NoSuchProcess:
            pass
        finally:
            if psutil.pid_exists(child_pid):
                os.kill(child_pid, signal.SIGKILL)
