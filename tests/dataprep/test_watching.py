"""Looks at real builds that were stopped, in every format and in a bucket, and at logs in any state."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep import watching
from dataprep.builder.output import read_claim
from dataprep.errors import FormatError, UndecidedError, UsageError
from dataprep.storage import open_storage
from dataprep.watching import (
    ABSENT,
    BUILDING,
    COMPLETE,
    ENDED,
    PROFILE_REQUEST,
    TRAINING,
    BuildSnapshot,
    Pace,
    RunWatch,
    Snapshot,
    TrainingSnapshot,
    ask_profile,
    requested_s,
)
from tests.support.adoption import upload
from tests.support.builds import build_arguments
from tests.support.stopping import STOPPED, run

LINE = {"step": 3, "epoch": 0.5, "loss": 0.25, "images_per_s": 100.0, "wait_share": 0.1}


def stopped_build(originals, url, boundary):
    """The arguments of a build that was killed at a boundary."""
    arguments = build_arguments("imagenet", originals["imagenet"], url, "webdataset", "--num-shards", 4)
    assert run(arguments, boundary=boundary).code == STOPPED
    return arguments


def test_a_build_is_watched_from_its_first_shard_until_it_is_whole(originals, tmp_path):
    output, now_s = tmp_path / "out", 0.0
    watch = RunWatch(str(output), clock=lambda: now_s)
    assert watch.look().state == ABSENT
    arguments = stopped_build(originals, output, 30)
    first = watch.look()
    assert first.state == BUILDING
    assert (first.name, first.format, first.images_per_s) == ("imagenet", "webdataset", None)
    assert first.shards > first.finished_shards > 0
    assert 0 < first.finished_samples < first.samples
    assert first.read_receipts == first.finished_shards
    assert first.repaired or first.rejected
    now_s = 70.0
    assert watch.look().idle_s == 70
    assert run(arguments, boundary=25).code == STOPPED
    later = watch.look()
    assert later.finished_shards > first.finished_shards
    assert later.images_per_s == pytest.approx((later.finished_samples - first.finished_samples) / 70)
    assert later.left_s == pytest.approx((later.samples - later.finished_samples) / later.images_per_s)
    assert later.idle_s == 0
    assert run(arguments).code == 0
    assert (watch.look().state, watch.look().is_over) == (COMPLETE, True)


def test_a_look_at_a_bucket_reads_no_more_receipts_than_it_says(originals, bucket_url, tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "MAX_READ", 1)
    stopped_build(originals, tmp_path / "out", 40)
    upload(tmp_path / "out", bucket_url)
    found = RunWatch(bucket_url).look()
    assert found.finished_shards > found.read_receipts == 1


def test_a_damaged_plan_is_an_error_that_names_it(originals, tmp_path):
    stopped_build(originals, tmp_path / "out", 20)
    assert read_claim(open_storage(str(tmp_path / "out"))) is not None
    (tmp_path / "out/_build/plan.json").write_text("{}")
    with pytest.raises(FormatError, match=r"_build/plan\.json: "):
        RunWatch(str(tmp_path / "out")).look()


def test_a_log_is_read_to_its_last_whole_line(tmp_path):
    lines = [json.dumps(LINE), "no JSON", json.dumps([1]), json.dumps({"step": 4, "loss": float("nan"), "lr": 0.5})]
    (tmp_path / "log.txt").write_text("".join(f"{line}\n" for line in lines) + '{"step": 5, "lo')
    for name in ("checkpoint-000000002-aa.pth", "checkpoint-000000004-bb.pth"):
        (tmp_path / name).touch()
    found = RunWatch(str(tmp_path)).look()
    assert (found.state, found.step, found.checkpoint) == (TRAINING, 4, "checkpoint-000000004-bb.pth")
    assert found.numbers == {"epoch": 0.5, "loss": 0.25, "images_per_s": 100.0, "wait_share": 0.1, "lr": 0.5}


def test_a_training_in_a_bucket_is_watched(bucket_url):
    storage, now_s = open_storage(bucket_url), 0.0
    storage.put("log.txt", json.dumps(LINE).encode() + b"\n")
    for name in ("checkpoint-000000003-aa.pth", "checkpoint-000000002.orbax/d/0", "events.out.tfevents.1"):
        storage.put(name, b"")
    watch = RunWatch(bucket_url, clock=lambda: now_s)
    found = watch.look()
    assert (found.state, found.step, found.idle_s, found.checkpoint) == (TRAINING, 3, 0, "checkpoint-000000003-aa.pth")
    now_s = 70.0
    assert watch.look().idle_s == 70
    storage.append(storage.stat("log.txt"), json.dumps({**LINE, "step": 4}).encode() + b"\n")
    found = watch.look()
    assert (found.step, found.idle_s) == (4, 0)


def test_a_training_that_went_on_after_its_end_has_not_ended(tmp_path):
    lines = [LINE, {"step": 3, "epoch": 0.5, "ended": True}]
    (tmp_path / "log.txt").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert RunWatch(str(tmp_path)).look().state == ENDED
    with (tmp_path / "log.txt").open("a") as file:
        file.write(json.dumps({**LINE, "step": 4}) + "\n")
    assert RunWatch(str(tmp_path)).look().state == TRAINING


def test_of_a_long_log_only_the_end_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "_TAIL_BYTES", 300)
    (tmp_path / "log.txt").write_text("".join(json.dumps({**LINE, "step": step}) + "\n" for step in range(50)))
    found = RunWatch(str(tmp_path)).look()
    assert (found.step, found.numbers["loss"]) == (49, 0.25)


def test_an_empty_log_is_a_training_without_a_step(tmp_path):
    (tmp_path / "log.txt").touch()
    assert RunWatch(str(tmp_path)).look().step is None


def test_a_trace_is_asked_for_and_waited_for(storage_url):
    storage = open_storage(storage_url)
    storage.create("log.txt", b"")
    trace = "plugins/profile/2026/host.xplane.pb"
    storage.create("plugins/profile/2025/host.xplane.pb", b"old")
    looks = iter([lambda: None, lambda: storage.create(trace, b"new"), *[lambda: None] * 2])
    lines: list[str] = []
    assert ask_profile(storage_url, 5, tell=lines.append, sleep=lambda _: next(looks)()) == [storage.url_of(trace)]
    assert requested_s(storage.read(PROFILE_REQUEST)) == 5
    assert lines == [f"asked for 5 s; the trace appears in {storage.url}/plugins/profile"]
    with pytest.raises(UndecidedError, match="no trace after 2 min"):
        ask_profile(storage_url, 5, tell=lines.append, sleep=lambda _: None)
    assert lines[2] == "0 traces after 10 s of at most 2 min"


def test_a_request_is_refused_where_no_training_logs(tmp_path):
    with pytest.raises(UsageError, match=r"no log\.txt of a training there"):
        ask_profile(str(tmp_path), 5)


@pytest.mark.parametrize(
    "request_", [b"", b"[5]", b"{", b'{"seconds": "nan"}', b'{"seconds": 1e9}', b'{"seconds": -1}']
)
def test_damaged_requests_ask_for_nothing(request_):
    assert requested_s(request_) == 0


BUILD = {
    "url": "gs://bucket/coco", "state": "building", "name": "coco-dup5", "format": "tfrecord", "shards": 8,
    "finished_shards": 2, "samples": 800, "finished_samples": 200, "images_per_s": 50.0, "left_s": 12.0,
    "read_receipts": 2,
}  # fmt: skip


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
    assert BuildSnapshot(**whole).line.endswith("8 of 8 shards, 200 samples; index and manifest are written next")


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
    whole, absent = Snapshot(url="a\x1b[1m", state=COMPLETE), Snapshot(url="a", state=ABSENT)
    assert (whole.is_over, absent.is_over, BuildSnapshot(**BUILD).is_over) == (True, False, False)
    assert "\x1b" not in whole.line
