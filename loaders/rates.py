"""What the stages make together, from what each makes alone: pure arithmetic on rates.

An image is fetched (F), prepared (P), transferred (H) and computed (G). Where the stages work side by side, the slowest
one or the cores they share say how fast all of it is; where they take turns, their times add up.

Sources: Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training" (VLDB 2021), for the rates and the stalls;
Kuchnik et al., "Plumber" (MLSys 2022), for the division of cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loaders.findings import STAGES, Limit, Stage

COMPUTE_BOUND = 0.95
"""Of compute alone: from here on there is nothing left to gain before the device."""
CONTENTION = 0.9
"""Of the prediction: below it the stages are in each other's way."""


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


@dataclass(frozen=True, slots=True)
class Prediction:
    """The rate of the whole, and what holds it back."""

    images_per_s: float
    limit: Limit


def predict(rates: Rates) -> Prediction:
    """The rate at which all stages work together.

    X = min(F, P, H, G, cores / sum of CPU seconds an image), where stages that take turns count as one whose time is
    the sum of theirs; of those the slower one is named.
    """
    alone = rates.images_per_s
    groups: list[tuple[Stage, ...]] = [("fetch", "prepare")] if rates.fetch_in_turn else [("fetch",), ("prepare",)]
    groups += [("transfer",), ("compute",)] if rates.transfer_ahead else [("transfer", "compute")]
    found = [Prediction(_in_turn(alone, group), _slowest(alone, group)) for group in groups]
    cpu_s = sum(rates.cpu_s_per_image.values())
    if cpu_s > 0:
        found.append(Prediction(rates.cores / cpu_s, "cores"))
    return min(found, key=lambda each: each.images_per_s)


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


def fetch_rate(latency_rate: float, bandwidth_bytes_per_s: float, bytes_per_image: float) -> float:
    """Images/s of requests of which so many are under way: bounded by their round trips, or by the bytes."""
    return min(latency_rate, bandwidth_bytes_per_s / bytes_per_image)
