"""Searches for the fastest settings of a loader, as pure functions of measured rates.

A search yields settings of whole runs in the order in which somebody who follows it would try them, and may look at the
rates of those that it has yielded. Trials are counted on the rates that one run of `trials.py` has measured for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from benchmarks.situations.situation import READS_IN_FLIGHT, Situation

NEAR = 0.95
"""Share of the best rate at which a search has arrived."""
RISE = 1.05
"""Ratio of two rates below which a search by hand does not count the second as higher."""
LEVELS = (32, 16, 8, 4, 1)
"""Concurrencies at which SPDL's `profile_pipeline` measures each stage."""
ADVISED = (4, 8)
"""Concurrencies that are typically enough, as SPDL's guide says."""
SINK_BATCHES = 3
"""Batches that wait for the training loop in SPDL's examples (`add_sink(3)`)."""
WORKERS = (0, 1, 2, 4, 8)
"""Values of `num_workers` that users of PyTorch's DataLoader try."""
FACTORS = (2, 4, 8)
"""Values of `prefetch_factor`; 2 is the default."""
GRID_THREADS = (1, 2, 4, 8)
GRID_PROCESSES = (2,)
GRID_BATCHES = (2, 8)
GRID_READS = (8, 32, 128)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Settings that every search may change."""

    threads: int
    """Threads that decode, in every process."""
    processes: int
    prefetch_batches: int
    reads_in_flight: int | None
    """Images that are fetched at a time; None: the dataset is on a disk, and the threads that decode read it."""

    def applied(self, situation: Situation) -> Situation:
        """Return a situation with these settings."""
        return replace(situation, **asdict(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Stages:
    """Rates of stages alone by their concurrency, images/s."""

    decode: Mapping[int, float]
    fetch: Mapping[int, float]
    """Empty for a dataset on a disk."""


@dataclass(frozen=True, slots=True)
class Step:
    """A setting that a search arrives at."""

    setting: Setting
    trials: int
    """Whole runs with changed settings up to here, with this one."""


Rate = Callable[[Setting], float]
Search = Iterable[Setting]


def setting_of(situation: Situation) -> Setting:
    """Return the settings that a situation has."""
    reads = (situation.reads_in_flight or READS_IN_FLIGHT) if situation.is_in_bucket else None
    return Setting(
        threads=situation.threads,
        processes=situation.processes,
        prefetch_batches=situation.prefetch_batches,
        reads_in_flight=reads,
    )


def grid(base: Setting) -> list[Setting]:
    """Return the grid around a situation's own settings, which come first."""
    workers = [(threads, 0) for threads in GRID_THREADS] + [(1, processes) for processes in GRID_PROCESSES]
    reads = (None,) if base.reads_in_flight is None else GRID_READS
    found = [
        Setting(threads=threads, processes=processes, prefetch_batches=batches, reads_in_flight=each)
        for threads, processes in workers
        for batches in GRID_BATCHES
        for each in reads
    ]
    return list(dict.fromkeys([base, *found]))


def spdl(base: Setting, stages: Stages, rate: Rate) -> Iterator[Setting]:
    """Search as SPDL's documents say.

    Each stage is profiled alone (`profile_pipeline`), and the pipeline is run with the best concurrency of each. Then
    the slowest stage gets the concurrencies that the guide on bottlenecks advises, and at last the fastest of these
    pipelines is moved to a process of its own.
    """
    decode = _best_level(stages.decode)
    fetch = _best_level(stages.fetch) if stages.fetch else None
    profiled = Setting(threads=decode, processes=0, prefetch_batches=SINK_BATCHES, reads_in_flight=fetch)
    tried = [profiled]
    yield profiled
    fetches_slowly = fetch is not None and stages.fetch[fetch] < stages.decode[decode]
    for level in ADVISED:
        advised = replace(profiled, reads_in_flight=level) if fetches_slowly else replace(profiled, threads=level)
        if advised not in tried:
            tried.append(advised)
            yield advised
    yield replace(max([base, *tried], key=rate), processes=1)


def by_hand(base: Setting, rate: Rate) -> Iterator[Setting]:
    """Search as users of PyTorch's DataLoader do: more workers until the rate stops rising, then more batches ahead."""
    best: Setting | None = None
    for workers in WORKERS:
        now = _with_workers(base, workers, FACTORS[0])
        yield now
        if best is not None and rate(now) < RISE * rate(best):
            break
        best = now
    if best is None or not best.processes:
        return
    for factor in FACTORS[1:]:
        now = _with_workers(base, best.processes, factor)
        yield now
        if rate(now) < RISE * rate(best):
            break
        best = now


def whole_grid(base: Setting) -> Iterator[Setting]:
    """Try the whole grid in order."""
    yield from grid(base)[1:]


def counted(search: Search) -> list[Step]:
    """Return the steps of a search in which each setting is a trial."""
    return [Step(setting, number) for number, setting in enumerate(search, 1)]


def trials_until(base: Setting, steps: Sequence[Step], rate: Rate, best: float) -> int | None:
    """Return the trials until a search has a setting within 5 % of the best rate; None if it ends before.

    0: the settings that the situation has are so fast already.
    """
    for step in (Step(base, 0), *steps):
        if rate(step.setting) >= NEAR * best:
            return step.trials
    return None


def _best_level(rates: Mapping[int, float]) -> int:
    """Return the concurrency with the highest rate; of equal ones, the smallest."""
    return max(sorted(rates), key=lambda level: rates[level])


def _with_workers(base: Setting, workers: int, factor: int) -> Setting:
    """Return the settings of as many workers: each decodes in one thread, and has `factor` batches ahead."""
    return replace(base, threads=1, processes=workers, prefetch_batches=factor * max(1, workers))
