"""Spans of OpenTelemetry: one trace a batch with its stages, by the real SDK; none and no import without a provider."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from loaders import open_loader
from loaders.metrics.tracing import open_tracer

SMALL = {"batch_size": 12, "image_size": 32, "threads": 1}
CHILDREN = ["dataprep.loader.decode", "dataprep.loader.deliver", "dataprep.loader.fetch", "dataprep.loader.plan"]


@pytest.fixture
def exporter(monkeypatch) -> InMemorySpanExporter:
    """An exporter of a provider that is the process's own during the test; it can be set only once otherwise."""
    provider, found = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return found


@pytest.mark.parametrize("processes", [0, 2])
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


def test_a_process_without_a_provider_has_no_tracer():
    assert open_tracer() is None


def test_loading_does_not_import_opentelemetry(dataset):
    program = (
        "import sys; from loaders import open_loader; "
        f"next(iter(open_loader({str(dataset('webdataset'))!r}, batch_size=4))); "
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'prometheus_client'))])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
