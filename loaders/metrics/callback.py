"""Numbers of a loader for the log of a training run: a flat dictionary every few steps.

    report = MetricsCallback(loader, wandb.log)
    for step, batch in enumerate(loader):
        train(batch)
        report(step)

Any function that takes a dictionary and a step will do: wandb.log, accelerator.log, Lightning's logger.log_metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from inspect import cleandoc
from typing import Protocol, TypeAlias

from dataprep.errors import UsageError
from loaders.engine.stats import Durations, Snapshot, StageTimes

EVERY = 20
PREFIX = "loader/"
Log: TypeAlias = Callable[[dict[str, float], int], object]

FIELDS: Mapping[str, str] = {
    "images_per_s": "Images of this rank that were taken. Compare with `dataprep bench`, which trains nothing.",
    "wait_share": "Share of the time in which the loop waited for a batch. Above 0.05, run `dataprep diagnose`.",
    "wait_p50_s": "Median wait for a batch. It is 0.00 where the loader is ahead.",
    "wait_p90_s": "Wait for a batch that one in ten exceeds.",
    "wait_p99_s": "Wait for a batch that one in a hundred exceeds. High with a low median: raise prefetch_batches.",
    "fetch_wait_p50_s": "Median wait of a decoding thread for the bytes of up to 32 images.",
    "fetch_wait_p99_s": "Wait for bytes that one in a hundred exceeds. High: storage is slow or uneven; set cache_dir.",
    "decode_p50_s": "Median time in which a thread decodes up to 32 images. If it grows, the cores are busy with more.",
    "decode_p99_s": "Time to decode up to 32 images that one in a hundred exceeds.",
    "transform_share": "Share of the decoding time that your transform takes. Above 0.5, make it faster first.",
    "ready_batches": "Finished batches that wait to be taken. 0 while training waits: the loader is too slow.",
    "fetched_bytes_per_s": "Bytes that were read from the bucket or disk. Near the network's rate: set cache_dir.",
    "cache_hits": "Reads that the cache on the disk answered.",
    "retries": "Requests that were sent again. If there are some in each report, the bucket throttles.",
    "hedged_reads": "Slow reads that were sent a second time.",
    "skipped_images": "Images that were masked because they could not be read. Run `dataprep verify --deep`.",
    "epoch": "Epoch of the next batch.",
}
"""Names of a report's numbers, without PREFIX, with their meanings; counts start at the last report."""


class HasSnapshot(Protocol):
    """A loader with counters."""

    def snapshot(self) -> Snapshot:
        """Return everything that the loader counts."""


class MetricsCallback:
    """Gives numbers of a loader to a function that logs them.

    Args:
        loader: Loader of the training run.
        log: Function that logs a dictionary of numbers for a step, e.g. `wandb.log`.
        every: Number of calls between two reports, and before the first one.
        clock: Function that returns the time, seconds.
    """

    def __init__(
        self, loader: HasSnapshot, log: Log, *, every: int = EVERY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not callable(log):
            raise UsageError(f"log must be a function of a dictionary and a step, such as wandb.log, got {log!r}")
        if not isinstance(every, int) or every < 1:
            raise UsageError(f"every must be 1 or more, got {every!r}")
        self._loader, self._log, self._every, self._clock = loader, log, every, clock
        self._calls = 0
        self._before, self._before_s = loader.snapshot(), clock()

    def __call__(self, step: int) -> None:
        """Count a step, and log if a report is due."""
        self._calls += 1
        if self._calls % self._every == 0:
            self._log(self.take(), step)

    def take(self) -> dict[str, float]:
        """Return the numbers since the last report, whose names begin with `loader/`."""
        now, now_s = self._loader.snapshot(), self._clock()
        found = differences(self._before, now, max(now_s - self._before_s, 1e-9))
        self._before, self._before_s = now, now_s
        return {PREFIX + name: value for name, value in found.items()}


MetricsCallback.__doc__ = f"{cleandoc(MetricsCallback.__doc__ or '')}\n\nNumbers of a report:\n\n" + "\n".join(
    f"{PREFIX}{name}  {text}" for name, text in FIELDS.items()
)


def differences(before: Snapshot, now: Snapshot, elapsed_s: float) -> dict[str, float]:
    """Return the numbers of FIELDS for the time between two snapshots of a loader."""
    waits = _since(before, now, "batch", "get_wait_s")
    fetching = _since(before, now, "fetch", "get_wait_s").percentiles()
    decode = _since(before, now, "decode", "busy_s")
    decoding, transform = decode.percentiles(), _since(before, now, "transform", "busy_s")
    waiting = waits.percentiles()

    def fetched(name: str) -> float:
        return now.fetch.get(name, 0.0) - before.fetch.get(name, 0.0)

    return {
        "images_per_s": (now.images - before.images) / elapsed_s,
        "wait_share": min(1.0, waits.sum_s / elapsed_s),
        "wait_p50_s": waiting["p50"],
        "wait_p90_s": waiting["p90"],
        "wait_p99_s": waiting["p99"],
        "fetch_wait_p50_s": fetching["p50"],
        "fetch_wait_p99_s": fetching["p99"],
        "decode_p50_s": decoding["p50"],
        "decode_p99_s": decoding["p99"],
        "transform_share": min(1.0, transform.sum_s / decode.sum_s) if decode.sum_s > 0 else 0.0,
        "ready_batches": now.ready_batches,
        "fetched_bytes_per_s": fetched("bytes_read") / elapsed_s,
        "cache_hits": fetched("cache_hits"),
        "retries": fetched("retries"),
        "hedged_reads": fetched("hedges"),
        "skipped_images": sum(now.skipped.values()) - sum(before.skipped.values()),
        "epoch": now.epoch,
    }


def _since(before: Snapshot, now: Snapshot, stage: str, name: str) -> Durations:
    """Return the durations of a stage between two snapshots of a loader."""
    nothing = StageTimes()
    later, earlier = now.stages.get(stage, nothing), before.stages.get(stage, nothing)
    return later.by_name()[name].since(earlier.by_name()[name])
