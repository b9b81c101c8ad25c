"""A span of OpenTelemetry for each batch, with a child for each stage, where the process has a tracer provider.

    dataprep.loader.batch    from the plan of the batch until it is taken; a trace of its own, linked to the span in
      plan                   which it was taken
      fetch                  from the first wait for bytes until the last image's bytes are there
      decode                 from the first image to the last
      deliver                in which the training loop waited for the batch

Nothing is imported for it: a process that has set a provider has imported OpenTelemetry. Without one, the cost is
looking that up for each batch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from loaders.engine.stats import Moment

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

PREFIX = "dataprep.loader."
STAGES = ("plan", "fetch", "decode", "deliver")
_API = "opentelemetry.trace"


def open_tracer() -> Tracer | None:
    """Return a tracer where the process has a provider of its own, else None."""
    if _API not in sys.modules:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("dataprep.loaders")


def trace_batch(tracer: Tracer, moments: Sequence[Moment], attributes: Mapping[str, str | int]) -> None:
    """Write the spans of a batch that was taken just now.

    Args:
        tracer: The process's tracer.
        moments: Parts of the batch's way, in any order.
        attributes: Attributes of the batch's span, without the prefix of their names.
    """
    from opentelemetry import trace
    from opentelemetry.context import Context

    to_epoch_ns = time.time_ns() - time.monotonic_ns()

    def instant_ns(seconds: float) -> int:
        return to_epoch_ns + int(seconds * 1e9)

    taken_in = trace.get_current_span().get_span_context()
    links = [trace.Link(taken_in)] if taken_in.is_valid else []
    batch = tracer.start_span(
        PREFIX + "batch",
        context=Context(),
        links=links,
        attributes={f"dataprep.{name}": value for name, value in attributes.items()},
        start_time=instant_ns(min(moment.started_s for moment in moments)),
    )
    inside = trace.set_span_in_context(batch, Context())
    for stage in STAGES:
        parts = [moment for moment in moments if moment.stage == stage]
        if parts:
            start_ns = instant_ns(min(part.started_s for part in parts))
            span = tracer.start_span(PREFIX + stage, context=inside, start_time=start_ns)
            span.set_attribute("dataprep.thread_seconds", sum(part.ended_s - part.started_s for part in parts))
            span.end(instant_ns(max(part.ended_s for part in parts)))
    batch.end(instant_ns(max(moment.ended_s for moment in moments)))
