"""Runs with a cache on a local disk: all of their rates are those of the epochs after the first."""

import re
import time
from dataclasses import replace
from functools import partial
from itertools import count
from types import SimpleNamespace
from urllib.parse import unquote

import pytest

from loaders.config import LoaderConfig
from loaders.diagnosis import fetch_rate
from loaders.diagnosis.devices import parse_simulated
from loaders.diagnosis.diagnose import apply_best, diagnose
from loaders.diagnosis.fetch_rate import fetch_rate_alone
from loaders.diagnosis.full_cache import with_full_cache
from loaders.diagnosis.observed_run import RunSetup
from loaders.diagnosis.prediction import predict
from loaders.diagnosis.slow_link import Attempt
from loaders.fetch.cache import HEADER
from tests.loaders.diagnosis.test_stages import opened
from tests.support.given_rates import FAST, GivenRates, give_rates

CONFIG = LoaderConfig(batch_size=4, image_size=32, threads=2, prefetch_batches=2, reads_in_flight=4)
LATENCY_MS = 200
FIRST_EPOCH = 4 / 0.2
"""Images/s while every image is requested from the bucket: four at a time of 200 ms each."""
NOTE = "Measured from a full cache, as from the second epoch on."


@pytest.fixture
def far_url(bucket_dataset, gcs):
    """A dataset of a file for each image, in a far bucket."""
    url = bucket_dataset("imagefolder")
    gcs.set_latency(LATENCY_MS)
    yield url
    gcs.set_latency(0)


def images_read(gcs) -> int:
    """Number of reads of images since the last call."""
    return sum(".JPEG" in unquote(what) for _, _, what in gcs.recorded())


def test_a_run_with_an_empty_cache_is_measured_from_a_full_one(far_url, gcs, tmp_path):
    config = replace(CONFIG, cache_dir=str(tmp_path / "cache"))
    setup = RunSetup(url=far_url, split="train", config=config)
    asked, reads = [], []

    def said(what):
        asked.append(what)
        reads.append(images_read(gcs))

    gcs.record()
    found = diagnose(setup, parse_simulated("simulated:120"), seconds=0.4, progress=said)
    reads.append(images_read(gcs))
    gcs.record(False)

    filling = next(number for number, what in enumerate(asked) if what.startswith("filling the cache: "))
    run = asked.index("the run as it is")
    assert filling < run
    # The last ones that were hedged may end late; without a cache every measurement reads the images again.
    assert sum(reads[run + 1 :]) < sum(reads[filling : run + 1]) / 4
    assert found.cache == NOTE
    assert NOTE in found.verdict
    assert {"cache", "location"}.isdisjoint(fix.name for fix in found.fixes)


@pytest.mark.long
def test_a_run_with_a_cache_is_as_fast_as_epochs_after_the_first(far_url, tmp_path):
    setup = RunSetup(url=far_url, split="train", config=replace(CONFIG, cache_dir=str(tmp_path / "cache")))
    found = diagnose(setup, parse_simulated("simulated:120"), seconds=0.4)
    assert found.observed_images_per_s > 2 * FIRST_EPOCH
    assert found.predicted_images_per_s > 2 * FIRST_EPOCH


def test_fetching_from_a_full_cache_has_no_latency(far_url, gcs, tmp_path, rates):
    """More images in flight than reads, as in most runs: then the latency of a read counts."""
    is_given = rates()
    config = replace(CONFIG, batch_size=16, cache_dir=str(tmp_path / "cache"))
    setup = RunSetup(url=far_url, split="train", config=config)
    with setup.open() as loader:
        with_full_cache(Attempt(setup), loader, lambda what: None)
        stages = opened(setup, loader, tmp_path / "stages", seconds=0.1)
        stages.measure_stages(0.0)
        found = stages.rates(setup)
        gcs.record()
        images_read(gcs)
        tried = stages.tried_smaller(config.short_side)
        read_again = images_read(gcs)
        gcs.record(False)

    assert found.batches.fetch_latency_s == 0.0
    round_trips = 2 * 16 / 0.2
    assert predict(found).images_per_s > 1.5 * round_trips or predict(found).limit == "cores"
    assert read_again == 0, "smaller images come from the cache, too"
    assert is_given or tried > FIRST_EPOCH


def test_a_cache_that_cannot_hold_the_split_is_left_out(bucket_dataset, tmp_path):
    config = replace(CONFIG, cache_dir=str(tmp_path / "cache"), cache_bytes=20_000)
    setup = RunSetup(url=bucket_dataset("imagefolder"), split="train", config=config)
    with setup.open() as loader:
        attempt = with_full_cache(Attempt(setup), loader, lambda what: None)
    assert attempt.setup == replace(setup, config=replace(config, cache_dir=None))
    assert attempt.cache.startswith("Measured without the cache, as in the first epoch: it holds at most 20.0 kB of ")


TWO_BATCHES_S = 2.5
"""Limit of `time_for_two_batches`: the clock is looked at before each batch, and shows a second more each time."""


FAR = GivenRates(fetch=lambda config: FAST if config.cache_dir else FIRST_EPOCH, latency_s=0.2)


@pytest.fixture
def time_for_two_batches(monkeypatch):
    """Function after whose call a cache is filled with two batches of images, however long they take."""

    def begin():
        clock = SimpleNamespace(monotonic=count().__next__, perf_counter=time.perf_counter)
        monkeypatch.setattr(fetch_rate, "time", clock)

    return begin


def test_a_cache_that_is_not_full_in_time_is_left_out_and_the_next_diagnosis_fills_it(
    far_url, gcs, tmp_path, time_for_two_batches
):
    config = replace(CONFIG, cache_dir=str(tmp_path / "cache"))
    setup = RunSetup(url=far_url, split="train", config=config)
    asked = []
    time_for_two_batches()
    with setup.open() as loader:
        total = loader.order.num_samples
        attempt = with_full_cache(Attempt(setup), loader, asked.append, fill_s=TWO_BATCHES_S)
        kept = {path.name for path in (tmp_path / "cache").glob("*.piece")}
        assert 8 <= len(kept) < total
        assert asked[0].endswith(", for at most 2 s") and asked[0].startswith("filling the cache: ")
        assert attempt.setup == replace(setup, config=replace(config, cache_dir=None))
        assert attempt.cache == (
            f"Measured without the cache, as in the first epoch: in 2 s it got 8 of {total} images. It keeps them; "
            "the next diagnosis continues from there."
        )
        gcs.set_latency(0)
        assert with_full_cache(Attempt(setup), loader, asked.append).cache == NOTE
    assert kept < {path.name for path in (tmp_path / "cache").glob("*.piece")}


def test_of_a_run_whose_cache_is_left_out_no_cache_is_advised(far_url, tmp_path, monkeypatch, time_for_two_batches):
    give_rates(monkeypatch, FAR)
    monkeypatch.setattr("loaders.diagnosis.diagnose.with_full_cache", partial(with_full_cache, fill_s=TWO_BATCHES_S))
    config = replace(CONFIG, cache_dir=str(tmp_path / "cache"))
    setup, device = RunSetup(url=far_url, split="train", config=config), parse_simulated("simulated:120")
    time_for_two_batches()
    found = diagnose(setup, device, seconds=0.1)
    assert found.cache in found.verdict and "in 2 s it got 8 of " in found.cache
    assert "cache" not in {fix.name for fix in found.fixes}


def test_a_cache_that_is_advised_but_not_full_in_time_is_not_tried(far_url, monkeypatch, time_for_two_batches):
    give_rates(monkeypatch, FAR)
    setup, device = RunSetup(url=far_url, split="train", config=CONFIG), parse_simulated("simulated:120")
    found = diagnose(setup, device, seconds=0.1)
    (advised,) = [fix for fix in found.fixes if fix.name == "cache"]
    time_for_two_batches()
    tried = apply_best(setup, device, replace(found, fixes=(advised,)), seconds=0.1, fill_s=TWO_BATCHES_S)
    assert tried.applied is None
    assert re.search(r" The cache was not tried: in 2 s it got 8 of \d+ images\.$", tried.verdict)


def test_a_run_without_a_cache_or_from_a_disk_stays_as_it_is(bucket_dataset, dataset, tmp_path):
    for url, cache_dir in ((bucket_dataset("imagefolder"), None), (str(dataset("imagefolder")), str(tmp_path / "no"))):
        attempt = Attempt(RunSetup(url=url, split="train", config=replace(CONFIG, cache_dir=cache_dir)))
        with attempt.setup.open() as loader:
            assert with_full_cache(attempt, loader, lambda what: None) == attempt
    assert not (tmp_path / "no").exists()


def test_reads_as_if_images_were_smaller_leave_no_bytes_in_the_users_cache(bucket_dataset, tmp_path):
    """Pieces of smaller images are filled up with zeros, which a training would take for images."""
    config = replace(CONFIG, cache_dir=str(tmp_path / "cache"))
    with RunSetup(url=bucket_dataset("imagefolder"), split="train", config=config).open() as loader:
        fetch_rate_alone(loader, config, 0.1, 0.0, share=0.1)
    pieces = [path.read_bytes()[HEADER.size :] for path in tmp_path.glob("cache/*.piece")]
    assert [piece for piece in pieces if piece.endswith(bytes(64))] == []
