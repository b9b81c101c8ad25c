"""The limit and the sentence of a diagnosis, and what makes it undecided: pure functions of the measured rates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loaders.diagnosis.findings import MIN_GAIN, Bound, Fix, Limit, Stage, StageRate, TransformCost
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
MAIN_SHARE = 0.5
"""Share of the time to prepare an image, or of its CPU time, from which on a transform is what a run waits for; and
share of a step from which on the loop computes more than it waits."""
HARDLY_WAITS = 0.05
"""Share of the steps' time below which waiting for batches and their transfer explains no slow run."""
SLOWED = 0.9
"""Share of the device's rate alone below which the steps of a run that hardly waits are slower than alone."""
CONSIDERABLE_SHARE = 0.1
"""Share of the cores from which on other programs may change the rates: as much as contention does."""
CHANGED_SHARE = 0.25
"""Share of the cores by which what other programs use may change meanwhile: as much as rates of the device differ."""
_NEED_CORES = frozenset({"prepare", "cores"})
"""Limits that other programs move by taking cores."""
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


def disturbance(
    observed: float,
    predicted: Prediction,
    limit: Limit,
    *,
    cores: int,
    other_cores_before: float,
    other_cores_after: float,
) -> str:
    """Return that other programs may be the reason for what is found; empty if they are not.

    They may be why a run is more than a tenth slower than predicted. The prediction subtracts the cores that they used
    before, and all rates are measured beside them. So where a run waits for cores, and they begin or end meanwhile, the
    rates may agree with each other and still tell nothing.

    Args:
        observed: Images/s of the run.
        predicted: Prediction from its stages.
        limit: What limits the run, according to its stages.
        cores: Cores of the machine.
        other_cores_before: Cores that other programs used before the measurement; 0 if unknown.
        other_cores_after: The same after it.
    """
    other_cores = max(other_cores_before, other_cores_after)
    missing_share = 1 - observed / predicted.images_per_s
    if not contention(observed, predicted) or other_cores < missing_share * cores:
        if limit not in _NEED_CORES or abs(other_cores_after - other_cores_before) < CHANGED_SHARE * cores:
            return ""
        return (
            f"other programs used {other_cores_before:.1f} of {cores} cores before the measurement and "
            f"{other_cores_after:.1f} after it, and the run waits for what they leave. Run it again while nothing else "
            "runs."
        )
    return (
        f"alone the stages promise {predicted.images_per_s:,.0f} images/s, together they made {observed:,.0f}, and "
        f"other programs used {other_cores:.1f} of {cores} cores, which may be the reason. Run it again while nothing "
        "else runs."
    )


def threads_hint(together: float, alone: float, *, compute_threads: int, cores: int, other_cores: float) -> str:
    """Return that fewer threads of a model may help, as a sentence after the reason why a diagnosis is undecided; empty
    unless the model's steps alone and in the run differ by much beside other programs.

    Threads of one step wait for the slowest of them, and each takes turns with other programs.

    Args:
        together: Images/s of the steps of the run.
        alone: Images/s of the device alone.
        compute_threads: Threads with which the device computes on the cores of the machine; 0 if it does not.
        cores: Cores of the machine.
        other_cores: Cores that other programs used; 0 if unknown.
    """
    differ = not SLOWED * alone <= together <= HIGHEST_RATIO["compute"] * alone
    if compute_threads < 2 or not differ or not _are_considerable(other_cores, cores):
        return ""
    return f" The model computes with {compute_threads} threads on these cores; fewer may help: OMP_NUM_THREADS=1."


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


def falls_short(observed: float, predicted: Prediction, limit: Limit) -> bool:
    """Whether a run is so far below what its stages allow that a change which closes only the gap is worth a restart.

    Its device could take more, because `limit_of` names the device wherever a run is near its rate.

    Args:
        observed: Images/s of the run.
        predicted: Prediction from its stages.
        limit: What limits the run.
    """
    return limit != "compute" and predicted.images_per_s >= MIN_GAIN * observed


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Parts of an image's way and of a step, and what runs beside them, as far as that is known."""

    transform: TransformCost | None = None
    """The user's part of preparing an image."""
    cpu_s_per_image: float = 0.0
    """CPU time of all stages."""
    wait_share: float = 1.0
    """Share of the steps' time in which the loop waited for a batch."""
    transfer_share: float = 0.0
    """Share of the steps' time in which the device waited for a batch to arrive."""
    compute_share: float = 0.0
    """Share of the steps' time in which the device computed."""
    cores: int = 0
    """Cores of the machine."""
    other_cores: float = 0.0
    """Cores that other programs used."""
    compute_threads: int = 0
    """Threads with which the device computes on these cores; 0 if it computes elsewhere."""
    bytes_per_image: float = 0.0
    """Mean size of an encoded image."""
    slow_link: str = ""
    """Why the run was measured with fewer reads in flight, or a longer deadline, and how; empty if it was not."""
    cache: str = ""
    """Sentence that says how a run with a cache was measured; empty for one without."""
    is_cached: bool = False
    """Whether the run fetched from a full cache on a local disk."""


def has_slowed_steps(observed: float, compute: float, limit: Limit, parts: Parts) -> bool:
    """Whether a run hardly waits, and its steps are slower than alone: what runs beside them takes time from them, as
    threads that decode take the interpreter lock from a step that Python launches.

    Args:
        observed: Images/s of the run.
        compute: Images/s of the device alone.
        limit: What limits the run, according to its stages; if the steps share cores with them, that is said instead.
        parts: Parts of a step.
    """
    hardly_waits = parts.wait_share + parts.transfer_share < HARDLY_WAITS
    return limit != "cores" and hardly_waits and observed < SLOWED * compute


def reported_limit(observed: float, compute: float, limit: Limit, parts: Parts) -> Limit:
    """Return the limit that a report names: no stage, where the steps show that none is waited for.

    Args:
        observed: Images/s of the run.
        compute: Images/s of the device alone.
        limit: What limits the run, according to its stages; changes are proposed for it.
        parts: Parts of a step.
    """
    return "contention" if has_slowed_steps(observed, compute, limit, parts) else limit


def verdict(
    observed: float,
    compute: float,
    limit: Limit,
    predicted: Prediction,
    fixes: Sequence[Fix],
    parts: Parts,
) -> str:
    """Return the sentence of a diagnosis whose measurements agree.

    Args:
        observed: Images/s of the run.
        compute: Images/s of the device alone.
        limit: What limits the run.
        predicted: Prediction from its stages.
        fixes: Changes that help, the best first.
        parts: Parts of an image's way and of a step.
    """
    share = f"{100 * min(1.0, observed / compute):.0f} % of what the device could take"
    others = _other_programs(parts)
    rate = f"{others}: {_number(observed)} images/s, {share}"
    again = " Run it again on an idle machine." if others else ""
    transform = parts.transform
    is_transform = transform is not None and is_main(transform, limit, parts.cpu_s_per_image)
    is_slowed = has_slowed_steps(observed, compute, limit, parts)
    if limit == "compute" and observed >= COMPUTE_BOUND * compute:
        start = f"The device is the limit{rate}; its input keeps up."
    elif is_slowed:
        start = f"Your training step is slowed down by what runs beside it{rate}."
        start += _slower_steps(observed, compute, parts)
    elif limit == "contention":
        start = f"The stages slow each other down{rate}, where alone they promise {predicted.images_per_s:,.0f}."
    elif transform is not None and is_transform:
        start = f"You are waiting for {transform_name(transform)}{rate}."
    elif limit == "cores" and parts.compute_share >= MAIN_SHARE:
        start = f"The processor cores are the limit, which the device's steps and decoding share{rate}."
        start += _slower_steps(observed, compute, parts)
    elif limit == "fetch" and parts.slow_link and not parts.is_cached:
        mb_per_s = _number(observed * parts.bytes_per_image / 1e6)
        start = f"The link to the bucket is the limit{others}: {mb_per_s} MB/s, {_number(observed)} images/s, {share}."
    else:
        start = f"You are waiting for {WAITED_FOR[limit]}{rate}."
    if is_slowed and contention(observed, predicted):
        start += f" Alone the stages promise {predicted.images_per_s:,.0f}."
    elif limit not in ("compute", "contention") and contention(observed, predicted):
        start += f" The stages slow each other down, too: alone they promise {predicted.images_per_s:,.0f}."
    for note in (parts.slow_link, parts.cache):
        if note:
            start += f" {note}"
    if transform is not None and (bound := bound_of(transform)) is not None:
        takes = transform_sentence(transform, is_named=transform.name in start)
        start += f" {takes}; without the transform: {bound.images_per_s:,.0f} images/s "
        start += "(making it faster can bring up to that)."
    if fixes:
        best = fixes[0]
        return f"{start} {best.advice}: {_number(best.images_per_s)} images/s, {100 * (best.gain - 1):+.0f} %.{again}"
    if is_transform or (transform is not None and bound_of(transform) is not None):
        return f"{start} No setting would bring 5 %.{again}"
    if others and parts.compute_threads:
        return f"{start} Beside these programs no single change would bring 5 %; without them one may.{again}"
    return f"{start} No single change would bring 5 %.{again}"


def _number(value: float) -> str:
    """Return a rate as text, with two digits where it is small."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _other_programs(parts: Parts) -> str:
    """Return how many cores other programs use, as the end of a clause; empty if they are few."""
    if not _are_considerable(parts.other_cores, parts.cores):
        return ""
    return f", while other programs use {parts.other_cores:.1f} of {parts.cores} cores"


def _are_considerable(other_cores: float, cores: int) -> bool:
    return other_cores > 0 and other_cores >= CONSIDERABLE_SHARE * cores


def _slower_steps(observed: float, compute: float, parts: Parts) -> str:
    """Return how many times as long as alone a step takes, because of what runs beside it."""
    slower = parts.compute_share * compute / observed
    if slower < MIN_GAIN:
        return ""
    return (
        f" The loop waits for a batch for {100 * parts.wait_share:.0f} % of its time, but a step takes {slower:.1f} "
        "times as long as alone."
    )


def is_main(transform: TransformCost, limit: Limit, cpu_s_per_image: float) -> bool:
    """Whether a transform is the larger part of what limits a run.

    Args:
        transform: What it takes.
        limit: What limits the run.
        cpu_s_per_image: CPU time of all stages.
    """
    if limit == "cores":
        return transform.cpu_s_per_image >= MAIN_SHARE * cpu_s_per_image
    return limit == "prepare" and transform.s_per_image >= MAIN_SHARE * transform.prepare_s_per_image


def bound_of(transform: TransformCost) -> Bound | None:
    """Return what a run without its transform reaches, if it is enough faster to be worth the work on it."""
    bound = transform.without
    return bound if bound is not None and bound.gain >= MIN_GAIN else None


def transform_name(transform: TransformCost) -> str:
    """Return the name of a transform, or of several, in a sentence."""
    return f"your transform{'s' if ', ' in transform.name else ''} {transform.name}"


def transform_sentence(transform: TransformCost, *, is_named: bool = False) -> str:
    """Return how much of preparing an image a transform is, without a full stop.

    Args:
        transform: What it takes.
        is_named: Whether the sentence before has its name.
    """
    are_several = ", " in transform.name
    name = transform_name(transform)
    subject = ("They" if are_several else "It") if is_named else name[0].upper() + name[1:]
    takes, prepare_ms = "take" if are_several else "takes", 1e3 * transform.prepare_s_per_image
    return (
        f"{subject} {takes} {1e3 * transform.s_per_image:.1f} of the {prepare_ms:.1f} ms for which a thread prepares "
        "an image"
    )
