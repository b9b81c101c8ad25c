"""Every metric that a loader serves: its name, kind and labels, how to read it, and where its values come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from loaders.config import LoaderConfig
from loaders.engine.durations import Durations
from loaders.engine.stats import Snapshot

PREFIX = "dataprep_loader_"
LOADER_LABELS = ("split", "rank", "loader")
"""Labels of every metric; `loader` numbers the open loaders of a process from 0."""
BUCKETS_S = (*(float(f"{step}e{decade}") for decade in range(-4, 2) for step in (1, 2, 5)), 100.0)
"""Upper bounds of the buckets that Prometheus gets, seconds; finer ones would be some hundred series a stage."""

Values: TypeAlias = Mapping[tuple[str, ...], float | Durations]
"""Values by the values of a metric's own labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One family of time series."""

    name: str
    """Name without PREFIX, and of a counter without `_total`."""
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    """What it counts, and what to do about a high or low value."""
    values: Callable[[Snapshot, LoaderConfig], Values]
    labels: tuple[str, ...] = ()
    """Labels besides LOADER_LABELS."""

    @property
    def shown_name(self) -> str:
        """Name as queries have it."""
        return PREFIX + self.name + ("_total" if self.kind == "counter" else "")


def _fetched(name: str) -> Callable[[Snapshot, LoaderConfig], Values]:
    """Return a function that takes one of the fetchers' counters."""
    return lambda found, _: {(): found.fetch.get(name, 0.0)}


def _batch_waits(found: Snapshot, _: LoaderConfig) -> Values:
    return {(): found.stages["batch"].get_wait_s} if "batch" in found.stages else {}


def _stage_times(found: Snapshot, _: LoaderConfig) -> Values:
    return {
        (stage, name.removesuffix("_s")): durations
        for stage, times in found.stages.items()
        for name, durations in times.by_name().items()
        if durations.counts and stage != "batch"
    }


def _stage_items(found: Snapshot, _: LoaderConfig) -> Values:
    return {(stage,): times.items for stage, times in found.stages.items() if stage != "batch"}


def _batches(found: Snapshot, _: LoaderConfig) -> Values:
    return {(): found.stages["batch"].items if "batch" in found.stages else 0}


METRICS = (
    Metric(
        name="batches",
        kind="counter",
        text="Batches that the training loop took. Its rate is the rate of steps; a rate of 0 is a run that hangs.",
        values=_batches,
    ),
    Metric(
        name="images",
        kind="counter",
        text="Images in these batches, of this rank. Compare its rate with what `dataprep bench` measures.",
        values=lambda found, _: {(): found.images},
    ),
    Metric(
        name="skipped_images",
        kind="counter",
        text="Images that could not be read and were masked (on_error='skip'). If it grows: `dataprep verify --deep`.",
        values=lambda found, _: {(reason,): count for reason, count in found.skipped.items()},
        labels=("reason",),
    ),
    Metric(
        name="batch_wait_seconds",
        kind="histogram",
        text="Waits of the training loop for a batch. The rate of its sum is the share of time lost to input: "
        "above 0.05, look at stage_seconds, or run `dataprep diagnose`.",
        values=_batch_waits,
    ),
    Metric(
        name="ready_batches",
        kind="gauge",
        text="Finished batches that wait to be taken. Always 0: the loader is too slow; near prefetch_batches: it "
        "is ahead, and training is the limit. With worker processes 1 means one or more.",
        values=lambda found, _: {(): found.ready_batches},
    ),
    Metric(
        name="prefetch_batches",
        kind="gauge",
        text="Setting prefetch_batches: the most batches that are made ahead. Raise it where steps take uneven times.",
        values=lambda _, config: {(): config.prefetch_batches},
    ),
    Metric(
        name="stage_seconds",
        kind="histogram",
        text="Work (busy) and waits for the stage before (get_wait) and after (put_wait), of plan a batch, of fetch "
        "and decode up to 32 images; transform is your part of decode, and cpu its CPU time. If the training loop "
        "waits, much get_wait of fetch means that storage is slow: raise reads_in_flight or set cache_dir; much busy "
        "of decode means that cores are the limit: raise threads or processes, or make a slow transform faster.",
        values=_stage_times,
        labels=("stage", "activity"),
    ),
    Metric(
        name="stage_items",
        kind="counter",
        text="Images that passed a stage. Fewer of decode than of fetch: some were skipped.",
        values=_stage_items,
        labels=("stage",),
    ),
    Metric(
        name="fetch_requests",
        kind="counter",
        text="Reads from the bucket or disk. A bucket charges for each; many for few bytes: raise block_bytes.",
        values=_fetched("requests"),
    ),
    Metric(
        name="fetched_bytes",
        kind="counter",
        text="Bytes that were read from the bucket or disk, without those of the cache. Its rate near that of the "
        "network or disk: set cache_dir for a bucket, or store smaller images with `dataprep convert`.",
        values=_fetched("bytes_read"),
    ),
    Metric(
        name="cache_hits",
        kind="counter",
        text="Reads that the cache on the disk answered. From the second epoch on few of all reads: raise cache_bytes.",
        values=_fetched("cache_hits"),
    ),
    Metric(
        name="retries",
        kind="counter",
        text="Reads that were sent again after 408, 429, 5xx or a broken connection. If it grows steadily, the bucket "
        "throttles: lower reads_in_flight.",
        values=_fetched("retries"),
    ),
    Metric(
        name="hedged_reads",
        kind="counter",
        text="Slow reads that were sent a second time: at most 5 % of fetch_requests, and 5 more. Near that: the "
        "bucket's latency is uneven.",
        values=_fetched("hedges"),
    ),
    Metric(
        name="hedged_reads_won",
        kind="counter",
        text="Hedged reads that ended before the slow one: waits that hedging saved.",
        values=_fetched("hedges_won"),
    ),
    Metric(
        name="fetch_blocked_seconds",
        kind="counter",
        text="Time for which reading ahead waited for prefetch_bytes. High while training waits: raise prefetch_bytes.",
        values=_fetched("blocked_s"),
    ),
    Metric(
        name="held_bytes",
        kind="gauge",
        text="Bytes of encoded images held or in flight from a bucket. Near prefetch_bytes, which worker processes "
        "share, reading ahead waits.",
        values=_fetched("held_bytes"),
    ),
    Metric(
        name="epoch",
        kind="gauge",
        text="Epoch of the next batch. It falls where a run resumed from an older state.",
        values=lambda found, _: {(): found.epoch},
    ),
    Metric(
        name="batch",
        kind="gauge",
        text="Number of the next batch, of training counted over all epochs. Ranks that differ by more than "
        "prefetch_batches do not train together.",
        values=lambda found, _: {(): found.batch},
    ),
)
