"""Worker processes: what is said of one that is killed or suspended."""

import itertools
import os
import re
import signal
from collections import deque
from itertools import chain, repeat

import psutil
import pytest

from dataprep.errors import StorageError
from loaders import open_loader

SMALL = {"batch_size": 12, "image_size": 64}
HOURS_S = 36_000.0
"""A limit that the suite's own, of a test that hangs, comes long before."""


def test_a_killed_worker_is_an_error_without_waiting_for_stall_s(dataset):
    with open_loader(str(dataset("webdataset")), **SMALL, processes=2, stall_s=HOURS_S) as loader:
        batches = iter(loader)
        next(batches)
        pid = loader._producer._workers[1].process.pid
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(StorageError, match=r"worker process 1 of 2 died \(signal 9\)"):
            list(itertools.islice(batches, 50))


SETTINGS = {"batch_size": 8, "image_size": 32, "threads": 1}


def test_a_suspended_worker_is_an_error_that_names_the_images_it_was_reading(dataset):
    with open_loader(dataset("webdataset"), **SETTINGS, processes=2, stall_s=8) as loader:
        batches = iter(loader)
        next(batches)
        worker = psutil.Process(loader._producer._workers[1].process.pid)
        worker.suspend()
        with pytest.raises(StorageError) as caught:
            deque(chain.from_iterable(repeat(loader)), maxlen=0)
    frozen = rf"loader: batch \d+: worker process [01] of 2 \(process {worker.pid}\) gave no sign of life for \d+ s "
    assert re.match(frozen + r"\(stall_s 8\); it was to read \S+train/\S+\.tar(, \S+)*: \S+", str(caught.value))
    assert not worker.is_running()
