"""One round of the loader, in a process of its own."""

import subprocess
import sys

from loaders.bench.round import last_line


def test_a_loader_that_hangs_is_given_up():
    code = "import time; from loaders.bench import round; round.STALL_S = 0.2\nnext(round._watched(iter(H())))"
    hangs = "class H:\n  def __iter__(self): return self\n  def __next__(self): time.sleep(600)\n"
    done = subprocess.run(
        [sys.executable, "-c", hangs + code], capture_output=True, text=True, check=False, timeout=800
    )
    assert done.returncode == 1
    assert last_line(done.stderr).startswith("Timeout (0:00:00.2")


def test_the_last_line_of_a_failed_round_is_its_reason():
    assert last_line("Traceback\n  File x\nOSError: broken\n\n") == "OSError: broken"
    assert last_line("Timeout (0:02:00)!\nThread 1\n  File y\n") == "Timeout (0:02:00)!"
    assert last_line("") == "no output"
