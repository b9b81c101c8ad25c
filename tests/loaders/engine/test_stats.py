"""Sums and percentiles of the stages."""

import pickle

import pytest

from loaders.engine.stats import Snapshot, Stats

NOTHING = {"items": 0, "busy_s": None, "get_wait_s": None, "put_wait_s": None, "cpu_s": None, "percentiles": {}}


def about(seconds):
    return pytest.approx(dict.fromkeys(("p50", "p90", "p99"), seconds), rel=0.035)


def test_work_and_waiting_are_summed_until_they_are_taken():
    stats = Stats()
    stats.add("decode", items=3, busy_s=0.5)
    stats.add("decode", items=1, get_wait_s=0.25)
    stats.add("plan", put_wait_s=2.0)
    decode = {**NOTHING, "items": 4, "busy_s": 0.5, "get_wait_s": 0.25}
    decode["percentiles"] = {"busy_s": about(0.5), "get_wait_s": about(0.25)}
    plan = {**NOTHING, "put_wait_s": 2.0, "percentiles": {"put_wait_s": about(2.0)}}
    assert stats.snapshot() == {"decode": decode, "plan": plan}
    taken = pickle.loads(pickle.dumps(stats.take()))
    assert taken["decode"].stats() == decode
    assert stats.snapshot() == {}
    stats.merge(taken)
    assert stats.snapshot() == {"decode": decode, "plan": plan}


def test_waits_of_several_processes_have_common_percentiles():
    stats, workers = Stats(), [Stats(), Stats()]
    for worker, seconds in zip(workers, (0.001, 1.0), strict=True):
        for _ in range(50):
            worker.add("fetch", items=16, get_wait_s=seconds)
        stats.merge(worker.take())
    found = stats.snapshot()["fetch"]
    assert found["items"] == 1600
    assert found["get_wait_s"] == pytest.approx(50.05)
    assert found["percentiles"]["get_wait_s"] == pytest.approx({"p50": 0.001, "p90": 1.0, "p99": 1.0}, rel=0.035)


def test_the_cpu_time_of_a_stage_goes_from_a_worker_to_the_loader_as_its_work_does():
    stats, worker = Stats(), Stats()
    worker.add("transform", items=2, busy_s=0.5, cpu_s=0.2)
    stats.merge(pickle.loads(pickle.dumps(worker.take())))
    found = stats.snapshot()["transform"]
    assert (found["items"], found["busy_s"], found["cpu_s"]) == (2, 0.5, 0.2)
    assert found["percentiles"] == {"busy_s": about(0.5), "cpu_s": about(0.2)}


def test_copies_of_the_times_do_not_change():
    stats = Stats()
    stats.add("plan", busy_s=1.0)
    before = stats.times()
    stats.add("plan", busy_s=1.0)
    assert (before["plan"].busy_s.count, stats.times()["plan"].busy_s.count) == (1, 2)
    snapshot = Snapshot(stages=before, fetch={}, skipped={}, images=0, epoch=0, batch=0, ready_batches=0)
    assert snapshot.stats()["stages"]["plan"]["busy_s"] == 1.0
