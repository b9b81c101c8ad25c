"""A run that is watched, and fetching alone: both have the rate of the link, however batches come."""

from dataclasses import replace

import pytest

from loaders.config import LoaderConfig
from loaders.diagnosis.devices import parse_simulated
from loaders.diagnosis.feed import FedStep
from loaders.diagnosis.fetch_rate import fetch_rate_alone
from loaders.diagnosis.findings import StepTimes
from loaders.diagnosis.observed_run import MAX_LONGER, RunSetup, _observe, observe, reads_in_flight

CONFIG = LoaderConfig(batch_size=4, image_size=32, threads=2, prefetch_batches=2)
BYTES_PER_S = 4e6
FAST = parse_simulated("simulated:1e9")


def steps_at(ends_s):
    """Steps of eight images that end at these times."""
    nothing = StepTimes(started_s=0.0, wait_s=0.0, transfer_s=0.0, compute_s=0.0)
    return (FedStep(nothing, 8, end_s) for end_s in ends_s)


@pytest.mark.parametrize("seconds", [0.5, 1.0, 1.2, 1.5])
@pytest.mark.parametrize("warm_up", [4, 5, 6, 7])
def test_batches_that_arrive_in_bursts_are_counted_in_whole_bursts(seconds, warm_up):
    """Four batches every 0.4 s: 80 images/s, wherever in a burst the measurement begins, and however long it is."""
    bursts = steps_at(0.4 * (number // 4) for number in range(1000))
    assert _observe(bursts, warm_up, seconds, 4).images_per_s == pytest.approx(80)


def test_a_run_of_few_steps_is_watched_for_longer_but_not_for_ever():
    assert len(_observe(steps_at(0.3 * number for number in range(100)), 2, 1.0, 1).steps) == 8
    rare = _observe(steps_at(3.0 * number for number in range(100)), 2, 1.0, 1).steps
    assert rare[-1].ended_s - 6.0 == pytest.approx(6.0)
    assert rare[-1].ended_s - 6.0 > MAX_LONGER


@pytest.mark.long
@pytest.mark.parametrize("reads_in_flight", [16, 32])
def test_the_measured_rate_is_that_of_the_link_even_if_batches_arrive_in_bursts(bucket_dataset, gcs, reads_in_flight):
    config = replace(CONFIG, batch_size=8, reads_in_flight=reads_in_flight, prefetch_batches=4)
    setup = RunSetup(url=bucket_dataset("webdataset"), split="train", config=config)
    with setup.open() as loader:
        gcs.set_bandwidth(BYTES_PER_S)
        try:
            found = fetch_rate_alone(loader, config, 1.0, 0.0)
            whole = observe(setup, FAST, 1.0).images_per_s
        finally:
            gcs.set_bandwidth(None)

    carried = BYTES_PER_S / found.bytes_per_image
    assert found.rate.images_per_s == pytest.approx(carried, rel=0.25)
    assert whole == pytest.approx(carried, rel=0.25)


def test_processes_share_a_number_of_requests_that_is_set_and_have_the_usual_one_each(bucket_dataset):
    with RunSetup(url=bucket_dataset("webdataset"), split="train", config=CONFIG).open() as loader:
        storage = loader.dataset.storage
    usual = reads_in_flight(storage, CONFIG)
    assert reads_in_flight(storage, replace(CONFIG, processes=2)) == 2 * usual
    assert reads_in_flight(storage, replace(CONFIG, processes=2, reads_in_flight=9)) == 8
    assert reads_in_flight(storage, replace(CONFIG, processes=4, reads_in_flight=2)) == 4
