"""The stages of a run, as they are and as changes would make them."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dataprep.host.cpu import available_cores
from dataprep.messages import human_bytes
from dataprep.storage.local import LocalStorage
from loaders import open_loader
from loaders.config import LoaderConfig
from loaders.diagnosis import diagnose as diagnosing
from loaders.diagnosis import stages as diagnosis_stages
from loaders.diagnosis.diagnose import find_fixes
from loaders.diagnosis.fetch_rate import Attempt
from loaders.diagnosis.findings import StageRate, TransformCost
from loaders.diagnosis.observed_run import RunSetup, parse_simulated
from loaders.diagnosis.prediction import MORE_AHEAD, MOST_READS, predict
from loaders.diagnosis.sample import write_sample
from loaders.diagnosis.stages import (
    Stages,
    compute_rate,
    holds_lock,
    prepare_rate,
    request_latency_s,
    transfer_rate,
    transform_cost,
    waits_for_no_core,
)
from loaders.diagnosis.verdict import Measured
from loaders.engine.stats import StageTimes
from tests.support.adoption import adopt_here
from tests.support.given_rates import FAST as FAST_RATE
from tests.support.given_rates import GivenRates
from tests.support.own_data import class_folders
from tests.support.slow_storage import SlowStorage
from tests.support.virtual_time import measure_in_virtual_time

CONFIG = LoaderConfig(batch_size=4, image_size=32, threads=2, prefetch_batches=2)
FAST = parse_simulated("simulated:1e9")
DISK_BYTES_PER_S = 6e5
CLOSE = 0.3
"""Between a prediction and a trial: they read other images, and in a watched run other programs run beside both."""


class VirtualDisk:
    """A slow disk, whose reads take virtual time; nothing else takes any."""

    seconds = 3.0
    """Length of a measurement."""

    def __init__(self, monkeypatch):
        self._patch, self._clock, self._turns = monkeypatch, measure_in_virtual_time(monkeypatch), threading.Lock()
        for name in ("compute_rate", "transfer_rate", "prepare_rate"):
            monkeypatch.setattr(diagnosis_stages, name, getattr(GivenRates(), name))

    def take(self, cost_s):
        """Let a read take its time, when those before it are done."""
        with self._turns:
            self._clock.sleep(cost_s)

    def pace(self, paced_url, cost_s):
        """Let reads of a folder take turns.

        Args:
            paced_url: The folder.
            cost_s: Function that returns the seconds of a read of so many bytes.
        """
        read_range = LocalStorage.read_range

        def paced(storage, name, offset, num_bytes, *version, **size):
            if storage.url == paced_url:
                self.take(cost_s(num_bytes))
            return read_range(storage, name, offset, num_bytes, *version, **size)

        self._patch.setattr(LocalStorage, "read_range", paced)


class SleepingDisk(VirtualDisk):
    """A slow disk, for whose reads this machine waits."""

    seconds = 1.0

    def __init__(self, monkeypatch):
        self._patch, self._turns, self._free_s = monkeypatch, threading.Lock(), 0.0

    def take(self, cost_s):
        with self._turns:
            self._free_s = until_s = max(self._free_s, time.perf_counter()) + cost_s
        time.sleep(max(0.0, until_s - time.perf_counter()))


@pytest.fixture(params=[VirtualDisk, pytest.param(SleepingDisk, marks=pytest.mark.long)])
def disk(request, monkeypatch):
    """A slow disk."""
    return request.param(monkeypatch)


def opened(setup, loader, folder, seconds=1.0) -> Stages:
    return Stages(
        attempt=Attempt(setup),
        device=FAST,
        loader=loader,
        batch=next(iter(loader)),
        busy_cores=0.0,
        seconds=seconds,
        folder=folder,
        progress=lambda what: None,
    )


def found_run(predicted, limit, observed=None) -> Measured:
    """Return a run that meets its prediction, unless another rate was observed."""
    return Measured(observed=observed or predicted.images_per_s, predicted=predicted, stage_limit=limit)


@pytest.mark.parametrize("fmt", ["webdataset", "imagefolder"])
def test_smaller_images_are_offered_on_a_disk_that_carries_too_few_bytes(dataset, tmp_path, disk, fmt):
    config = replace(CONFIG, image_size=64)
    setup = RunSetup(url=str(dataset(fmt)), split="train", config=config)
    with setup.open() as loader:
        stages = opened(setup, loader, tmp_path / "stages", disk.seconds)
        disk.pace(loader.dataset.storage.url, lambda num_bytes: num_bytes / DISK_BYTES_PER_S)
        predicted, fixes = measured(stages)
        share = stages.shrunk(config.short_side)[1] / stages.bytes_per_image
        tried = stages.tried_smaller(config.short_side)

    assert predicted.limit == "fetch"
    assert share < 0.5
    resized = fixes["resize"]
    assert resized.predicted_images_per_s == pytest.approx(predicted.images_per_s / share, rel=CLOSE)
    assert tried == pytest.approx(resized.predicted_images_per_s, rel=CLOSE)


def test_smaller_images_are_not_offered_where_they_would_be_no_smaller(tmp_path, disk, monkeypatch):
    """Images of 16 pixels on a disk that carries too few bytes; noise would pass for a gain."""
    monkeypatch.setattr(diagnosing, "may_gain", lambda *_: True)
    adopt_here(class_folders(tmp_path / "pets"))
    for image_size, is_offered in ((8, True), (14, False), (16, False)):
        setup = RunSetup(url=str(tmp_path / "pets"), split="train", config=replace(CONFIG, image_size=image_size))
        with setup.open() as loader:
            stages = opened(setup, loader, tmp_path / f"stages-{image_size}", seconds=0.1)
            disk.pace(loader.dataset.storage.url, lambda num_bytes: num_bytes / 1e5)
            assert ("resize" in measured(stages)[1]) == is_offered, image_size


def measured(stages):
    """Measure all stages; return what they predict, and the changes by their names."""
    stages.measure_stages(0.0)
    predicted = predict(stages.rates(stages.setup))
    stages.observed_images_per_s = predicted.images_per_s
    found = find_fixes(stages, found_run(predicted, predicted.limit))
    return predicted, {fix.name: fix for fix in found}


def test_a_cache_and_a_nearer_bucket_are_predicted_without_the_far_buckets_latency(
    bucket_dataset, set_latency, tmp_path, rates
):
    """Four reads at a time of 200 ms each: 20 images/s as it is, and no limit to what comes out of a cache."""
    rates(fetch=lambda config: config.reads_in_flight / 0.2 if config.cache_dir is None else FAST_RATE, latency_s=0.2)
    config = replace(CONFIG, reads_in_flight=4)
    setup = RunSetup(url=bucket_dataset("imagefolder"), split="train", config=config)
    set_latency(200)
    with setup.open() as loader:
        stages = opened(setup, loader, tmp_path, seconds=0.1)
        stages.measure_stages(4 / 0.2)
        predicted = predict(stages.rates(setup))
        fixes = {fix.name: fix for fix in find_fixes(stages, found_run(predicted, "fetch"))}

    two_batches = 2 * 4 / 0.2  # are under way at once, and come every 200 ms
    kept = human_bytes(loader.dataset.split.num_bytes)
    assert fixes["cache"].advice.startswith(f"Keep what was read on a local disk, {kept}: ")
    for fix in (fixes["cache"], fixes["location"]):  # on a busy machine the processor may be the limit then
        assert fix.predicted_images_per_s > 1.5 * two_batches or fix.limit == "cores", fix


def test_a_sample_is_planned_as_the_split_and_prepared_within_the_quota(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr("loaders.diagnosis.stages.cpu_quota", lambda: 0.25)
    image = next(Path(dataset("imagefolder")).rglob("*.JPEG")).read_bytes()
    setup = RunSetup(url=str(dataset("webdataset")), split="train", config=CONFIG)
    with setup.open() as loader:
        stages = opened(setup, loader, tmp_path / "stages", seconds=0.1)
        images = loader.order.num_samples
        few, as_many = (write_sample([image] * count, tmp_path / f"{count}") for count in (images // 4, images))
        assert stages.planned_for(few, CONFIG).num_streams == pytest.approx(CONFIG.num_streams / 4, rel=0.2)
        assert stages.planned_for(as_many, CONFIG).num_streams == CONFIG.num_streams
        stages.alone = {"prepare": StageRate(name="prepare", images_per_s=100.0, cpu_s_per_image=0.004)}
        assert stages.available_cores(stages.alone) == 0.25


def test_enough_requests_for_the_next_limit_are_offered_in_one_step(bucket_dataset, set_latency, tmp_path):
    config = replace(CONFIG, reads_in_flight=2)
    setup = RunSetup(url=bucket_dataset("imagefolder"), split="train", config=config)
    set_latency(100)
    with setup.open() as loader:
        stages = opened(setup, loader, tmp_path, seconds=0.1)
        stages.measure_stages(0.0)
        changed = setup.changed(stages.ahead_settings).config
        usual = 2 * loader.dataset.storage.reads_in_flight

    assert usual <= changed.reads_in_flight <= MOST_READS
    assert changed.prefetch_batches * changed.rows >= 2 * changed.reads_in_flight


def test_more_requests_are_offered_to_a_run_below_what_its_stages_allow_until_it_reaches_that(
    bucket_dataset, set_latency, tmp_path, rates
):
    """Decoding is planted as the slowest stage; what is fetched beside it comes more slowly than alone."""
    rates(fetch=lambda config: config.reads_in_flight / 0.02, latency_s=0.02)
    config = replace(CONFIG, reads_in_flight=16, prefetch_batches=4)
    setup = RunSetup(url=bucket_dataset("imagefolder"), split="train", config=config)
    set_latency(20)
    with setup.open() as loader:
        stages = opened(setup, loader, tmp_path, seconds=0.1)
        stages.measure_stages(0.0)
        planted = {"fetch": 500.0, "prepare": 100.0, "transfer": 1e9, "compute": 1e9}
        stages.alone = {
            name: StageRate(name=name, images_per_s=rate, cpu_s_per_image=0.0) for name, rate in planted.items()
        }
        predicted = predict(stages.rates(setup))
        offered = {}
        for share in (0.85, 0.93, 1.0):
            stages.observed_images_per_s = share * predicted.images_per_s
            fixes = find_fixes(stages, found_run(predicted, "prepare", stages.observed_images_per_s))
            offered[share] = {fix.name: fix for fix in fixes if fix.name == "prefetch"}

    assert predicted.limit == "prepare"
    for share in (0.85, 0.93):
        assert offered[share]["prefetch"].predicted_images_per_s == pytest.approx(predicted.images_per_s, rel=0.05)
        assert offered[share]["prefetch"].settings["reads_in_flight"] >= 64
    assert not offered[1.0], "nothing is left to gain"


@pytest.mark.parametrize("own_cores", [0.5, 1.0])
def test_processes_are_offered_where_fetching_keeps_the_interpreter_of_one_busy(
    bucket_dataset, set_latency, tmp_path, rates, own_cores
):
    rates(latency_s=0.02)
    setup = RunSetup(url=bucket_dataset("imagefolder"), split="train", config=replace(CONFIG, reads_in_flight=16))
    set_latency(20)
    with setup.open() as loader:
        stages = opened(setup, loader, tmp_path, seconds=0.1)
        stages.measure_stages(20.0)
        slow = StageRate(name="fetch", images_per_s=20.0, cpu_s_per_image=0.0)
        stages.alone["fetch"] = slow
        stages.fetched = replace(stages.fetched, rate=slow, own_cores=own_cores, one_process_images_per_s=20.0)
        predicted = predict(stages.rates(setup))
        fixes = {fix.name: fix for fix in find_fixes(stages, found_run(predicted, "fetch"))}

    assert predicted.limit == "fetch"
    if own_cores < 1 or available_cores() == 1:
        assert "workers" not in fixes
    else:
        assert fixes["workers"].settings["processes"] == available_cores()
        assert fixes["workers"].predicted_images_per_s == pytest.approx(20 * available_cores(), rel=0.1)


def _wait(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    time.sleep(0.05)
    return pixels


def test_more_threads_are_offered_as_long_as_a_transform_waits(dataset, tmp_path, monkeypatch, rates):
    """In a watched run it is planted that it waits, which cannot be seen while other programs take the cores."""
    waiting = TransformCost(
        name=f"{__name__}:_wait",
        s_per_image=0.05,
        cpu_s_per_image=0.0,
        prepare_s_per_image=0.051,
        holds_lock=False,
        without=None,
    )
    if not rates(prepare=lambda config: config.num_threads / 0.051, transform=waiting):
        monkeypatch.setattr(Stages, "workers_wait", True)
    threads = MORE_AHEAD * available_cores()
    config = replace(CONFIG, threads=threads, prefetch_batches=16, transform=_wait)
    setup = RunSetup(url=str(dataset("webdataset")), split="train", config=config)
    with setup.open() as loader:
        _, fixes = measured(opened(setup, loader, tmp_path / "stages"))

    assert fixes["workers"].settings["threads"] == MORE_AHEAD * threads
    assert fixes["workers"].predicted_images_per_s > threads / 0.05


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
    assert request_latency_s(loader) >= 0.02
    assert len(slow.requests) == 3


class Slow:
    """A transform that is an object."""

    def __call__(self, image_HWC: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        time.sleep(0.001)
        return image_HWC


def looked(items: int, busy_s: float, cpu_s: float = 0.0) -> StageTimes:
    times = StageTimes()
    times.items = items
    times.busy_s.add(busy_s)
    times.cpu_s.add(cpu_s)
    return times


def test_the_cost_is_that_of_the_images_between_two_looks():
    config = LoaderConfig(batch_size=8, transform=Slow())
    before = {"transform": looked(10, 1.0, 0.5), "decode": looked(10, 2.0)}
    after = {"transform": looked(30, 5.0, 2.5), "decode": looked(30, 8.0)}
    cost = transform_cost(config, before, after)
    assert cost.name == f"{__name__}:Slow"
    assert (cost.s_per_image, cost.cpu_s_per_image, cost.prepare_s_per_image) == pytest.approx((0.2, 0.1, 0.3))


def cost(s_per_image: float, cpu_s_per_image: float) -> TransformCost:
    return TransformCost(
        name="mytrans:slow",
        s_per_image=s_per_image,
        cpu_s_per_image=cpu_s_per_image,
        prepare_s_per_image=s_per_image + 0.001,
        holds_lock=False,
        without=None,
    )


@pytest.mark.parametrize(
    ("threads", "s", "cpu_s", "images_per_s", "idle_cores", "holds"),
    [
        (2, 0.010, 0.0050, 190.0, 0.9, True),  # both threads together do what one could
        (8, 0.040, 0.0050, 195.0, 0.9, True),
        (2, 0.005, 0.0049, 380.0, 0.6, False),  # twice as much
        (2, 0.012, 0.0050, 165.0, 0.1, False),  # no core was idle, so the threads may have waited for one
        (1, 0.005, 0.0050, 190.0, 0.9, False),  # one thread cannot show it
        (2, 0.008, 0.0001, 240.0, 1.9, False),  # waits, and not for the lock
        (3, 0.005, 0.0049, 190.0, 0.9, False),  # decoding takes longer than the transform
    ],
)
def test_a_transform_holds_the_lock_if_all_threads_together_do_what_one_could(
    threads, s, cpu_s, images_per_s, idle_cores, holds
):
    found = holds_lock(
        cost(s, cpu_s), threads=threads, images_per_s=images_per_s, cpu_s_per_image=cpu_s + 0.001, idle_cores=idle_cores
    )
    assert found == holds


@pytest.mark.parametrize(
    ("threads", "s", "cpu_s", "waits"),
    [
        (2, 0.010, 0.0050, False),  # Python in two threads takes turns
        (1, 0.005, 0.0049, False),  # one thread in each worker process
        (2, 0.008, 0.0001, True),  # sleeps, or waits for a disk
        (1, 0.009, 0.0030, True),
    ],
)
def test_a_transform_waits_for_something_else_if_its_cpu_time_does_not_explain_its_time(threads, s, cpu_s, waits):
    assert waits_for_no_core(cost(s, cpu_s), threads) == waits


def test_the_time_of_a_transform_is_measured_with_preparing(dataset):
    found = prepare_rate(str(dataset("webdataset")), LoaderConfig(batch_size=8, transform=Slow()), 0.3, 0.0)
    assert found.transform.s_per_image >= 0.001
