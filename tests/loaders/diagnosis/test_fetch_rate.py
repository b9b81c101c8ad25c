"""The rate of fetching alone."""

import pytest

from loaders.config import LoaderConfig
from loaders.diagnosis.fetch_rate import fetch_rate_alone
from loaders.diagnosis.observed_run import RunSetup

CONFIG = LoaderConfig(batch_size=4, image_size=32, threads=2, prefetch_batches=2)
BYTES_PER_S = 4e6


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
