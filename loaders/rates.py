"""What the stages make together, from what each makes alone: pure arithmetic on rates.

An image is fetched (F), prepared (P), transferred (H) and computed (G). Where the stages work side by side, the slowest
one or the cores they share bound the rate of the whole; where they take turns, their times add up. How near to the
bound a run comes depends on how many batches may wait between the stages: that is played through, batch by batch.

Sources: Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training" (VLDB 2021), for the rates and the stalls;
Kuchnik et al., "Plumber" (MLSys 2022), for the division of cores.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from loaders.findings import STAGES, Limit, Stage

COMPUTE_BOUND = 0.95
"""Of compute alone: from here on there is nothing left to gain before the device."""
PLAYED_BATCHES = 400
CONTENTION = 0.9
"""Of the prediction: below it the stages are in each other's way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batches:
    """How a run moves its images."""

    images: int
    """In each batch, of this host."""
    ahead: int
    """Batches that the loader has under way beside the one that was taken last."""
    on_device: int
    """Batches that may be on the device beside the one of the running step; 0: a step waits for its own transfer."""
    fetch_latency_s: float = 0.0
    """From asking for a batch's bytes until the last of them is there, where nothing else is under way."""
    jitter: tuple[float, ...] = (1.0,)
    """Times to prepare one batch after the other, relative to their mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What every stage makes alone, and what it takes from the machine."""

    images_per_s: Mapping[Stage, float]
    cpu_s_per_image: Mapping[Stage, float]
    """Of all cores together."""
    cores: float
    """That these stages may have of the machine."""
    transfer_ahead: bool
    """A batch travels while the step before runs, or the step waits for it."""
    fetch_in_turn: bool
    """The threads that prepare fetch as well (a local disk), so that the times add up."""
    batches: Batches


@dataclass(frozen=True, slots=True)
class Prediction:
    """The rate of the whole, and what holds it back."""

    images_per_s: float
    limit: Limit


def predict(rates: Rates) -> Prediction:
    """The rate at which all stages work together.

    X <= min(F, P, H, G, cores / sum of CPU seconds an image), where stages that take turns count as one whose time is
    the sum of theirs; of those the slower one is named. Few batches between the stages make it less.
    """
    bound = _bound(rates)
    return Prediction(min(bound.images_per_s, _played(rates, bound)), bound.limit)


def _bound(rates: Rates) -> Prediction:
    alone = rates.images_per_s
    groups: list[tuple[Stage, ...]] = [("fetch", "prepare")] if rates.fetch_in_turn else [("fetch",), ("prepare",)]
    groups += [("transfer",), ("compute",)] if rates.transfer_ahead else [("transfer", "compute")]
    found = [Prediction(_in_turn(alone, group), _slowest(alone, group)) for group in groups]
    cpu_s = sum(rates.cpu_s_per_image.values())
    if cpu_s > 0:
        found.append(Prediction(rates.cores / cpu_s, "cores"))
    return min(found, key=lambda each: each.images_per_s)


def _played(rates: Rates, bound: Prediction) -> float:
    """Images/s of some hundred batches that wait for each other as a run's do."""
    alone, batches = rates.images_per_s, rates.batches
    fetch_s, transfer_s, compute_s = (batches.images / alone[name] for name in ("fetch", "transfer", "compute"))
    prepare_s = batches.images / min(alone["prepare"], bound.images_per_s if bound.limit == "cores" else math.inf)
    fetched_s = prepared_s = sent_s = done_s = 0.0
    taken, started = deque([0.0] * batches.ahead), deque([0.0] * max(1, batches.on_device))
    for number in range(PLAYED_BATCHES):
        fetched_s = max(taken.popleft() + batches.fetch_latency_s, fetched_s + fetch_s)
        prepared_s = max(prepared_s, fetched_s) + prepare_s * batches.jitter[number % len(batches.jitter)]
        # The thread that sends takes a batch when the one before is sent; without it the step before must be done.
        taken_s = max(prepared_s, max(sent_s, started.popleft()) if batches.on_device else done_s)
        sent_s = taken_s + transfer_s
        started_s = max(sent_s, done_s)
        done_s = started_s + compute_s
        taken.append(taken_s)
        started.append(started_s)
        if number == PLAYED_BATCHES // 4:
            from_s = done_s
    return (PLAYED_BATCHES - 1 - PLAYED_BATCHES // 4) * batches.images / max(done_s - from_s, 1e-12)


def _slowest(alone: Mapping[Stage, float], group: tuple[Stage, ...]) -> Stage:
    return min(group, key=lambda name: alone[name])


def _in_turn(alone: Mapping[Stage, float], group: tuple[Stage, ...]) -> float:
    if len(group) == 1:
        return alone[group[0]]
    return 1 / sum(1 / alone[name] for name in group)


def allocate(rates: Rates, most_cores: Mapping[Stage, float]) -> tuple[float, dict[str, float]]:
    """The best division of the cores: maximise X with X <= cores_i / cpu_i, sum of cores_i <= cores, cores_i <= most_i.

    Stages whose rate is not made by cores (a bucket, a wire, an accelerator) bound X by what they make alone.

    Args:
        rates: Alone; the images_per_s of `prepare` do not count, its cores do.
        most_cores: That a stage can use; 1 for a serial one.

    Returns:
        X, and the cores of each stage at it.
    """
    cpu_s = rates.cpu_s_per_image
    total_s = sum(cpu_s.values())
    bounds = [rates.images_per_s[name] for name in STAGES if name != "prepare"]
    bounds += [most_cores[name] / cpu_s[name] for name in STAGES if name in most_cores and cpu_s[name] > 0]
    if total_s > 0:
        bounds.append(rates.cores / total_s)
    best = min(bounds)
    return best, {name: best * cpu_s[name] for name in STAGES}
