"""Tests for the measure of memory: it sees what was freed again, and nothing of what was there before."""

import subprocess
import sys

from tests.support.memory_growth import MemoryGrowth

_CHILD = """
from tests.support.memory_growth import MemoryGrowth
growth = MemoryGrowth()
print(growth.bytes())
"""


def test_memory_that_was_freed_again_counts():
    ballast = bytearray(b"x") * (300 << 20)
    del ballast
    growth = MemoryGrowth()
    assert growth.bytes() < 8 << 20
    taken = bytearray(b"x") * (100 << 20)
    del taken
    assert 90 << 20 < growth.bytes() < 110 << 20


def test_the_memory_of_the_process_that_started_this_one_does_not_count():
    ballast = bytearray(b"x") * (200 << 20)
    done = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, check=True)
    assert len(ballast) == 200 << 20
    assert int(done.stdout) < 8 << 20
