"""Prediction of a run's rate from the rates of its stages alone: pure arithmetic.

An image is fetched (F), prepared (P), transferred (H) and computed (G). Stages that run at the same time are bounded by
the slowest one or by the cores that they share; the times of stages that take turns add up. How close a run comes to
that bound depends on the number of batches that may wait between the stages, so some hundred batches are simulated. The
second part finds how many images to request ahead so that fetching no longer limits a run. The third finds which
changes to try: an untried change's rate is between its prediction times the smallest and times the largest ratio of
measured to predicted rate of such changes. A change is left out if its upper bound is below another's lower bound.

Sources: Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training" (VLDB 2021), for the rates and the stalls;
Kuchnik et al., "Plumber" (MLSys 2022), for the division of cores.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from loaders.diagnosis.findings import MIN_GAIN, STAGES, Fix, Limit, Stage

COMPUTE_BOUND = 0.95
"""Share of the rate of compute alone from which on the device counts as the limit."""
SIMULATED_BATCHES = 400
"""Batches that are simulated; the first quarter, while queues fill, does not count."""
CONTENTION = 0.9
"""Share of the prediction below which the stages slow each other down."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batches:
    """Batches of a run, and the room between its stages."""

    images: int
    """Images in each batch of this host."""
    ahead: int
    """Batches that the loader has in progress after the one that was taken last."""
    on_device: int
    """Batches on the device in addition to the one of the running step; 0: a step waits for its own transfer."""
    fetch_latency_s: float = 0.0
    """Time from the request of a batch's bytes to the arrival of the last one, while nothing else is in flight."""
    jitter: tuple[float, ...] = (1.0,)
    """Times to prepare successive batches, relative to their mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Rates of the stages alone, and their use of the machine."""

    images_per_s: Mapping[Stage, float]
    cpu_s_per_image: Mapping[Stage, float]
    """CPU time, summed over all cores."""
    cores: float
    """Cores of the machine that these stages may use."""
    transfer_ahead: bool
    """Whether a batch is transferred while the step before runs; otherwise the step waits for it."""
    fetch_in_turn: bool
    """Whether the threads that prepare also fetch (from a local disk), so that the times add up."""
    batches: Batches


@dataclass(frozen=True, slots=True)
class Prediction:
    """Rate of a run, and its limit."""

    images_per_s: float
    limit: Limit


def predict(rates: Rates) -> Prediction:
    """Return the rate of all stages together.

    X <= min(F, P, H, G, cores / sum of CPU seconds an image), where stages that take turns count as one: their times
    add up, and it is named after the slowest. Few batches between the stages make the rate lower.
    """
    bound = _bound(rates)
    return Prediction(min(bound.images_per_s, _simulated(rates, bound)), bound.limit)


def predict_fetched(rates: Rates) -> Prediction:
    """Return the rate of all stages together if every image had arrived when it is needed.

    The cores that fetching takes are still shared with the other stages.
    """
    return predict(
        replace(
            rates,
            images_per_s={**rates.images_per_s, "fetch": math.inf},
            batches=replace(rates.batches, fetch_latency_s=0.0),
        )
    )


def _bound(rates: Rates) -> Prediction:
    alone = rates.images_per_s
    groups: list[tuple[Stage, ...]] = [("fetch", "prepare")] if rates.fetch_in_turn else [("fetch",), ("prepare",)]
    groups += [("transfer",), ("compute",)] if rates.transfer_ahead else [("transfer", "compute")]
    found = []
    for group in groups:
        slowest = min(group, key=lambda name: alone[name])
        found.append(Prediction(1 / sum(1 / alone[name] for name in group) if group[1:] else alone[slowest], slowest))
    cpu_s = sum(rates.cpu_s_per_image.values())
    if cpu_s > 0:
        found.append(Prediction(rates.cores / cpu_s, "cores"))
    return min(found, key=lambda each: each.images_per_s)


def _simulated(rates: Rates, bound: Prediction) -> float:
    """Return the images/s of some hundred simulated batches, which wait for each other as in a run.

    Each stage begins with a batch when the stage before has finished it and it has finished the batch before itself.
    Fetching also waits for room, i.e. until the batch `ahead` places earlier was taken; sending waits until the step of
    the batch `on_device` places earlier has started.
    """
    alone, batches = rates.images_per_s, rates.batches
    fetch_s, transfer_s, compute_s = (batches.images / alone[name] for name in ("fetch", "transfer", "compute"))
    prepare_s = batches.images / min(alone["prepare"], bound.images_per_s if bound.limit == "cores" else math.inf)
    fetched_s = prepared_s = sent_s = done_s = 0.0
    taken, started = deque([0.0] * batches.ahead), deque([0.0] * max(1, batches.on_device))
    for number in range(SIMULATED_BATCHES):
        fetched_s = max(taken.popleft() + batches.fetch_latency_s, fetched_s + fetch_s)
        prepared_s = max(prepared_s, fetched_s) + prepare_s * batches.jitter[number % len(batches.jitter)]
        # A sending thread takes a batch when the one before is sent; without such a thread the step before must be
        # finished.
        taken_s = max(prepared_s, max(sent_s, started.popleft()) if batches.on_device else done_s)
        sent_s = taken_s + transfer_s
        started_s = max(sent_s, done_s)
        done_s = started_s + compute_s
        taken.append(taken_s)
        started.append(started_s)
        if number == SIMULATED_BATCHES // 4:
            from_s = done_s
    return (SIMULATED_BATCHES - 1 - SIMULATED_BATCHES // 4) * batches.images / max(done_s - from_s, 1e-12)


def allocate(rates: Rates, most_cores: Mapping[Stage, float]) -> tuple[float, dict[str, float]]:
    """Find the best division of the cores: the largest X with X <= cores_i / cpu_i, sum of cores_i <= cores and
    cores_i <= most_i.

    Stages whose rate does not depend on cores (a bucket, a wire, an accelerator) bound X by their rate alone.

    Args:
        rates: Rates of the stages alone; for `prepare` only the CPU time counts.
        most_cores: Cores that a stage can use; 1 for a serial stage.

    Returns:
        X, and the cores of each stage at that rate.
    """
    cpu_s = rates.cpu_s_per_image
    total_s = sum(cpu_s.values())
    bounds = [rates.images_per_s[name] for name in STAGES if name != "prepare"]
    bounds += [most_cores[name] / cpu_s[name] for name in STAGES if name in most_cores and cpu_s[name] > 0]
    if total_s > 0:
        bounds.append(rates.cores / total_s)
    best = min(bounds)
    return best, {name: best * cpu_s[name] for name in STAGES}


MORE_AHEAD = 4
"""Factor for raising the batch size, and the threads of a transform that waits; requests in flight are raised by at
least this factor."""
BEYOND = 2.0
"""Target rate of fetching alone, relative to the next limit. In a run, requests share cores with the other stages and
take longer than alone: with just enough requests to reach the next limit alone, a run would stay below it."""
MOST_READS = 512
"""Number of requests in flight up to which they are raised by more than MORE_AHEAD: each takes a thread."""
ROOM = 2
"""Images in the batches ahead for each request in flight. More than one, because images that have arrived wait to be
decoded, or for the rest of their batch."""
BUSY_INTERPRETER = 0.9
"""Cores in use by one fetching process from which on its interpreter lock may limit it."""


def reads_needed(in_flight: float, fetch: float, beyond: float, usual: int) -> int:
    """Return the number of requests in flight with which fetching is no longer the limit, if its rate grows in
    proportion.

    The number is at least a loader's default: with few requests each takes more CPU time, which makes `beyond` too low.

    Args:
        in_flight: Images in flight now.
        fetch: Images/s of fetching alone with them.
        beyond: Images/s of the run if fetching were not the limit.
        usual: Requests in flight by default.
    """
    wanted = min(BEYOND * beyond / fetch * in_flight, MOST_READS)
    return math.ceil(max(MORE_AHEAD * in_flight, usual, wanted))


def batches_needed(reads: int, rows: int) -> int:
    """Return the batches ahead that always allow this many requests in flight."""
    return math.ceil(ROOM * reads / rows)


def rate_of_processes(fetch: float, own_cores: float, processes: int) -> float:
    """Return the images/s that several processes fetch, from the rate of one that has the requests of all of them in
    flight: that rate times the number of processes if the interpreter lock limits the one, else that rate.
    """
    return fetch * max(1, processes) if own_cores >= BUSY_INTERPRETER else fetch


class ErrorRange(NamedTuple):
    """Smallest and largest expected ratio of a measured rate to the predicted one."""

    least: float
    most: float


USUAL = ErrorRange(least=0.9, most=4 / 3)
"""Range for most changes: in a hundred planted situations (benchmarks/README.md), 74 predictions from the stages alone
were within 10 %, and some were a quarter too low."""
LARGER: dict[tuple[str, Limit], ErrorRange] = {
    # In twelve situations of another seed, 1,232 images/s were measured for 454 predicted, and 1,191 for 615.
    ("cache", "fetch"): ErrorRange(least=0.9, most=2.75)
}
"""Ranges of predictions that were further off than usual, by change and by the limit of the run as it is."""


def error_range(name: str, limit: Limit) -> ErrorRange:
    """Return the error range of predictions of a change in runs with this limit."""
    return LARGER.get((name, limit), USUAL)


def highest_rate(fix: Fix, limit: Limit) -> float:
    """Return the images/s that a change reaches at most; for a tried one, the measured rate."""
    return fix.images_per_s if fix.is_tried else fix.images_per_s * error_range(fix.name, limit).most


def lowest_rate(fix: Fix, limit: Limit) -> float:
    """Return the images/s that a change reaches at least; for a tried one, the measured rate."""
    return fix.images_per_s if fix.is_tried else fix.images_per_s * error_range(fix.name, limit).least


def may_gain(fix: Fix, limit: Limit) -> bool:
    """Whether a change is predicted to gain enough, or may gain it within its prediction's error range."""
    most = LARGER[fix.name, limit].most if (fix.name, limit) in LARGER else 1.0
    return fix.gain * most >= MIN_GAIN


def next_to_try(fixes: Sequence[Fix], limit: Limit, untriable: Set[str] = frozenset()) -> Fix | None:
    """Return the untried change with the highest possible rate, or None if no untried change can be the best one."""
    certain = max((lowest_rate(fix, limit) for fix in fixes), default=0.0)
    untried = [fix for fix in fixes if not fix.is_tried and fix.name not in untriable]
    leading = max(untried, key=lambda fix: highest_rate(fix, limit), default=None)
    return leading if leading is not None and highest_rate(leading, limit) >= certain else None
