"""The rates of stages other than fetching, alone."""

import pytest

from loaders import open_loader
from loaders.diagnosis.devices import parse_simulated
from loaders.diagnosis.stage_rates import compute_rate, request_latency_s, transfer_rate
from tests.support.slow_storage import SlowStorage


@pytest.fixture
def loader(dataset):
    with open_loader(str(dataset("webdataset")), batch_size=8, image_size=32) as opened:
        yield opened


def test_a_simulated_device_alone_is_no_faster_than_its_name_says(loader):
    device = parse_simulated("simulated:800,transfer=1600")
    batch = next(iter(loader))
    compute, transfer = compute_rate(device, batch, 0.3, 0.0), transfer_rate(device, batch, 0.3, 0.0)
    assert (compute.name, transfer.name) == ("compute", "transfer")
    assert 0 < compute.images_per_s <= 800  # a busy machine makes each slower, never faster
    assert 0 < transfer.images_per_s <= 1600


def test_the_latency_is_that_of_a_slow_bucket(loader):
    slow = SlowStorage(loader.dataset.storage.root, latency_s=0.02)
    loader.dataset.__dict__["storage"] = slow
    assert request_latency_s(loader, tries=2) >= 0.02
    assert len(slow.requests) == 2
