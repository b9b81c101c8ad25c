"""The rate of fetching alone."""

import time
from dataclasses import replace
from functools import partial
from itertools import count
from types import SimpleNamespace
from urllib.parse import unquote

import pytest

from dataprep.errors import UnansweredError
from loaders.config import LoaderConfig
from loaders.diagnosis import fetch_rate
from loaders.diagnosis.diagnose import diagnose
from loaders.diagnosis.fetch_rate import Attempt, fetch_rate_alone, gentler, wait_for_reads_left_behind, with_full_cache
from loaders.diagnosis.findings import Option
from loaders.diagnosis.observed_run import RunSetup, parse_simulated
from loaders.diagnosis.prediction import predict
from loaders.fetch.cache import HEADER
from tests.loaders.diagnosis.test_stages import opened
from tests.support.gcs_emulator import GCSEmulator
from tests.support.given_rates import FAST, GivenRates, give_rates

CONFIG = LoaderConfig(batch_size=4, image_size=32, threads=2, prefetch_batches=2)


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


def test_requests_of_all_processes_are_in_flight(bucket_dataset):
    config = replace(CONFIG, batch_size=8, prefetch_batches=4, reads_in_flight=8)
    with RunSetup(url=bucket_dataset("imagefolder"), split="train", config=config).open() as loader:
        one = fetch_rate_alone(loader, config, 0.1, 0.0)
        two = fetch_rate_alone(loader, replace(config, processes=2), 0.1, 0.0)
    assert one.in_flight == two.in_flight == 8


SLOW_CONFIG = LoaderConfig(batch_size=8, image_size=32, threads=2, prefetch_batches=2, deadline_s=0.5)
PATIENT = replace(SLOW_CONFIG, deadline_s=30.0)
"""For runs whose reads get their answers."""
DEVICE = parse_simulated("simulated:1000")


def test_a_read_that_is_too_slow_alone_gets_a_longer_deadline(bucket_dataset, set_latency, monkeypatch):
    """Minutes, so that a machine which stands still does not decide which reads are in time."""
    monkeypatch.setattr(fetch_rate, "LONGER", 400)
    monkeypatch.setattr(fetch_rate, "MOST_DEADLINE_S", 1_000.0)
    config = replace(SLOW_CONFIG, deadline_s=0.75)
    setup = RunSetup(url=bucket_dataset("imagefolder"), split="train", config=config)
    set_latency(900)
    attempt = gentler(setup, setup)
    with attempt.setup.open() as loader:
        assert next(iter(loader)).mask.all()
    assert attempt.setup == replace(setup, config=replace(config, deadline_s=300.0))
    assert attempt.note == (
        "Even alone, a read gets no answer within 0.75 s, which ends the run: it was measured with a deadline of 300 s "
        "(deadline_s=300)."
    )
    assert not attempt.is_narrow


def test_reads_are_halved_down_to_one_for_each_process(bucket_dataset):
    setup = RunSetup(url=bucket_dataset("imagefolder"), split="train", config=replace(PATIENT, processes=2), options={})
    tried, reads = setup, []
    while (attempt := gentler(setup, tried)) is not None:
        tried = attempt.setup
        reads.append(tried.config.reads_in_flight)
        assert attempt.note.endswith(f"measured with {reads[-1]} (reads_in_flight={reads[-1]}).")
    assert reads == [8, 4, 2]


def test_the_options_of_a_training_are_named(bucket_dataset):
    options = {"reads_in_flight": Option("--reads")}
    setup = RunSetup(url=bucket_dataset("imagefolder"), split="train", config=PATIENT, options=options)
    attempt = gentler(setup, setup)
    assert attempt.note.endswith("it was measured with 8 (--reads 8).")
    assert attempt.setup.config.batch_size == SLOW_CONFIG.batch_size, "a training may need its own batches"


def test_few_reads_are_measured_in_small_batches(bucket_dataset):
    config = replace(PATIENT, batch_size=96, prefetch_batches=3)
    asked = RunSetup(url=bucket_dataset("imagefolder"), split="train", config=config)
    attempt = gentler(asked, replace(asked, config=replace(config, reads_in_flight=16)))
    assert (attempt.setup.config.reads_in_flight, attempt.setup.config.batch_size, attempt.batches) == (8, 6, 16)
    assert attempt.note.endswith("it was measured with 8 (--reads-in-flight 8), in batches of 6 images.")
    assert attempt.is_narrow


def test_a_server_that_is_gone_ends_the_diagnosis(bucket_dataset, monkeypatch):
    with GCSEmulator() as gone:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gone.url)
    setup = RunSetup(url=bucket_dataset("imagefolder"), split="train", config=replace(SLOW_CONFIG, deadline_s=0.3))
    with pytest.raises(UnansweredError, match="deadline_s"):
        diagnose(setup, DEVICE, seconds=0.5)


CACHED_CONFIG = LoaderConfig(batch_size=4, image_size=32, threads=2, prefetch_batches=2, reads_in_flight=4)
LATENCY_MS = 200
FIRST_EPOCH = 4 / 0.2
"""Images/s while every image is requested from the bucket: four at a time of 200 ms each."""
NOTE = "Measured from a full cache, as from the second epoch on."


@pytest.fixture
def far_url(bucket_dataset, set_latency):
    """A dataset of a file for each image, in a far bucket."""
    url = bucket_dataset("imagefolder")
    set_latency(LATENCY_MS)
    return url


def images_read(gcs) -> int:
    """Number of reads of images since the last call."""
    return sum(".JPEG" in unquote(what) for _, _, what in gcs.recorded())


def test_a_run_with_an_empty_cache_is_measured_from_a_full_one(far_url, gcs, tmp_path):
    config = replace(CACHED_CONFIG, cache_dir=str(tmp_path / "cache"))
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


def test_fetching_from_a_full_cache_has_no_latency(far_url, gcs, tmp_path, rates):
    """More images in flight than reads, as in most runs: then the latency of a read counts."""
    is_given = rates()
    config = replace(CACHED_CONFIG, batch_size=16, cache_dir=str(tmp_path / "cache"))
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
    config = replace(CACHED_CONFIG, cache_dir=str(tmp_path / "cache"), cache_bytes=20_000)
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
    far_url, set_latency, tmp_path, time_for_two_batches
):
    config = replace(CACHED_CONFIG, cache_dir=str(tmp_path / "cache"))
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
        set_latency(0)
        assert with_full_cache(Attempt(setup), loader, asked.append).cache == NOTE
    assert kept < {path.name for path in (tmp_path / "cache").glob("*.piece")}


def test_of_a_run_whose_cache_is_left_out_no_cache_is_advised(far_url, tmp_path, monkeypatch, time_for_two_batches):
    give_rates(monkeypatch, FAR)
    monkeypatch.setattr("loaders.diagnosis.fetch_rate.with_full_cache", partial(with_full_cache, fill_s=TWO_BATCHES_S))
    config = replace(CACHED_CONFIG, cache_dir=str(tmp_path / "cache"))
    setup, device = RunSetup(url=far_url, split="train", config=config), parse_simulated("simulated:120")
    time_for_two_batches()
    found = diagnose(setup, device, seconds=0.1)
    assert found.cache in found.verdict and "in 2 s it got 8 of " in found.cache
    assert "cache" not in {fix.name for fix in found.fixes}


def test_a_run_without_a_cache_or_from_a_disk_stays_as_it_is(bucket_dataset, dataset, tmp_path):
    for url, cache_dir in ((bucket_dataset("imagefolder"), None), (str(dataset("imagefolder")), str(tmp_path / "no"))):
        attempt = Attempt(RunSetup(url=url, split="train", config=replace(CACHED_CONFIG, cache_dir=cache_dir)))
        with attempt.setup.open() as loader:
            assert with_full_cache(attempt, loader, lambda what: None) == attempt
    assert not (tmp_path / "no").exists()


def test_reads_as_if_images_were_smaller_leave_no_bytes_in_the_users_cache(bucket_dataset, tmp_path):
    """Pieces of smaller images are filled up with zeros, which a training would take for images."""
    config = replace(CACHED_CONFIG, cache_dir=str(tmp_path / "cache"))
    with RunSetup(url=bucket_dataset("imagefolder"), split="train", config=config).open() as loader:
        fetch_rate_alone(loader, config, 0.1, 0.0, share=0.1)
    pieces = [path.read_bytes()[HEADER.size :] for path in tmp_path.glob("cache/*.piece")]
    assert [piece for piece in pieces if piece.endswith(bytes(64))] == []
