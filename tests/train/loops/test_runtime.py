"""Devices by their names, and what they draw from."""

import contextlib
import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from dataprep.errors import UsageError
from tests.support.training import flags_of
from train.loops import runtime as runtimes
from train.loops.runtime import Runtime, XLARuntime, open_autocast, open_runtime


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


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_a_launcher_of_several_processes_is_refused_where_one_drives_one_device(monkeypatch, device):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match=f"WORLD_SIZE is 4: {device} runs in one process"):
        open_runtime(device)


def test_bfloat16_on_a_cpu_is_used_only_if_given():
    cpu = torch.device("cpu")
    for precision in ("auto", "float32"):
        assert isinstance(open_autocast(cpu, precision), contextlib.nullcontext)
    with open_autocast(cpu, "bfloat16"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16


def test_the_device_that_is_taken_by_default_is_no_warning(tmp_path):
    arguments = flags_of(device="xla", model="tiny_cnn", output_dir=tmp_path, data_path="none")
    variables = {name: value for name, value in os.environ.items() if name != "PJRT_DEVICE"}
    command = [sys.executable, "-m", "train.train_resnet", *arguments]
    run = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=800, check=False)
    assert run.returncode == 2, run.stderr
    assert "PJRT_DEVICE" not in run.stderr
    assert len(run.stderr.splitlines()) == 1, "the error about the data"


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


@pytest.fixture
def runtime() -> Runtime:
    return Runtime("cpu", pin_memory=False)


def test_copies_on_the_host_do_not_change_with_the_device(runtime):
    weight = torch.ones(2, requires_grad=True)
    copied = runtime.on_host({"a": [weight, 3]})
    with torch.no_grad():
        weight.zero_()
    assert copied["a"][0].tolist() == [1, 1]
    assert not copied["a"][0].requires_grad
    assert copied["a"][1] == 3


def test_a_recomputed_block_has_the_same_gradient(runtime):
    torch.manual_seed(0)
    block, inputs = nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(3, 4, requires_grad=True)
    block(inputs).sum().backward()
    expected = block[0].weight.grad.clone()
    block.zero_grad()
    runtime.recompute(block)
    calls = []
    block[0].register_forward_hook(lambda *_: calls.append(1))
    block(inputs).sum().backward()
    assert torch.equal(block[0].weight.grad, expected)
    assert len(calls) == 2


def test_a_single_device_holds_whole_weights_and_its_vote_decides(runtime):
    model = nn.Linear(2, 2)
    assert runtime.shard_weights(model, nn.Linear) is model
    assert (runtime.agree(True), runtime.agree(False)) == (True, False)
    assert (runtime.memory_bytes(), runtime.metrics(), runtime.is_sharded) == (None, "", False)


def test_a_cpu_computes_with_as_many_threads_as_it_is_told_and_cuda_with_none(runtime):
    before = runtime.compute_threads
    assert before == torch.get_num_threads()
    try:
        runtime.use_threads(before + 1)
        assert runtime.compute_threads == torch.get_num_threads() == before + 1
    finally:
        runtime.use_threads(before)
    assert Runtime("cuda", pin_memory=False).compute_threads == 0
