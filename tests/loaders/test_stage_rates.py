"""Stages alone, in a bucket: batches that come in bursts, and reads of images as if they were smaller."""

from dataclasses import replace

import pytest

from loaders.config import LoaderConfig
from loaders.devices import parse_simulated
from loaders.stage_rates import fetch_rate_alone
from loaders.trial import Setup, observe

CONFIG = LoaderConfig(batch_size=4, image_size=32, threads=2, prefetch_batches=2)
BYTES_PER_S = 4e6


@pytest.mark.parametrize("reads_in_flight", [16, 32])
def test_a_rate_is_that_of_the_link_however_batches_come(bucket_dataset, gcs, reads_in_flight):
    config = replace(CONFIG, batch_size=8, reads_in_flight=reads_in_flight, prefetch_batches=4)
    setup = Setup(url=bucket_dataset("webdataset"), split="train", config=config)
    with setup.open() as loader:
        gcs.set_bandwidth(BYTES_PER_S)
        try:
            found = fetch_rate_alone(loader, config, 1.0, 0.0)
            whole = observe(setup, parse_simulated("simulated:1e9"), 1.0).images_per_s
        finally:
            gcs.set_bandwidth(None)

    carried = BYTES_PER_S / found.bytes_per_image
    assert found.rate.images_per_s == pytest.approx(carried, rel=0.25)
    assert whole == pytest.approx(carried, rel=0.25)


def test_a_share_of_every_read_takes_a_share_of_the_time(bucket_dataset, gcs):
    setup = Setup(url=bucket_dataset("imagefolder"), split="train", config=CONFIG)
    with setup.open() as loader:
        gcs.set_bandwidth(BYTES_PER_S)
        try:
            whole = fetch_rate_alone(loader, CONFIG, 0.5, 0.0)
            short = fetch_rate_alone(loader, CONFIG, 0.5, 0.0, share=0.1)
        finally:
            gcs.set_bandwidth(None)

    assert short.rate.images_per_s > 3 * whole.rate.images_per_s
    assert short.bytes_per_image == pytest.approx(whole.bytes_per_image, rel=0.5), "filled up with zeros"
