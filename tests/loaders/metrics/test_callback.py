"""Reports of a training loop: numbers of the steps since the last one, under one flat name each."""

import itertools
import os
import subprocess
import sys

import pytest

from dataprep.errors import UsageError
from loaders import MetricsCallback, open_loader
from loaders.engine.stats import Snapshot, Stats
from loaders.metrics.callback import FIELDS, differences
from train.telemetry.logs import EventFile

SMALL = {"batch_size": 12, "image_size": 32, "threads": 1}


def snapshot(stats: Stats, **changes) -> Snapshot:
    fields = {"fetch": {}, "skipped": {}, "images": 0, "epoch": 0, "batch": 0, "ready_batches": 0}
    return Snapshot(stages=stats.times(), **{**fields, **changes})


def test_a_report_is_of_the_time_since_the_last_one():
    stats = Stats()
    for _ in range(10):
        stats.add("batch", items=1, get_wait_s=5.0)
    stats.add("decode", busy_s=9.0)
    fetch = {"bytes_read": 100.0, "cache_hits": 1.0, "retries": 0.0, "hedges": 0.0}
    before = snapshot(stats, images=120, fetch=fetch, skipped={"FormatError": 2})
    for _ in range(99):
        stats.add("batch", items=1, get_wait_s=0.001)
    stats.add("batch", items=1, get_wait_s=0.4)
    stats.add("fetch", get_wait_s=0.2)
    stats.add("transform", busy_s=0.75)
    fetch = {"bytes_read": 2100.0, "cache_hits": 3.0, "retries": 1.0, "hedges": 4.0}
    skipped = {"FormatError": 3, "StorageError": 1}
    now = snapshot(stats, images=1320, fetch=fetch, skipped=skipped, epoch=1, ready_batches=2)
    found = differences(before, now, 10.0)
    assert list(found) == list(FIELDS)
    exact = {"images_per_s": 120.0, "fetched_bytes_per_s": 200.0, "cache_hits": 2, "retries": 1, "hedged_reads": 4}
    assert {name: found[name] for name in exact} == exact
    assert (found["skipped_images"], found["epoch"], found["ready_batches"]) == (2, 1, 2)
    about = {"wait_p50_s": 0.001, "wait_p90_s": 0.001, "wait_p99_s": 0.001, "fetch_wait_p99_s": 0.2}
    assert {name: found[name] for name in about} == pytest.approx(about, rel=0.035)
    assert found["wait_share"] == pytest.approx(0.0499)
    assert (found["decode_p99_s"], found["transform_share"]) == (0.0, 0.0), "nothing was decoded meanwhile"
    stats.add("decode", busy_s=1.0)
    assert differences(before, snapshot(stats), 10.0)["transform_share"] == pytest.approx(0.75)


@pytest.mark.parametrize("every", [1, 3])
def test_a_training_loop_logs_every_so_many_steps(dataset, every):
    logged = []
    clock = itertools.count().__next__
    with open_loader(dataset("webdataset"), **SMALL) as loader:
        report = MetricsCallback(loader, lambda values, step: logged.append((step, values)), every=every, clock=clock)
        for step, _batch in enumerate(itertools.islice(loader, 6)):
            report(step)
    assert [step for step, _ in logged] == list(range(every - 1, 6, every))
    for _, values in logged:
        assert list(values) == [f"loader/{name}" for name in FIELDS]
        assert values["loader/images_per_s"] == 12 * every  # the clock goes on by a second a report
        assert all(isinstance(value, float | int) for value in values.values())


def test_reports_are_written_as_events_of_tensorboard(dataset, tmp_path):
    events = EventFile(tmp_path)
    with open_loader(dataset("webdataset"), **SMALL) as loader:
        report = MetricsCallback(loader, lambda values, step: events.scalars(step, values), every=1)
        next(iter(loader))
        report(0)
    events.close()
    (file,) = tmp_path.iterdir()
    assert b"loader/wait_p99_s" in file.read_bytes()


WITH_WANDB = """
import sys
from itertools import islice
import wandb
from loaders import MetricsCallback, open_loader
wandb.init(project="imagenet", dir=sys.argv[2])
with open_loader(sys.argv[1], batch_size=12, image_size=32, threads=1) as loader:
    report = MetricsCallback(loader, wandb.log, every=2)
    for step, batch in enumerate(islice(loader, 4)):
        report(step)
wandb.finish()
"""


@pytest.mark.long
def test_reports_are_logged_by_weights_and_biases(dataset, tmp_path):
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", WITH_WANDB, str(dataset("webdataset")), str(tmp_path)]
    subprocess.run(command, env=environment, check=True, timeout=800)
    (run,) = tmp_path.rglob("run-*.wandb")
    assert b"loader/wait_p99_s" in run.read_bytes()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"log": {}}, "log must be a function of a dictionary and a step, such as wandb.log, got {}"),
        ({"every": 0}, "every must be 1 or more, got 0"),
    ],
)
def test_a_callback_that_could_not_log_is_refused(given, said):
    with pytest.raises(UsageError, match=f"^{said}$"):
        MetricsCallback(**{"loader": None, "log": print, **given})


def test_help_explains_every_number():
    assert all(f"loader/{name}  {text}" in (MetricsCallback.__doc__ or "") for name, text in FIELDS.items())
