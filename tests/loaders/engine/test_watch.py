import re
import subprocess
import sys
import threading

import pytest

from dataprep.errors import StorageError
from loaders import open_loader
from tests.support.loading import REPOSITORY
from tests.support.slow_transforms import without_end

SETTINGS = {"batch_size": 8, "image_size": 32, "threads": 1}


@pytest.mark.parametrize(("processes", "stall_s"), [(0, 2), pytest.param(2, 10, marks=pytest.mark.long)])
def test_a_hanging_transform_is_an_error_that_names_batch_shard_and_key(dataset, processes, stall_s, capfd):
    """A worker process needs some time to start."""
    hanging = {**SETTINGS, "processes": processes, "transform": without_end, "stall_s": stall_s}
    with open_loader(dataset("webdataset"), **hanging) as loader, pytest.raises(StorageError) as caught:
        next(iter(loader))
    told = rf"loader: batch 0: no image was read or decoded for \d+ s \(stall_s {stall_s}\); in progress: transforming "
    assert re.match(told + r"\S+train/\S+\.tar: \S+", str(caught.value))
    assert "raise stall_s, and resume from the last state" in str(caught.value)
    assert f"s; an error after {stall_s} s; in progress: " in capfd.readouterr().err


def test_a_program_can_end_while_a_thread_of_its_loader_hangs(dataset):
    program = (
        "from loaders import open_loader\n"
        "from tests.support.slow_transforms import without_end\n"
        f"loader = open_loader({str(dataset('webdataset'))!r}, batch_size=8, image_size=32, transform=without_end, "
        "stall_s=1)\n"
        "next(iter(loader))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=800, check=False
    )
    assert run.returncode == 1
    assert "StorageError: loader: batch 0: no image was read or decoded for 1 s" in run.stderr


def test_closing_leaves_a_hanging_thread_behind_and_the_loader_can_be_used_again(dataset):
    release = threading.Event()

    def held(image_HWC, rng):
        release.wait()
        return image_HWC

    with open_loader(dataset("webdataset"), **SETTINGS, transform=held, stall_s=3) as loader:
        with pytest.raises(StorageError, match="no image was read or decoded"):
            next(iter(loader))
        release.set()
        assert len(next(iter(loader)).keys) == 8
