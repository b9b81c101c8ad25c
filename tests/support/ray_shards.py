"""Tasks of a Ray cluster that build no shards; they are sent there by their names."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from dataprep.builder.recipe import BuildJob
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import StorageError, UsageError
from pipelines.task import Answer

POISONOUS = 3
FAILING = 1
SLOW = 0


def receipt(index: int) -> ShardReceipt:
    return ShardReceipt(index, "train", index, f"{index}.tar", 1, 1, "00", "AA==")


def numbered(index: int) -> Answer:
    """Answer with a receipt; one shard kills its process."""
    if index == POISONOUS:
        os.kill(os.getpid(), signal.SIGKILL)
    return Answer(index, receipt(index))


def slow(index: int) -> Answer:
    """Answer after a second."""
    time.sleep(1)
    return Answer(index, receipt(index))


def tired(_job: BuildJob, index: int) -> ShardReceipt:
    """Fail with an error that may pass, for one shard each time."""
    if index == FAILING:
        raise StorageError("the disk is tired")
    return receipt(index)


def refused(job: BuildJob, index: int) -> ShardReceipt:
    """Fail with the user's error for one shard, and write down each attempt in the folder of the output."""
    if index != FAILING:
        return receipt(index)
    Path(job.output_url, f"attempt-{time.time_ns()}").touch()
    raise UsageError("the images are damaged")


def hanging(_job: BuildJob, index: int) -> ShardReceipt:
    """Make no progress with one shard."""
    if index == SLOW:
        time.sleep(600)
    return receipt(index)
