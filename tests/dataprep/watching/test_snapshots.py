"""Rates, silence and lines of what was seen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.watching.snapshots import ABSENT, WHOLE, BuildSnapshot, Pace, Snapshot, TrainingSnapshot, latest

BUILD = {
    "url": "gs://bucket/coco",
    "state": "building",
    "name": "coco-dup5",
    "format": "tfrecord",
    "shards": 8,
    "finished_shards": 2,
    "samples": 800,
    "finished_samples": 200,
    "images_per_s": 50.0,
    "left_s": 12.0,
    "read_receipts": 2,
}


@given(st.lists(st.tuples(st.floats(0.1, 100), st.integers(0, 50)), min_size=1, max_size=20), st.floats(0, 100))
def test_the_rate_is_that_of_all_looks_and_idle_is_the_time_since_more_was_found(looks, later_s):
    pace, now_s, samples = Pace(), 0.0, 10
    pace.saw(now_s, samples)
    grown_s = 0.0
    for elapsed_s, more in looks:
        now_s, samples = now_s + elapsed_s, samples + more
        grown_s = now_s if more else grown_s
        pace.saw(now_s, samples)
    assert pace.idle_s(now_s + later_s) == pytest.approx(now_s + later_s - grown_s)
    if samples == 10:
        assert pace.images_per_s is None
    else:
        assert pace.images_per_s == pytest.approx((samples - 10) / grown_s)


def test_a_build_that_begins_again_has_a_rate_of_its_own():
    pace = Pace()
    for now_s, samples in ((0, 100), (10, 200), (20, 0), (30, 500)):
        pace.saw(now_s, samples)
    assert pace.images_per_s == 50


def test_a_line_says_how_far_a_build_is():
    shown = BuildSnapshot(**BUILD, repaired={"png": 2, "cmyk": 1}, rejected={"truncated": 1}).line
    assert shown == (
        "coco-dup5 as tfrecord: 2 of 8 shards, 200 samples; 50 images/s, 12 s left; 3 repaired (1 cmyk, 2 png); "
        "1 rejected (1 truncated)"
    )
    assert BuildSnapshot(**BUILD, idle_s=90).line.endswith("; no progress for 90 s")
    whole = {**BUILD, "finished_shards": 8, "images_per_s": None}
    assert BuildSnapshot(**whole).line.endswith("8 of 8 shards, 200 samples; index and manifest are being written")


def test_a_line_says_how_far_a_training_is():
    numbers = {"epoch": 1.5, "loss": 0.25, "images_per_s": 1200.0, "wait_share": 0.125, "val_accuracy": 0.5, "lr": 1e-3}
    run = TrainingSnapshot(url="runs/mae", state="training", step=1200, numbers=numbers, checkpoint="checkpoint-1.pth")
    assert run.line == (
        "runs/mae: step 1,200, epoch 1.50, loss 0.2500, 1,200 images/s, waits 12% of the time, accuracy 0.5 "
        "(validation), saved checkpoint-1.pth"
    )
    begun = TrainingSnapshot(url="runs/mae", state="training", step=None, idle_s=7300)
    assert begun.line == "runs/mae: training, no step was logged yet; no progress for 2 h 2 min"


def test_only_a_whole_dataset_is_over():
    whole, absent = Snapshot(url="a\x1b[1m", state=WHOLE), Snapshot(url="a", state=ABSENT)
    assert (whole.is_over, absent.is_over, BuildSnapshot(**BUILD).is_over) == (True, False, False)
    assert "\x1b" not in whole.line


def test_the_latest_value_of_each_number_counts():
    lines = [{"step": 1, "loss": 3.0, "lr": 0.1}, {"step": 2, "loss": 2.0}, {"step": 2, "val_loss": 2.5}]
    assert latest(lines) == (2, {"loss": 2.0, "lr": 0.1, "val_loss": 2.5})
    assert latest([]) == (None, {})
