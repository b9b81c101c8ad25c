"""Tests for the measure of memory: it sees what was freed again, and nothing of what was there before.

Each measures in a process of its own: what other tests left here may give memory back at any time.
"""

import subprocess
import sys

from tests.support.memory_growth import MemoryGrowth


def growth_of(ballast_bytes: int, taken_bytes: int) -> int:
    """Take and free the one before the measurement and the other during it, in a process that does nothing else."""
    program = "import sys; from tests.support.test_memory_growth import main; main(*map(int, sys.argv[1:]))"
    words = [sys.executable, "-c", program, str(ballast_bytes), str(taken_bytes)]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def main(ballast_bytes: int, taken_bytes: int) -> None:
    ballast = bytearray(b"x") * ballast_bytes
    del ballast
    growth = MemoryGrowth()
    taken = bytearray(b"x") * taken_bytes
    del taken
    print(growth.bytes())


def test_memory_that_was_freed_again_counts():
    assert 90 << 20 < growth_of(300 << 20, 100 << 20) < 110 << 20


def test_the_memory_of_the_process_that_started_this_one_does_not_count():
    ballast = bytearray(b"x") * (200 << 20)
    assert growth_of(0, 0) < 8 << 20
    assert len(ballast) == 200 << 20
