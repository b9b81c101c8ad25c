"""One run of one loader in a process of its own."""

import subprocess
import sys

from loaders.bench.runs import last_line


def test_a_loader_that_hangs_is_given_up():
    code = (
        "import time; from loaders.bench import contestant; contestant.STALL_S = 0.2\n"
        "next(contestant._watched(iter(H())))"
    )
    hangs = "class H:\n  def __iter__(self): return self\n  def __next__(self): time.sleep(600)\n"
    done = subprocess.run(
        [sys.executable, "-c", hangs + code], capture_output=True, text=True, check=False, timeout=800
    )
    assert done.returncode == 1
    assert last_line(done.stderr).startswith("Timeout (0:00:00.2")
