"""Producers: closed while a batch is awaited, their memory, and worker processes that are killed or suspended."""

import gc
import itertools
import os
import re
import signal
import threading
import time
from collections import deque
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import psutil
import pytest

from dataprep.errors import DataprepError, StorageError
from loaders import open_loader
from loaders.engine.producer import Buffers
from tests.support.descriptors import open_descriptors
from tests.support.waiting import LONGEST_S, wait_for

SMALL = {"batch_size": 12, "image_size": 64}


@pytest.mark.parametrize("processes", [0, 1])
def test_closing_by_another_thread_wakes_the_reader(dataset, processes):
    loader = open_loader(str(dataset("webdataset")), **SMALL, processes=processes)
    batches = iter(loader)
    next(batches)
    told: list[BaseException] = []

    def read():
        try:
            for _ in range(10_000):
                next(batches, None) or next(iter(loader))
        except Exception as error:  # noqa: BLE001
            told.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(0.3)
    loader._producer.close()
    reader.join(LONGEST_S)
    assert not reader.is_alive()
    assert isinstance(told[0], DataprepError), told
    loader.close()


def test_closing_by_another_thread_skips_no_image(gcs, bucket_url, bucket_dataset):
    """Reads that the closing ends are no faults of images: the batch was delivered, all of it masked."""
    patient = {"deadline_s": 3_600.0, "on_error": "skip", "threads": 12}
    with open_loader(bucket_dataset("webdataset"), **SMALL, **patient) as loader:
        for shard in range(len(loader.order.shard_samples)):
            loader.index.shard(shard)
        gcs.set_latency(10_000)
        told: list[object] = []

        def read():
            try:
                told.append(next(iter(loader)).mask.tolist())
            except StorageError as error:
                told.append(str(error))

        reader = threading.Thread(target=read)
        reader.start()
        wait_for(lambda: loader.stats()["fetch"].get("requests", 0) >= SMALL["batch_size"])
        loader.close()
        reader.join()
        assert told == ["loader: closed while a batch was awaited; iterate over it again to continue"]
        assert loader.stats()["skipped"] == {}
        assert loader.state_dict()["position"] == 0


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


def test_a_suspended_worker_is_an_error_that_names_the_images_it_was_reading(dataset):
    with open_loader(dataset("webdataset"), batch_size=8, image_size=32, threads=1, processes=2, stall_s=8) as loader:
        batches = iter(loader)
        next(batches)
        worker = psutil.Process(loader._producer._workers[1].process.pid)
        worker.suspend()
        with pytest.raises(StorageError) as caught:
            deque(chain.from_iterable(repeat(loader)), maxlen=0)
    frozen = rf"loader: batch \d+: worker process [01] of 2 \(process {worker.pid}\) gave no sign of life for \d+ s "
    assert re.match(frozen + r"\(stall_s 8\); it was to read \S+train/\S+\.tar(, \S+)*: \S+", str(caught.value))
    assert not worker.is_running()


SHARED = "/memfd:dataprep-batch"


def test_memory_is_reused_once_nothing_refers_to_it():
    buffers = Buffers(1000)
    first = buffers.take()
    first.data[:] = 7
    number = first.number
    del first
    again = buffers.take()
    assert again.number == number
    assert len(buffers) == 1
    assert (again.data == 7).all()  # whoever takes it writes it


def test_slices_and_views_keep_the_memory_in_use():
    buffers = Buffers(12_000)
    for keep in (
        lambda array: array[10:20],
        lambda array: array.reshape(10, 20, 20, 3)[3:4, ::2, :, 0],
        lambda array: memoryview(array)[5:6],
    ):
        kept = keep(buffers.take().data)
        gc.collect()
        before = np.asarray(kept).copy()
        other = buffers.take()
        other.data[:] = np.random.default_rng(0).integers(1, 255, 12_000)
        assert (np.asarray(kept) == before).all()
        del kept, other
    gc.collect()
    assert len(buffers) == 2


def test_memory_of_one_process_is_private_and_asks_for_huge_pages():
    data = Buffers(4 * 2**20).take().data
    mapped = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) ")
    inside, permissions, flags = False, "", []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := mapped.match(line):
            inside = int(found[1], 16) <= data.ctypes.data < int(found[2], 16)
            permissions = found[3] if inside else permissions
        elif inside and line.startswith("VmFlags:"):
            flags = line.split()
    assert permissions == "rw-p"
    assert ("hg" in flags) == Path("/sys/kernel/mm/transparent_hugepage").exists()


def test_a_batch_that_is_kept_does_not_keep_the_memory_of_others():
    gc.collect()
    before = open_descriptors(SHARED)
    buffers = Buffers(4096, shared=True)
    kept, *others = [buffers.take().data for _ in range(4)]
    buffers.close()
    del buffers, others
    gc.collect()
    kept[:] = 1
    assert open_descriptors(SHARED) == before + 1


def test_shared_memory_has_no_name_and_its_descriptors_are_closed():
    gc.collect()
    names, before = set(os.listdir("/dev/shm")), open_descriptors(SHARED)
    buffers = Buffers(4096, shared=True)
    taken = [buffers.take() for _ in range(3)]
    assert os.fstat(buffers.descriptor(taken[2].number)).st_size == 4096
    assert set(os.listdir("/dev/shm")) == names
    buffers.close()
    taken[0].data[:] = 1  # what somebody holds stays usable
    del taken, buffers
    gc.collect()
    assert open_descriptors(SHARED) == before
