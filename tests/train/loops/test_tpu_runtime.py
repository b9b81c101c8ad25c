"""The device of torch-tpu where there is none. What needs one has not run: torch-tpu has no device without a TPU."""

import importlib.util

import pytest

from dataprep.errors import UsageError
from train.loops import runtime as runtimes
from train.loops.runtime import open_runtime


def test_without_torch_tpu_the_error_names_the_package_the_python_and_the_device_that_runs_here():
    assert importlib.util.find_spec(runtimes.PACKAGE) is None  # it excludes torch_xla, with which the tests run
    with pytest.raises(UsageError) as error:
        open_runtime("tpu")
    assert str(error.value) == (
        "`device` tpu needs torch-tpu: pip install 'tpu-dataprep[tpu-torch-tpu]' on Python 3.12 or newer, in an "
        "environment without torch_xla; or use `device` xla"
    )


def test_without_a_tpu_the_error_says_so(monkeypatch):
    """PyTorch then has no device of this name: torch-tpu 0.2.0 registers none where it finds no TPU."""
    monkeypatch.setattr(runtimes, "PACKAGE", "torch")
    with pytest.raises(UsageError, match=r"^no TPU here; use `device` tpu on a TPU VM, or `device` cpu$"):
        open_runtime("tpu")


def test_one_process_drives_one_device(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match="WORLD_SIZE is 4: tpu runs in one process"):
        open_runtime("tpu")
