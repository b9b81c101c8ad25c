"""The CPU as PyTorch drives it; CUDA takes the same code where there is one."""

import pytest
import torch
from torch import nn

from loaders.config import LoaderConfig
from train.batches.data import open_data
from train.loops.runtime import Runtime


@pytest.fixture
def runtime() -> Runtime:
    return Runtime("cpu", pin_memory=False)


def test_batches_on_the_device_equal_the_loaders(runtime, dataset):
    config = LoaderConfig(batch_size=8, image_size=32, threads=1)
    with open_data(dataset).training_loader(config) as loader:
        found = [(batch.keys, batch.state["position"]) for batch in runtime.batches(loader)]
    with open_data(dataset).training_loader(config) as loader:
        assert found == [(batch.keys, batch.state["position"]) for batch in loader]
    assert [position for _, position in found] == [8 * (number + 1) for number in range(7)]


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


def test_a_trace_is_written_where_tensorboard_finds_it(runtime, tmp_path):
    with runtime.profile(tmp_path):
        torch.ones(3).sum()
    assert len(list(tmp_path.glob("plugins/profile/*/*.pt.trace.json.gz"))) == 1
