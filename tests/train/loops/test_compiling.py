"""Compiled networks: what they need, and that they have the losses of those that are not compiled."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from dataprep.errors import UsageError
from loaders.torch import TorchBatch
from train.loops.runtime import Runtime
from train.loops.torch import Task, TorchBackend, compile_network


class Nothing(Task):
    """A task without a loss."""

    def parts(self, batch: TorchBatch, positions: range) -> Iterator[torch.Tensor]:
        yield from ()


CPU = torch.device("cpu")


@pytest.mark.parametrize("compiler", ["", "no-such-compiler"])
def test_a_cpu_needs_a_compiler(monkeypatch, tmp_path, compiler):
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=f"a C\\+\\+ compiler: {compiler or 'g..'} was not found; install g"):
        compile_network(nn.Linear(1, 1), CPU)


def test_a_cpu_needs_pythons_headers(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "ls")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(UsageError, match=r"needs Python's headers: .* has no Python\.h; install python3-dev"):
        compile_network(nn.Linear(1, 1), CPU)


def test_xla_compiles_anyway():
    with pytest.raises(UsageError, match="`compile` is for cpu, cuda and tpu; XLA compiles every step anyway"):
        compile_network(nn.Linear(1, 1), torch.device("xla"))


@pytest.mark.parametrize(
    ("device", "is_plain_compiled"), [("cpu", False), ("cuda", False), ("xla", True), ("tpu", True)]
)
def test_a_backend_knows_whether_its_network_is_compiled(device, is_plain_compiled):
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    runtime = Runtime("cpu", pin_memory=False)
    runtime.name = device
    backend = TorchBackend(
        runtime=runtime, model=model, optimizer=optimizer, task=Nothing(model=model, runtime=runtime)
    )
    assert backend.compiles is is_plain_compiled
    model[1].compile()
    assert backend.compiles
