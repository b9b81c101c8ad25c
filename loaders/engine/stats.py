"""Work and waits of each stage of a loader; the stage that the others wait for is the bottleneck.

Durations are histograms of fixed buckets, for estimates of percentiles; any two can be added. The bounds of the buckets
are the Renard series R40 of ISO 3, whose neighbours differ by 7.2 % or less, so an estimate is within 3.5 % of a
duration that was measured. They include 1, 2 and 5 times each power of ten, so Prometheus gets exact counts for
readable bounds. The packages ddsketch and hdrhistogram do the same, but a table of bounds and `bisect` need no
installation.

If the process has a tracer provider of OpenTelemetry, each batch is a span with a child for each stage:

    dataprep.loader.batch    from the plan of the batch until it is taken; a trace of its own, linked to the span in
      plan                   which it was taken
      fetch                  from the first wait for bytes until the last image's bytes are there
      decode                 from the first image to the last
      deliver                in which the training loop waited for the batch

OpenTelemetry is not imported here: a process that has set a provider has imported it. Without one, the only cost is
this check for each batch.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_RENARD_40 = (
    *(1.0, 1.06, 1.12, 1.18, 1.25, 1.32, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.12, 2.24, 2.36, 2.5, 2.65, 2.8, 3.0),
    *(3.15, 3.35, 3.55, 3.75, 4.0, 4.25, 4.5, 4.75, 5.0, 5.3, 5.6, 6.0, 6.3, 6.7, 7.1, 7.5, 8.0, 8.5, 9.0, 9.5),
)
SMALLEST_S = 1e-6
LARGEST_S = 1e5
"""Range of the buckets (SMALLEST_S, LARGEST_S): from a microsecond to a day. Any duration beyond counts as its end."""
RELATIVE_ERROR = 0.035
"""Largest relative error of a percentile, within the range."""


def _bounds() -> tuple[float, ...]:
    """Return the upper bounds of all buckets, each parsed from a short decimal number."""
    decades = range(round(math.log10(SMALLEST_S)), round(math.log10(LARGEST_S)))
    return (*(float(f"{step}e{decade}") for decade in decades for step in _RENARD_40), LARGEST_S)


BOUNDS_S = _bounds()
"""Upper bounds of the buckets; a bucket holds durations above the bound before its own, up to its own."""


class Percentiles(TypedDict):
    """Durations in seconds that 50, 90 and 99 % of the measured ones do not exceed."""

    p50: float
    p90: float
    p99: float


@dataclass(slots=True)
class Durations:
    """Histogram of measured durations: their number, sum and counts by bucket. Memory is bounded."""

    sum_s: float = 0.0
    counts: dict[int, int] = field(default_factory=dict)
    """Number of durations by bucket; empty buckets are left out."""

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts.values())

    def add(self, seconds: float) -> None:
        """Add one duration."""
        self.sum_s += seconds
        bucket = bisect_left(BOUNDS_S, seconds, 0, len(BOUNDS_S) - 1)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1

    def merge(self, other: Durations) -> None:
        """Add all durations of another histogram, e.g. a worker process's."""
        self.sum_s += other.sum_s
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    def copy(self) -> Durations:
        """Return a copy, which does not change any more."""
        return Durations(self.sum_s, dict(self.counts))

    def since(self, earlier: Durations) -> Durations:
        """Return the durations that were added after an earlier copy was made."""
        more = {bucket: count - earlier.counts.get(bucket, 0) for bucket, count in self.counts.items()}
        return Durations(self.sum_s - earlier.sum_s, {bucket: count for bucket, count in more.items() if count})

    def percentile(self, percent: float) -> float:
        """Estimate a percentile: the shortest duration that `percent` % of all do not exceed; 0 if nothing was
        measured.

        This is numpy.percentile with method="inverted_cdf", within RELATIVE_ERROR.
        """
        needed, passed = max(1, math.ceil(self.count * (percent / 100))), 0
        for bucket in sorted(self.counts):
            passed += self.counts[bucket]
            if passed >= needed:
                return _middle(bucket)
        return 0.0

    def percentiles(self) -> Percentiles:
        """Return the 50th, 90th and 99th percentiles."""
        return Percentiles(p50=self.percentile(50), p90=self.percentile(90), p99=self.percentile(99))

    def cumulative(self, bounds_s: Sequence[float]) -> list[int]:
        """Return the number of durations up to each of some bounds, which are among BOUNDS_S."""
        last = [bisect_left(BOUNDS_S, bound) for bound in bounds_s]
        return [sum(count for bucket, count in self.counts.items() if bucket <= end) for end in last]


def _middle(bucket: int) -> float:
    """Return the duration whose relative error is the same for both bounds of a bucket."""
    if bucket == 0:
        return SMALLEST_S
    low, high = BOUNDS_S[bucket - 1], BOUNDS_S[bucket]
    return 2 * low * high / (low + high)


class StageStats(TypedDict):
    """Sums of one stage since the start, and percentiles of single pieces of work and single waits.

    A time that was not measured is None, and has no percentiles.
    """

    items: int
    busy_s: float | None
    """Working time, summed over the threads of the stage."""
    get_wait_s: float | None
    """Time that threads of the stage waited for the stage before it, summed over the threads."""
    put_wait_s: float | None
    """Time that threads of the stage waited for the stage after it, summed over the threads."""
    cpu_s: float | None
    """CPU time of the threads of the stage; measured for `transform` alone."""
    percentiles: dict[str, Percentiles]
    """Percentiles by the name of the sum, within 3.5 %."""


class LoaderStats(TypedDict):
    """Work and waits of a loader so far."""

    stages: dict[str, StageStats]
    """Stages by name; `transform` is a part of `decode`, and absent without one."""
    fetch: dict[str, float]
    skipped: dict[str, int]
    """Images that were skipped, by reason."""


class _Times(TypedDict, total=False):
    """Durations of one piece of work in a stage, as `StageStats` sums them."""

    busy_s: float
    get_wait_s: float
    put_wait_s: float
    cpu_s: float


class Moment(NamedTuple):
    """Time that a part of a batch spent in one stage, by `time.monotonic`, which processes of a host share."""

    stage: str
    started_s: float
    ended_s: float


@dataclass(slots=True)
class StageTimes:
    """Items of one stage, and its durations of working and waiting."""

    items: int = 0
    busy_s: Durations = field(default_factory=Durations)
    get_wait_s: Durations = field(default_factory=Durations)
    put_wait_s: Durations = field(default_factory=Durations)
    cpu_s: Durations = field(default_factory=Durations)

    def by_name(self) -> dict[str, Durations]:
        """Return the durations by the names that they have in `StageStats`."""
        return {name: getattr(self, name) for name in _Times.__annotations__}

    def merge(self, other: StageTimes) -> None:
        """Add the work of another process in this stage."""
        self.items += other.items
        for name, durations in self.by_name().items():
            durations.merge(other.by_name()[name])

    def copy(self) -> StageTimes:
        """Return a copy, which does not change any more."""
        copies = {name: durations.copy() for name, durations in self.by_name().items()}
        return StageTimes(self.items, **copies)

    def stats(self) -> StageStats:
        """Return sums and percentiles of what was measured."""
        measured = {name: found for name, found in self.by_name().items() if found.counts}
        sums = {name: found.sum_s for name, found in measured.items()}
        return StageStats(
            items=self.items,
            busy_s=sums.get("busy_s"),
            get_wait_s=sums.get("get_wait_s"),
            put_wait_s=sums.get("put_wait_s"),
            cpu_s=sums.get("cpu_s"),
            percentiles={name: found.percentiles() for name, found in measured.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that a loader counts, at one moment."""

    stages: dict[str, StageTimes]
    fetch: dict[str, float]
    """Counters of all fetchers so far; counters whose names contain `held` are current values."""
    skipped: dict[str, int]
    """Images that were skipped, by reason."""
    images: int
    """Images that were delivered."""
    epoch: int
    """Epoch of the next batch."""
    batch: int
    """Number of the next batch: in training counted over all epochs, in an evaluation from its beginning."""
    ready_batches: int
    """Batches that are finished and wait to be taken."""

    def stats(self) -> LoaderStats:
        """Return sums and percentiles, as `Loader.stats` does."""
        stages = {name: times.stats() for name, times in self.stages.items()}
        return {"stages": stages, "fetch": self.fetch, "skipped": self.skipped}


class Stats:
    """Times and item counts of the stages of a loader, by name. Thread-safe."""

    def __init__(self) -> None:
        self._stages = defaultdict[str, StageTimes](StageTimes)
        self._lock = threading.Lock()

    def add(self, name: str, *, items: int = 0, **times: Unpack[_Times]) -> None:
        """Add items and times to a stage; each given time counts as one duration."""
        with self._lock:
            stage = self._stages[name]
            stage.items += items
            for kind, seconds in times.items():
                getattr(stage, kind).add(seconds)

    def merge(self, stages: dict[str, StageTimes]) -> None:
        """Add stages that were taken from another process."""
        with self._lock:
            for name, times in stages.items():
                self._stages[name].merge(times)

    def take(self) -> dict[str, StageTimes]:
        """Return all stages since the last call, as an argument of `merge`."""
        with self._lock:
            taken, self._stages = self._stages, defaultdict(StageTimes)
            return taken

    def times(self) -> dict[str, StageTimes]:
        """Return a copy of all stages by name."""
        with self._lock:
            return {name: stage.copy() for name, stage in self._stages.items()}


PREFIX = "dataprep.loader."
STAGES = ("plan", "fetch", "decode", "deliver")
_API = "opentelemetry.trace"


def open_tracer() -> Tracer | None:
    """Return a tracer if the process has its own provider, else None."""
    if _API not in sys.modules:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("dataprep.loaders")


def trace_batch(tracer: Tracer, moments: Sequence[Moment], attributes: Mapping[str, str | int]) -> None:
    """Write the spans of a batch that was taken just now, from the parts of its way in any order. Names of attributes
    get a prefix."""
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
