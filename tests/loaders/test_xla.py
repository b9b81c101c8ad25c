"""The PyTorch/XLA adapter: on one device, and under SPMD on four."""

import sys
import types

import pytest

from dataprep.errors import UsageError
from loaders.xla import host_rank
from tests.support.adapters import AdapterContract, run_module
from tests.support.multi_device import BATCHES, placed


class TestXLA(AdapterContract):
    adapter = "xla"


def test_under_spmd_every_device_has_its_own_part_of_the_batch(dataset):
    report = run_module("tests.support.multi_device", "xla", dataset("webdataset"))
    assert len(report) == BATCHES
    for step in placed(dataset("webdataset"), [report]):
        rows = list(zip(step.batch.keys, step.batch.labels.tolist(), strict=True))
        assert step.by_device == {f"CPU:{device}": rows[3 * device :][:3] for device in range(4)}
        assert step.by_process == [step.batch.keys]
        assert step.shapes == [list(step.batch.images.shape)]
        assert step.sums == [step.batch.images.sum()]


def test_torch_xla_after_tensorflow_is_refused_before_the_process_aborts(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch_xla", raising=False)
    monkeypatch.setitem(sys.modules, "tensorflow", types.ModuleType("tensorflow"))
    with pytest.raises(UsageError, match="TensorFlow was imported before torch_xla"):
        host_rank()
