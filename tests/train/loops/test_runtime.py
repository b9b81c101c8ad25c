"""Devices by their names, and what they draw from."""

import contextlib

import pytest
import torch

from dataprep.errors import UsageError
from train.loops.runtime import open_autocast, open_runtime
from train.loops.xla_runtime import XLARuntime


def test_the_state_of_random_generators_is_restored():
    xla = XLARuntime.__new__(XLARuntime)  # its state is of the host: no device is asked
    for runtime in (open_runtime("cpu"), xla):
        runtime.seed(5)
        state = runtime.random_state()
        first = torch.rand(3)
        runtime.seed(6)
        runtime.set_random_state(state)
        assert torch.equal(torch.rand(3), first)
    assert xla.random_state()["xla"] == 5


@pytest.mark.parametrize(
    ("device", "settings", "message"),
    [
        ("npu", {}, "`device` must be one of xla, tpu, cuda, cpu, got 'npu'"),
        ("cpu", {"pin_memory": True}, "`pin_mem` is for CUDA"),
        ("xla", {"pin_memory": False}, "`pin_mem` is for CUDA"),
    ],
)
def test_unknown_devices_and_settings_for_others_are_refused(device, settings, message):
    with pytest.raises(UsageError, match=message):
        open_runtime(device, **settings)


def test_a_launcher_of_several_processes_is_refused_where_one_drives_one_device(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match="WORLD_SIZE is 4: cpu runs in one process"):
        open_runtime("cpu")


def test_bfloat16_on_a_cpu_is_used_only_if_given():
    cpu = torch.device("cpu")
    for precision in ("auto", "float32"):
        assert isinstance(open_autocast(cpu, precision), contextlib.nullcontext)
    with open_autocast(cpu, "bfloat16"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
