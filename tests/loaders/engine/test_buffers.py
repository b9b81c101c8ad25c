"""Memory that is used again: never while anything looks at it."""

import gc
import os
import re
from pathlib import Path

import numpy as np
import torch

from loaders.engine.buffers import Buffers
from tests.support.descriptors import open_descriptors

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


def test_slices_views_and_tensors_keep_the_memory_in_use():
    buffers = Buffers(12_000)
    for keep in (
        lambda array: array[10:20],
        lambda array: array.reshape(10, 20, 20, 3)[3:4, ::2, :, 0],
        lambda array: torch.from_numpy(array.reshape(10, 20, 20, 3)).permute(0, 3, 1, 2)[2],
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
