"""The limit and the sentence of a diagnosis, and what makes it undecided: pure functions of the measured rates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from loaders.diagnosis.findings import Fix, Limit, Stage, StageRate
from loaders.diagnosis.prediction import COMPUTE_BOUND, CONTENTION, Prediction

WAITED_FOR: dict[Limit, str] = {
    "fetch": "bytes to arrive",
    "prepare": "images to be decoded",
    "transfer": "batches to reach the device",
    "compute": "the device",
    "cores": "processor cores, which decoding and the other stages share",
}
HIGHEST_RATIO: Mapping[Stage, float] = {"fetch": 1.5, "prepare": 1.5, "transfer": 1.5, "compute": 1.25}
"""Ratio of the observed rate to that of a stage alone above which one of the two is wrong, because no run is faster
than one of its stages. The device repeats one batch; the other stages are measured on a sample of the images, and a
link varies, so that their rates are less certain."""
_ALONE: Mapping[Stage, str] = {
    "fetch": "fetching alone gave",
    "prepare": "decoding alone gave",
    "transfer": "the transfer alone gave",
    "compute": "the device alone took",
}


def contradiction(observed: float, stages: Iterable[StageRate], *, cores: int, other_cores: float) -> str:
    """Return why the measured rates cannot all be right, and what to do; empty if they can.

    Args:
        observed: Images/s of the run.
        stages: Rates of its stages alone.
        cores: Cores of the machine.
        other_cores: Cores that other programs used during the measurement; 0 if unknown.
    """
    ratios = {stage: observed / stage.images_per_s / HIGHEST_RATIO[stage.name] for stage in stages}
    wrong = max(ratios, key=lambda stage: ratios[stage])
    if ratios[wrong] <= 1:
        return ""
    others = f", and other programs used {other_cores:.1f} of {cores} cores meanwhile" if other_cores else ""
    return (
        f"the run made {observed:,.0f} images/s, but {_ALONE[wrong.name]} only {wrong.images_per_s:,.0f}: the machine "
        f"was not equally fast during both measurements{others}. Run it again while nothing else runs."
    )


def disturbance(observed: float, predicted: Prediction, *, cores: int, other_cores: float) -> str:
    """Return that other programs may be why a run is more than a tenth slower than predicted; empty if they are not.

    Args:
        observed: Images/s of the run.
        predicted: Prediction from its stages.
        cores: Cores of the machine.
        other_cores: Cores that other programs used; 0 if unknown.
    """
    missing_share = 1 - observed / predicted.images_per_s
    if not contention(observed, predicted) or other_cores < missing_share * cores:
        return ""
    return (
        f"alone the stages promise {predicted.images_per_s:,.0f} images/s, together they made {observed:,.0f}, and "
        f"other programs used {other_cores:.1f} of {cores} cores, which may be the reason. Run it again while nothing "
        "else runs."
    )


def limit_of(observed: float, compute: float, predicted: Prediction) -> Limit:
    """Return what limits a run.

    The device is the limit only where the run is near its rate, or near what the stages predict. Where neither holds,
    the stages slow each other down.

    Args:
        observed: Images/s of the run.
        compute: Images/s of the device alone.
        predicted: Prediction from its stages.
    """
    if observed >= COMPUTE_BOUND * compute:
        return "compute"
    if predicted.limit == "compute" and contention(observed, predicted):
        return "contention"
    return predicted.limit


def contention(observed: float, predicted: Prediction) -> str:
    """Return why a run is more than a tenth slower than predicted; empty if it is not."""
    if observed >= CONTENTION * predicted.images_per_s:
        return ""
    return (
        f"alone the stages promise {predicted.images_per_s:,.0f} images/s, together they make {observed:,.0f}: "
        "they compete for cores, memory or the interpreter lock"
    )


def verdict(observed: float, compute: float, limit: Limit, predicted: Prediction, fixes: Sequence[Fix]) -> str:
    """Return the sentence of a diagnosis whose measurements agree.

    Args:
        observed: Images/s of the run.
        compute: Images/s of the device alone.
        limit: What limits the run.
        predicted: Prediction from its stages.
        fixes: Changes that help, the best first.
    """
    share = f"{100 * min(1.0, observed / compute):.0f} % of what the device could take"
    rate = f"{observed:,.0f} images/s, {share}"
    if limit == "compute" and observed >= COMPUTE_BOUND * compute:
        start = f"The device is the limit: {rate}; its input keeps up."
    elif limit == "contention":
        start = f"The stages slow each other down: {rate}, where alone they promise {predicted.images_per_s:,.0f}."
    else:
        start = f"You are waiting for {WAITED_FOR[limit]}: {rate}."
        if contention(observed, predicted):
            start += f" The stages slow each other down, too: alone they promise {predicted.images_per_s:,.0f}."
    if not fixes:
        return f"{start} No single change would bring 5 %."
    best = fixes[0]
    return f"{start} {best.advice}: {best.images_per_s:,.0f} images/s, {100 * (best.gain - 1):+.0f} %."
