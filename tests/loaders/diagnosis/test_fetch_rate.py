"""The rate of fetching alone."""

from dataclasses import replace

import pytest

from loaders.config import LoaderConfig
from loaders.diagnosis.fetch_rate import fetch_rate_alone
from loaders.diagnosis.observed_run import RunSetup
from loaders.diagnosis.slow_link import wait_for_reads_left_behind

CONFIG = LoaderConfig(batch_size=4, image_size=32, threads=2, prefetch_batches=2)
BYTES_PER_S = 4e6


def mean_read_bytes(gcs, measure):
    """Return the mean size of what was read from the bucket meanwhile, without the index and such."""
    before = gcs.stats()
    measure()
    wait_for_reads_left_behind()
    after = gcs.stats()
    return (after["bytes_served"] - before["bytes_served"]) / (after["operations"]["B"] - before["operations"]["B"])


def test_a_share_of_the_bytes_of_every_image_is_read(bucket_dataset, gcs):
    with RunSetup(url=bucket_dataset("imagefolder"), split="train", config=CONFIG).open() as loader:
        whole = mean_read_bytes(gcs, lambda: fetch_rate_alone(loader, CONFIG, 0.3, 0.0))
        short = mean_read_bytes(gcs, lambda: fetch_rate_alone(loader, CONFIG, 0.3, 0.0, share=0.1))
    assert short < 0.5 * whole


@pytest.mark.long
def test_reading_a_share_of_the_bytes_takes_that_share_of_the_time(bucket_dataset, gcs):
    setup = RunSetup(url=bucket_dataset("imagefolder"), split="train", config=CONFIG)
    with setup.open() as loader:
        gcs.set_bandwidth(BYTES_PER_S)
        try:
            whole = fetch_rate_alone(loader, CONFIG, 0.5, 0.0)
            short = fetch_rate_alone(loader, CONFIG, 0.5, 0.0, share=0.1)
        finally:
            gcs.set_bandwidth(None)

    assert short.rate.images_per_s > 3 * whole.rate.images_per_s
    assert short.bytes_per_image == pytest.approx(whole.bytes_per_image, rel=0.5), "filled up with zeros"


def test_requests_of_all_processes_are_in_flight(bucket_dataset):
    config = replace(CONFIG, batch_size=8, prefetch_batches=4, reads_in_flight=8)
    with RunSetup(url=bucket_dataset("imagefolder"), split="train", config=config).open() as loader:
        one = fetch_rate_alone(loader, config, 0.1, 0.0)
        two = fetch_rate_alone(loader, replace(config, processes=2), 0.1, 0.0)
    assert one.in_flight == two.in_flight == 8


@pytest.mark.long
def test_worker_processes_have_all_their_requests_in_flight(bucket_dataset, gcs):
    """Eight reads at a time of 100 ms each: 80 images/s, whether one process makes them or two make four each."""
    config = replace(CONFIG, batch_size=8, prefetch_batches=4, reads_in_flight=8)
    with RunSetup(url=bucket_dataset("imagefolder"), split="train", config=config).open() as loader:
        gcs.set_latency(100)
        try:
            one = fetch_rate_alone(loader, config, 0.5, 0.0)
            two = fetch_rate_alone(loader, replace(config, processes=2), 0.5, 0.0)
        finally:
            gcs.set_latency(0)

    assert one.in_flight == two.in_flight == 8
    assert two.rate.images_per_s == pytest.approx(one.rate.images_per_s, rel=0.3)
