"""Prediction of a run's rate from the rates of its stages alone: pure arithmetic.

An image is fetched (F), prepared (P), transferred (H) and computed (G). Stages that run at the same time are bounded by
the slowest one or by the cores that they share; the times of stages that take turns add up. How near to that bound a
run comes depends on how many batches may wait between the stages, so some hundred batches are simulated.

Sources: Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training" (VLDB 2021), for the rates and the stalls;
Kuchnik et al., "Plumber" (MLSys 2022), for the division of cores.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from loaders.diagnosis.findings import STAGES, Limit, Stage

COMPUTE_BOUND = 0.95
"""Share of the rate of compute alone at which the device is taken for the limit."""
SIMULATED_BATCHES = 400
"""Batches that are simulated; the first quarter, in which queues fill, does not count."""
CONTENTION = 0.9
"""Share of the prediction below which the stages slow each other down."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batches:
    """How a run moves its images."""

    images: int
    """Images in each batch of this host."""
    ahead: int
    """Batches that the loader has in progress besides the one that was taken last."""
    on_device: int
    """Batches that may be on the device besides the one of the running step; 0: a step waits for its own transfer."""
    fetch_latency_s: float = 0.0
    """Time from the request of a batch's bytes to the arrival of the last one, while nothing else is in flight."""
    jitter: tuple[float, ...] = (1.0,)
    """Times to prepare successive batches, relative to their mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What every stage reaches alone, and what it takes from the machine."""

    images_per_s: Mapping[Stage, float]
    cpu_s_per_image: Mapping[Stage, float]
    """CPU time, summed over all cores."""
    cores: float
    """Cores of the machine that these stages may use."""
    transfer_ahead: bool
    """Whether a batch is transferred while the step before runs, or the step waits for it."""
    fetch_in_turn: bool
    """Whether the threads that prepare also fetch (from a local disk), so that the times add up."""
    batches: Batches


@dataclass(frozen=True, slots=True)
class Prediction:
    """Rate of the whole run, and what limits it."""

    images_per_s: float
    limit: Limit


def predict(rates: Rates) -> Prediction:
    """Return the rate of all stages together.

    X <= min(F, P, H, G, cores / sum of CPU seconds an image), where stages that take turns count as one whose time is
    the sum of theirs and whose name is that of the slowest. Few batches between the stages make the rate lower.
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
    found = [Prediction(_in_turn(alone, group), _slowest(alone, group)) for group in groups]
    cpu_s = sum(rates.cpu_s_per_image.values())
    if cpu_s > 0:
        found.append(Prediction(rates.cores / cpu_s, "cores"))
    return min(found, key=lambda each: each.images_per_s)


def _simulated(rates: Rates, bound: Prediction) -> float:
    """Return the images/s of some hundred simulated batches that wait for each other as a run's do.

    Each stage begins with a batch when the stage before has finished it and it has finished the batch before itself.
    Fetching also waits until there is room, i.e. until the batch `ahead` places earlier was taken; sending waits until
    the step of the batch `on_device` places earlier has started.
    """
    alone, batches = rates.images_per_s, rates.batches
    fetch_s, transfer_s, compute_s = (batches.images / alone[name] for name in ("fetch", "transfer", "compute"))
    prepare_s = batches.images / min(alone["prepare"], bound.images_per_s if bound.limit == "cores" else math.inf)
    fetched_s = prepared_s = sent_s = done_s = 0.0
    taken, started = deque([0.0] * batches.ahead), deque([0.0] * max(1, batches.on_device))
    for number in range(SIMULATED_BATCHES):
        fetched_s = max(taken.popleft() + batches.fetch_latency_s, fetched_s + fetch_s)
        prepared_s = max(prepared_s, fetched_s) + prepare_s * batches.jitter[number % len(batches.jitter)]
        # A thread that sends takes a batch when the one before is sent; without it the step before must be finished.
        taken_s = max(prepared_s, max(sent_s, started.popleft()) if batches.on_device else done_s)
        sent_s = taken_s + transfer_s
        started_s = max(sent_s, done_s)
        done_s = started_s + compute_s
        taken.append(taken_s)
        started.append(started_s)
        if number == SIMULATED_BATCHES // 4:
            from_s = done_s
    return (SIMULATED_BATCHES - 1 - SIMULATED_BATCHES // 4) * batches.images / max(done_s - from_s, 1e-12)


def _slowest(alone: Mapping[Stage, float], group: tuple[Stage, ...]) -> Stage:
    return min(group, key=lambda name: alone[name])


def _in_turn(alone: Mapping[Stage, float], group: tuple[Stage, ...]) -> float:
    if len(group) == 1:
        return alone[group[0]]
    return 1 / sum(1 / alone[name] for name in group)


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
