"""What each stage of a loader did and where it waited; the stage for which the others wait is the bottleneck."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

from loaders.engine.durations import Durations, Percentiles


class StageStats(TypedDict):
    """Sums of one stage since the start, and how long single pieces of work and single waits took.

    A time of which nothing was measured is None, and has no percentiles.
    """

    items: int
    busy_s: float | None
    """Working time, summed over the threads of the stage."""
    get_wait_s: float | None
    """Time in which threads of the stage waited for the stage before it, summed over the threads."""
    put_wait_s: float | None
    """Time in which threads of the stage waited for the stage after it, summed over the threads."""
    cpu_s: float | None
    """CPU time of the threads of the stage; measured for `transform` alone."""
    percentiles: dict[str, Percentiles]
    """Percentiles by the name of the sum, within 3.5 %."""


class LoaderStats(TypedDict):
    """What a loader did so far."""

    stages: dict[str, StageStats]
    """Stages by name; `transform` is a part of `decode`, and absent where there is none."""
    fetch: dict[str, float]
    skipped: dict[str, int]
    """Images that were skipped, by reason."""


class Moment(NamedTuple):
    """A part of a batch's way through one stage; the clock is `time.monotonic`, which processes of a host share."""

    stage: str
    started_s: float
    ended_s: float


@dataclass(slots=True)
class StageTimes:
    """What one stage did: items, and every duration of working and waiting."""

    items: int = 0
    busy_s: Durations = field(default_factory=Durations)
    get_wait_s: Durations = field(default_factory=Durations)
    put_wait_s: Durations = field(default_factory=Durations)
    cpu_s: Durations = field(default_factory=Durations)

    def by_name(self) -> dict[str, Durations]:
        """Return the durations by the names that they have in `StageStats`."""
        return {
            "busy_s": self.busy_s,
            "get_wait_s": self.get_wait_s,
            "put_wait_s": self.put_wait_s,
            "cpu_s": self.cpu_s,
        }

    def merge(self, other: StageTimes) -> None:
        """Add what another process did in this stage."""
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
    """Counters of all fetchers so far; those whose name contains `held` are of the present ones."""
    skipped: dict[str, int]
    """Images that were skipped, by reason."""
    images: int
    """Images that were delivered."""
    epoch: int
    """Epoch of the next batch."""
    batch: int
    """Number of the next batch: of training counted over all epochs, of an evaluation from its beginning."""
    ready_batches: int
    """Batches that are finished and wait to be taken."""

    def stats(self) -> LoaderStats:
        """Return sums and percentiles, as `Loader.stats` does."""
        stages = {name: times.stats() for name, times in self.stages.items()}
        return {"stages": stages, "fetch": self.fetch, "skipped": self.skipped}


class Stats:
    """Stages by name; safe in many threads."""

    def __init__(self) -> None:
        self._stages: dict[str, StageTimes] = {}
        self._lock = threading.Lock()

    def add(
        self,
        name: str,
        *,
        items: int = 0,
        busy_s: float | None = None,
        get_wait_s: float | None = None,
        put_wait_s: float | None = None,
        cpu_s: float | None = None,
    ) -> None:
        """Add work and waiting to a stage: each time that is given is one duration of the stage."""
        with self._lock:
            stage = self._stages.setdefault(name, StageTimes())
            stage.items += items
            if busy_s is not None:
                stage.busy_s.add(busy_s)
            if get_wait_s is not None:
                stage.get_wait_s.add(get_wait_s)
            if put_wait_s is not None:
                stage.put_wait_s.add(put_wait_s)
            if cpu_s is not None:
                stage.cpu_s.add(cpu_s)

    def merge(self, stages: dict[str, StageTimes]) -> None:
        """Add what was taken from the stages of another process."""
        with self._lock:
            for name, times in stages.items():
                self._stages.setdefault(name, StageTimes()).merge(times)

    def take(self) -> dict[str, StageTimes]:
        """Return all stages since the last call, as an argument of `merge`."""
        with self._lock:
            taken, self._stages = self._stages, {}
            return taken

    def times(self) -> dict[str, StageTimes]:
        """Return a copy of all stages by name."""
        with self._lock:
            return {name: stage.copy() for name, stage in self._stages.items()}

    def snapshot(self) -> dict[str, StageStats]:
        """Return sums and percentiles of all stages by name."""
        return {name: stage.stats() for name, stage in self.times().items()}
