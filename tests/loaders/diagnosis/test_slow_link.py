"""Links on which the reads of a run get no answer in time: the run is measured with fewer at once, or waits longer."""

from dataclasses import replace

import pytest

from dataprep.errors import UnansweredError
from loaders.config import LoaderConfig
from loaders.diagnosis import slow_link
from loaders.diagnosis.devices import parse_simulated
from loaders.diagnosis.diagnose import apply_best, diagnose
from loaders.diagnosis.observed_run import RunSetup, observe
from loaders.diagnosis.options import Option
from loaders.diagnosis.slow_link import gentler
from tests.support.gcs_emulator import GCSEmulator

CONFIG = LoaderConfig(batch_size=8, image_size=32, threads=2, prefetch_batches=2, deadline_s=0.5)
PATIENT = replace(CONFIG, deadline_s=30.0)
"""For runs whose reads get their answers."""
READS = 16
"""Reads that this run has in flight: its batches ahead have no more images."""
BYTES_PER_S, TURN_BYTES = 3e6, 75_000
"""A turn takes 25 ms: with 16 reads each pauses for 0.4 s, with 4 for 0.1 s; a run waits 0.2 s."""
DEVICE = parse_simulated("simulated:1000")


@pytest.fixture
def slow_url(bucket_dataset, gcs):
    """A dataset behind a narrow link with a long queue."""
    url = bucket_dataset("imagefolder")
    gcs.set_bandwidth(BYTES_PER_S, TURN_BYTES)
    yield url
    gcs.set_bandwidth(None)


@pytest.mark.long
def test_a_link_too_slow_for_the_reads_in_flight_is_diagnosed_with_fewer_of_them(slow_url):
    setup = RunSetup(url=slow_url, split="train", config=CONFIG)
    with pytest.raises(UnansweredError):
        observe(setup, DEVICE, 0.5)

    asked: list[str] = []
    found = diagnose(setup, DEVICE, seconds=0.3, progress=asked.append)

    assert "the run over a slow link" in asked
    reads = found.settings["reads_in_flight"]
    assert reads in (8, 4, 2, 1)
    batch_size = found.settings["batch_size"]
    batches = f", in batches of {batch_size} images" if batch_size < CONFIG.batch_size else ""
    assert found.slow_link == (
        f"With {READS} reads in flight some get no answer within 0.5 s, which ends the run: it was measured with "
        f"{reads} (--reads-in-flight {reads}){batches}."
    )
    assert CONFIG.prefetch_batches * batch_size >= 2 * reads, "room for the reads, twice"
    assert found.slow_link in found.verdict
    if not found.undecided:  # other tests may keep the machine busy
        assert found.limit == "fetch"
        assert found.verdict.startswith("The link to the bucket is the limit")
    fetch = next(stage for stage in found.stages if stage.name == "fetch")
    assert fetch.images_per_s * found.bytes_per_image == pytest.approx(BYTES_PER_S, rel=0.4)
    assert {"prefetch", "batch"}.isdisjoint(fix.name for fix in found.fixes)
    applied = apply_best(setup, DEVICE, replace(found, fixes=found.fixes[:1]), seconds=0.5).applied
    assert applied is None or applied.measured_images_per_s > 0


def test_a_read_that_is_too_slow_alone_gets_a_longer_deadline(bucket_dataset, gcs, monkeypatch):
    """Minutes, so that a machine which stands still does not decide which reads are in time."""
    monkeypatch.setattr(slow_link, "LONGER", 400)
    monkeypatch.setattr(slow_link, "MOST_DEADLINE_S", 1_000.0)
    config = replace(CONFIG, deadline_s=0.75)
    setup = RunSetup(url=bucket_dataset("imagefolder"), split="train", config=config)
    gcs.set_latency(900)
    try:
        attempt = gentler(setup, setup)
        with attempt.setup.open() as loader:
            assert next(iter(loader)).mask.all()
    finally:
        gcs.set_latency(0)
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
    assert attempt.setup.config.batch_size == CONFIG.batch_size, "a training may need its own batches"


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
    setup = RunSetup(url=bucket_dataset("imagefolder"), split="train", config=replace(CONFIG, deadline_s=0.3))
    with pytest.raises(UnansweredError, match="deadline_s"):
        diagnose(setup, DEVICE, seconds=0.5)
