"""Compiled networks: what they need, and that they have the losses of those that are not compiled."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from dataprep.errors import UsageError
from loaders.torch import TorchBatch
from tests.support.finetuning import SMALL as FINETUNE
from tests.support.training import SMALL as MAE
from tests.support.training import TINY_VIT, losses, trace_of
from train import finetune_mae, pretrain_mae, train_vit
from train.loops.runtime import Runtime
from train.loops.torch import Task, TorchBackend, compile_network


class Nothing(Task):
    """A task without a loss."""

    def parts(self, batch: TorchBatch, positions: range) -> Iterator[torch.Tensor]:
        yield from ()


STEPS = 4
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
    backend = TorchBackend(runtime=runtime, model=model, optimizer=optimizer, task=Nothing())
    assert backend.compiles is is_plain_compiled
    model[1].compile()
    assert backend.compiles


VIT = {
    **TINY_VIT,
    "epochs": 2,
    "warmup_steps": 3,
    "log_interval_steps": 1,
    "num_workers": 2,
}
ENTRIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "mae": (pretrain_mae, pretrain_mae.PretrainMAE, {**MAE, "norm_pix_loss": True}),
    "vit": (train_vit, train_vit.TrainViT, VIT),
    "vit that keeps what it computes": (train_vit, train_vit.TrainViT, {**VIT, "no_grad_ckpt": True}),
    "fine-tuning": (finetune_mae, finetune_mae.recipe_flags, {**FINETUNE, "aa": "", "drop_path": 0.0}),
}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Guards may run slower")  # of Python 3.13.0
@pytest.mark.parametrize("name", ENTRIES)
def test_compiled_networks_have_the_losses_of_others(dataset, tmp_path, name):
    entry, flags_of, given = ENTRIES[name]
    flags = {**given, "data_path": dataset, "device": "cpu", "max_steps": STEPS}
    for compiled in (False, True):
        folder = str(tmp_path / str(compiled))
        assert entry.open_training(flags_of(**flags, compile=compiled, output_dir=folder)).run() == 0
    ours, theirs = (trace_of(tmp_path / name) for name in ("True", "False"))
    assert ours["weights"] == theirs["weights"]
    found = losses(tmp_path / "True")
    assert len(found) == STEPS
    assert found == pytest.approx(losses(tmp_path / "False"), abs=1e-5)
