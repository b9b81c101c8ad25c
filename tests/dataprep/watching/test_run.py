"""Looks at real builds that were stopped, in every format and in a bucket, and at logs in any state."""

import json

import pytest

from dataprep.build.claim import read_claim
from dataprep.errors import FormatError
from dataprep.storage import open_storage
from dataprep.watching import run as watching
from dataprep.watching.run import RunWatch
from dataprep.watching.snapshots import ABSENT, BUILDING, ENDED, TRAINING, WHOLE
from tests.support.adoption import upload
from tests.support.builds import build_arguments
from tests.support.stopping import STOPPED, shared_stopper

LINE = {"step": 3, "epoch": 0.5, "loss": 0.25, "images_per_s": 100.0, "wait_share": 0.1}


def stopped_build(originals, url, boundary):
    """The arguments of a build that was killed at a boundary."""
    arguments = build_arguments("imagenet", originals["imagenet"], url, "webdataset", "--num-shards", 4)
    assert shared_stopper().run(arguments, boundary=boundary).code == STOPPED
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
    assert shared_stopper().run(arguments, boundary=25).code == STOPPED
    later = watch.look()
    assert later.finished_shards > first.finished_shards
    assert later.images_per_s == pytest.approx((later.finished_samples - first.finished_samples) / 70)
    assert later.left_s == pytest.approx((later.samples - later.finished_samples) / later.images_per_s)
    assert later.idle_s == 0
    assert shared_stopper().run(arguments).code == 0
    assert (watch.look().state, watch.look().is_over) == (WHOLE, True)


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


def test_of_each_step_the_latest_loss_counts(tmp_path, finished):
    lines = [{"step": 2, "loss": 3.0}, {"step": 3, "loss": 2.0}, {"step": 2, "loss": 2.5}, {"step": 4, "lr": 0.1}]
    (tmp_path / "log.txt").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert RunWatch(str(tmp_path)).losses() == [(2, 2.5), (3, 2.0)]
    assert RunWatch(str(finished("imagenet-webdataset"))).losses() == []
