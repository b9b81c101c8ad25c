"""The PyTorch adapter, and normalisation on the device."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.transforms.v2.functional import normalize as torchvision_normalize

from dataprep.errors import UsageError
from loaders import open_loader
from loaders.torch import TorchBatches, normalize, tensors
from tests.support.adapters import SMALL, AdapterContract

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class TestTorch(AdapterContract):
    adapter = "torch"


@pytest.fixture
def loader(dataset):
    with open_loader(str(dataset("webdataset")), **SMALL) as loader:
        yield loader


def test_tensors_share_the_loaders_memory(loader):
    batch = next(iter(loader))
    for name, tensor in tensors(batch).items():
        assert np.shares_memory(tensor.numpy(), getattr(batch, name))


def test_length_is_that_of_the_epoch(loader):
    assert len(DataLoader(TorchBatches(loader), batch_size=None)) == len(loader)
    assert len(list(TorchBatches(loader))) == loader.order.steps(0)


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_dataloader_with_workers_is_refused(loader, start):
    batches = DataLoader(TorchBatches(loader), batch_size=None, num_workers=2, multiprocessing_context=start)
    with pytest.raises(UsageError, match="expected num_workers=0: the loader has workers of its own"):
        next(iter(batches))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_normalize_equals_torchvisions(dtype, tolerance):
    images_NHWC = torch.arange(2 * 5 * 7 * 3, dtype=torch.int64).mul(37).remainder(256).to(torch.uint8).view(2, 5, 7, 3)
    images_NCHW = normalize(images_NHWC, mean=MEAN, std=STD, dtype=dtype)
    expected = torchvision_normalize(images_NHWC.permute(0, 3, 1, 2).float() / 255, list(MEAN), list(STD))
    assert images_NCHW.shape == (2, 3, 5, 7)
    assert images_NCHW.dtype == dtype
    assert images_NCHW.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(images_NCHW.float(), expected, atol=tolerance, rtol=tolerance)
