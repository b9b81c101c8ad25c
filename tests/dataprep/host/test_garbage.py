"""When a process collects garbage."""

import subprocess
import sys

SHOWN_AT_THE_END = """
import atexit, gc
from dataprep.host.garbage import COLLECT_AFTER, collect_rarely

atexit.register(lambda: print(gc.get_freeze_count() > 1_000))
collect_rarely()
print(gc.get_threshold()[0] == COLLECT_AFTER, gc.isenabled(), gc.get_freeze_count())
"""


def test_garbage_is_collected_rarely_and_not_at_the_end():
    run = subprocess.run([sys.executable, "-c", SHOWN_AT_THE_END], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["True True 0", "True"]
