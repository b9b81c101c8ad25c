"""Sums and percentiles of the stages."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from loaders import open_loader
from loaders.engine.stats import (
    BOUNDS_S,
    LARGEST_S,
    RELATIVE_ERROR,
    SMALLEST_S,
    Durations,
    Stats,
)

NOTHING = {"items": 0, "busy_s": None, "get_wait_s": None, "put_wait_s": None, "cpu_s": None, "percentiles": {}}


def sums(stats):
    return {name: times.stats() for name, times in stats.times().items()}


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
    assert sums(stats) == {"decode": decode, "plan": plan}
    taken = pickle.loads(pickle.dumps(stats.take()))
    assert taken["decode"].stats() == decode
    assert sums(stats) == {}
    stats.merge(taken)
    assert sums(stats) == {"decode": decode, "plan": plan}


def test_waits_of_several_processes_have_common_percentiles():
    stats, workers = Stats(), [Stats(), Stats()]
    for worker, seconds in zip(workers, (0.001, 1.0), strict=True):
        for _ in range(50):
            worker.add("fetch", items=16, get_wait_s=seconds)
        stats.merge(worker.take())
    found = sums(stats)["fetch"]
    assert found["items"] == 1600
    assert found["get_wait_s"] == pytest.approx(50.05)
    assert found["percentiles"]["get_wait_s"] == pytest.approx({"p50": 0.001, "p90": 1.0, "p99": 1.0}, rel=0.035)


def test_the_cpu_time_of_a_stage_goes_from_a_worker_to_the_loader_as_its_work_does():
    stats, worker = Stats(), Stats()
    worker.add("transform", items=2, busy_s=0.5, cpu_s=0.2)
    stats.merge(pickle.loads(pickle.dumps(worker.take())))
    found = sums(stats)["transform"]
    assert (found["items"], found["busy_s"], found["cpu_s"]) == (2, 0.5, 0.2)
    assert found["percentiles"] == {"busy_s": about(0.5), "cpu_s": about(0.2)}


SECONDS = st.lists(st.floats(SMALLEST_S, LARGEST_S), min_size=1, max_size=300)
MAX_BYTES = 12_000
"""Bound of a histogram as it is sent between processes, every bucket filled."""


def measured(seconds):
    found = Durations()
    for each in seconds:
        found.add(each)
    return found


def test_bounds_grow_by_less_than_twice_the_stated_error():
    ratios = np.diff(BOUNDS_S) / BOUNDS_S[:-1]
    assert (BOUNDS_S[0], BOUNDS_S[-1]) == (SMALLEST_S, LARGEST_S)
    assert ratios.min() > 0
    assert ratios.max() / (2 + ratios.max()) < RELATIVE_ERROR
    assert {1e-4, 2e-4, 5e-4, 0.001, 0.5, 1.0, 20.0} < set(BOUNDS_S)


@given(SECONDS, st.floats(0, 100))
@example([95001.0], 0.0)
def test_any_percentile_is_that_of_numpy_within_the_stated_error(seconds, percent):
    expected = np.percentile(seconds, percent, method="inverted_cdf")
    assert measured(seconds).percentile(percent) == pytest.approx(expected, rel=RELATIVE_ERROR)


@given(SECONDS, SECONDS)
def test_merged_histograms_are_those_of_all_measurements(ours, theirs):
    merged, both = measured(ours), measured(ours + theirs)
    merged.merge(pickle.loads(pickle.dumps(measured(theirs))))
    assert merged.counts == both.counts
    assert merged.sum_s == pytest.approx(sum(ours + theirs))
    assert merged.percentiles() == both.percentiles()
    later = merged.since(measured(ours))
    assert later.counts == measured(theirs).counts


def test_the_size_of_a_histogram_is_bounded():
    found = measured(np.random.default_rng(0).lognormal(-3, 5, 20_000))
    assert len(found.counts) <= len(BOUNDS_S)
    assert len(pickle.dumps(measured(BOUNDS_S))) < MAX_BYTES


SMALL = {"batch_size": 12, "image_size": 32, "threads": 1}
CHILDREN = ["dataprep.loader.decode", "dataprep.loader.deliver", "dataprep.loader.fetch", "dataprep.loader.plan"]


@pytest.fixture
def exporter(monkeypatch) -> InMemorySpanExporter:
    """An exporter of a provider that is the process's own during the test; it can be set only once otherwise."""
    provider, found = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return found


@pytest.mark.parametrize("processes", [0, 1])
def test_every_batch_is_a_trace_with_its_stages(dataset, exporter, processes):
    with open_loader(dataset("webdataset"), **SMALL, processes=processes) as loader:
        taken = len(list(itertools.islice(loader, 3)))
    spans = exporter.get_finished_spans()
    batches = [span for span in spans if span.name == "dataprep.loader.batch"]
    assert len(batches) == taken == 3
    for number, batch in enumerate(batches):
        assert batch.parent is None
        expected = {"split": "train", "rank": 0, "batch": number, "images": 12}
        assert dict(batch.attributes) == {f"dataprep.{name}": value for name, value in expected.items()}
        children = [span for span in spans if span.parent and span.parent.span_id == batch.context.span_id]
        assert sorted(span.name for span in children) == CHILDREN
        assert batch.start_time == min(span.start_time for span in children)
        assert batch.end_time == max(span.end_time for span in children)
        for span in children:
            assert span.context.trace_id == batch.context.trace_id
            assert span.attributes["dataprep.thread_seconds"] >= 0
            assert span.start_time <= span.end_time


def test_a_batch_is_linked_to_the_span_in_which_it_was_taken(dataset, exporter):
    with open_loader(dataset("webdataset"), **SMALL) as loader, trace.get_tracer("test").start_as_current_span("step"):
        next(iter(loader))
    (batch,) = (span for span in exporter.get_finished_spans() if span.name == "dataprep.loader.batch")
    (step,) = (span for span in exporter.get_finished_spans() if span.name == "step")
    assert [link.context.span_id for link in batch.links] == [step.context.span_id]
    assert batch.context.trace_id != step.context.trace_id


def test_loading_does_not_import_opentelemetry(dataset):
    program = (
        "import sys; from loaders import open_loader; "
        f"next(iter(open_loader({str(dataset('webdataset'))!r}, batch_size=4))); "
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'prometheus_client'))])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
