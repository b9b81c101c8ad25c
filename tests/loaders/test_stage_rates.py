"""Stages alone, in a bucket: a cache that is filled for a run, and reads of images as if they were smaller."""

from dataclasses import replace

import pytest

from loaders.config import LoaderConfig
from loaders.devices import parse_simulated
from loaders.stage_rates import fetch_rate_alone, fill_cache
from loaders.trial import Setup, observe, steps_ahead

CONFIG = LoaderConfig(batch_size=4, image_size=32, threads=2, prefetch_batches=2)
BYTES_PER_S = 4e6


@pytest.mark.parametrize("fmt", ["webdataset", "imagefolder"])
def test_a_filled_cache_feeds_the_first_batches_of_a_run(bucket_dataset, gcs, tmp_path, fmt):
    config = replace(CONFIG, cache_dir=str(tmp_path))
    setup = Setup(url=bucket_dataset(fmt), split="train", config=config)
    with setup.open() as loader:
        filled = fill_cache(loader, config, 0.3)
        read_before = gcs.stats()["operations"]["B"]
        steps = filled - 2 * steps_ahead(setup)
        found = observe(setup, parse_simulated("simulated:1e9"), 60.0, most_steps=steps)
        read = gcs.stats()["operations"]["B"] - read_before

    assert steps > 0
    assert len(found.steps) == steps
    assert read < filled * config.batch_size / 4, "the index and the manifest, no images"


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
