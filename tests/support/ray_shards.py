"""What a process of a Ray cluster does instead of building shards; it is sent there by its name."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import Future

from dataprep.errors import StorageError

POISONOUS = 3
FAILING = 1
SLOW = 0


def numbered(index: int) -> int:
    """Return the shard's number; one shard kills its process."""
    if index == POISONOUS:
        os.kill(os.getpid(), signal.SIGKILL)
    return index


def failing(index: int) -> int:
    """Fail with an error that may pass, for one shard each time."""
    if index == FAILING:
        raise StorageError("the disk is tired")
    return index


def hanging(index: int) -> Future[int] | int:
    """Make no progress with one shard."""
    if index == SLOW:
        time.sleep(600)
    return index
