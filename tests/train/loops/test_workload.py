"""Steps for `dataprep diagnose`: they train, and take batches that another thread puts."""

import threading

import numpy as np
import pytest
import torch

from dataprep.errors import UsageError
from train.loops.workload import training_workload


def batch(size: int):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (4, size, size, 3), dtype=np.uint8), np.array([0, 1, -1, 2000])


@pytest.mark.parametrize("model", ["tiny_cnn", "mae_vit_micro_patch8", "resnet18"])
def test_two_steps_change_every_trained_parameter(model):
    """In a ResNet the first step reaches only the last layer of each block, which begins as zero."""
    workload = training_workload(model, device="cpu", batch_size=4, image_size=64)
    before = {name: each.detach().clone() for name, each in workload.model.named_parameters()}
    for _ in range(2):
        workload.step(workload.put(*batch(64)))
    unchanged = [name for name, each in workload.model.named_parameters() if torch.equal(each, before[name])]
    assert not unchanged
    assert model in workload.name


def test_batches_may_be_put_by_another_thread():
    workload = training_workload("tiny_cnn", device="cpu", batch_size=4, image_size=64)
    found = []
    thread = threading.Thread(target=lambda: found.extend(workload.put(*batch(64)) for _ in range(8)))
    thread.start()
    workload.step(workload.put(*batch(64)))
    thread.join()
    for resident in found:
        workload.step(resident)


@pytest.mark.parametrize(
    ("model", "device", "message"),
    [("resnet51", "cpu", "did you mean resnet50"), ("tiny_cnn", "npu", "`device` must be one of xla, tpu, cuda, cpu")],
)
def test_unknown_models_and_devices_are_refused(model, device, message):
    with pytest.raises(UsageError, match=message):
        training_workload(model, device=device, batch_size=4, image_size=64)
