"""Limit and sentence of a diagnosis, and reasons for an undecided one: pure functions of the measured rates.

A verdict is a table: each row has the limits that it applies to, a condition and a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from loaders.diagnosis.findings import MIN_GAIN, Bound, Fix, Limit, Stage, StageRate, TransformCost
from loaders.diagnosis.prediction import COMPUTE_BOUND, CONTENTION, Prediction

HIGHEST_RATIO: Mapping[Stage, float] = {"fetch": 1.5, "prepare": 1.5, "transfer": 1.5, "compute": 1.25}
"""Ratio of the observed rate to a stage's rate alone above which one of the two is wrong, because no run is faster than
its stages. The device repeats one batch; rates of the other stages are less certain, because they are measured on a
sample of the images, and links vary."""
MAIN_SHARE = 0.5
"""Share of the time to prepare an image, or of its CPU time, from which on the run waits for the transform; and share
of a step from which on the loop computes more than it waits."""
HARDLY_WAITS = 0.05
"""Share of the steps' time below which waiting for batches and their transfer does not explain a slow run."""
SLOWED = 0.9
"""Share of the device's rate alone below which the steps of a run that hardly waits are slower than alone."""
CONSIDERABLE_SHARE = 0.1
"""Share of the cores from which on other programs may change the rates: as much as contention does."""
CHANGED_SHARE = 0.25
"""Share of the cores by which other programs' use may change during a measurement: as rates of the device differ."""
_ALONE: Mapping[Stage, str] = {
    "fetch": "fetching alone gave",
    "prepare": "decoding alone gave",
    "transfer": "the transfer alone gave",
    "compute": "the device alone took",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Measurements of a run, its stages and steps, and of other programs, as far as known."""

    observed: float
    """Images/s of the run."""
    compute: float = math.inf
    """Images/s of the device alone, or of the run's own steps if these were faster."""
    predicted: Prediction
    """Prediction from the stages."""
    stage_limit: Limit
    """The run's bottleneck according to its stages (`limit_of`). The proposed changes address it."""
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
    other_cores_before: float = 0.0
    other_cores_after: float = 0.0
    """Cores that other programs used before and after the measurement; 0 if unknown."""
    compute_threads: int = 0
    """Threads with which the device computes on these cores; 0 if it computes elsewhere."""
    bytes_per_image: float = 0.0
    """Mean size of an encoded image."""
    slow_link: str = ""
    """Reason, and settings, if the run was measured with fewer reads in flight or a longer deadline; else empty."""
    cache: str = ""
    """Sentence that says how a run with a cache was measured; empty for one without."""
    is_cached: bool = False
    """Whether the run fetched from a full cache on a local disk."""

    @property
    def other_cores(self) -> float:
        """Cores that other programs used before or after the measurement, whichever is more."""
        return max(self.other_cores_before, self.other_cores_after)

    @property
    def limit(self) -> Limit:
        """The limit that a report names; not a stage if the steps hardly wait for any."""
        return "contention" if self.is_slowed else self.stage_limit

    @property
    def is_slowed(self) -> bool:
        """Whether the run hardly waits, and its steps are slower than alone: other work takes time from them, such as
        decoding threads that take the interpreter lock from a step that Python launches. If the steps share cores with
        the stages, the verdict says that instead."""
        hardly_waits = self.wait_share + self.transfer_share < HARDLY_WAITS
        return self.stage_limit != "cores" and hardly_waits and self.observed < SLOWED * self.compute

    @property
    def contention(self) -> str:
        """Reason why the run is more than a tenth slower than predicted; empty if it is not."""
        return contention(self.observed, self.predicted)

    @property
    def falls_short(self) -> bool:
        """Whether the run is so far below what its stages allow that a change that closes only the gap is worth a
        restart. Its device could take more: `limit_of` names the device if a run is near the device's rate."""
        return self.stage_limit != "compute" and self.predicted.images_per_s >= MIN_GAIN * self.observed

    @property
    def waits_for_transform(self) -> bool:
        return self.transform is not None and is_main(self.transform, self.limit, self.cpu_s_per_image)

    @property
    def bound(self) -> Bound | None:
        return None if self.transform is None else bound_of(self.transform)

    @property
    def others(self) -> str:
        """End of a clause with the number of cores that other programs use; empty if they are few."""
        if not _are_considerable(self.other_cores, self.cores):
            return ""
        return f", while other programs use {self.other_cores:.1f} of {self.cores} cores"

    def words(self) -> dict[str, str]:
        """Return the values for the placeholders in the verdict's sentences."""
        share = f"{100 * min(1.0, self.observed / self.compute):.0f} % of what the device could take"
        slower = self.compute_share * self.compute / self.observed
        slower_steps = (
            f" The loop waits for a batch for {100 * self.wait_share:.0f} % of its time, but a step takes {slower:.1f} "
            "times as long as alone."
        )
        return {
            "others": self.others,
            "share": share,
            "images": f"{_number(self.observed)} images/s",
            "rate": f"{self.others}: {_number(self.observed)} images/s, {share}",
            "promised": f"{self.predicted.images_per_s:,.0f}",
            "mb_per_s": _number(self.observed * self.bytes_per_image / 1e6),
            "slower": slower_steps if slower >= MIN_GAIN else "",
            "transform": "" if self.transform is None else transform_name(self.transform),
            "slow_link": self.slow_link,
            "cache": self.cache,
        }


def contradiction(observed: float, stages: Iterable[StageRate], *, cores: int, other_cores: float) -> str:
    """Return the reason why the rates of a run and its stages cannot all be right, and advice; empty if they can."""
    ratios = {stage: observed / stage.images_per_s / HIGHEST_RATIO[stage.name] for stage in stages}
    wrong = max(ratios, key=lambda stage: ratios[stage])
    if ratios[wrong] <= 1:
        return ""
    others = f", and other programs used {other_cores:.1f} of {cores} cores meanwhile" if other_cores else ""
    return (
        f"the run made {observed:,.0f} images/s, but {_ALONE[wrong.name]} only {wrong.images_per_s:,.0f}: the machine "
        f"was not equally fast during both measurements{others}. Run it again while nothing else runs."
    )


def disturbance(run: Measured) -> str:
    """Return a sentence that other programs may have changed the result; empty if they did not.

    They may make a run more than a tenth slower than predicted. The prediction subtracts the cores that they used
    before, and all rates are measured while they run. So if a run waits for cores, and other programs start or end
    during the measurement, the rates may agree with each other and still prove nothing.
    """
    promised, cores = run.predicted.images_per_s, run.cores
    if run.contention and run.other_cores >= (1 - run.observed / promised) * cores:
        return (
            f"alone the stages promise {promised:,.0f} images/s, together they made {run.observed:,.0f}, and other "
            f"programs used {run.other_cores:.1f} of {cores} cores, which may be the reason. Run it again while "
            "nothing else runs."
        )
    change = abs(run.other_cores_after - run.other_cores_before)
    if run.stage_limit not in ("prepare", "cores") or change < CHANGED_SHARE * cores:
        return ""
    return (
        f"other programs used {run.other_cores_before:.1f} of {cores} cores before the measurement and "
        f"{run.other_cores_after:.1f} after it, and the run waits for what they leave. Run it again while nothing else "
        "runs."
    )


def threads_hint(together: float, alone: float, *, compute_threads: int, cores: int, other_cores: float) -> str:
    """Return a sentence that fewer threads of a model may help, to follow the reason for an undecided diagnosis. It is
    empty unless the model's steps differ much between alone and in the run, while other programs run.

    Threads of one step wait for the slowest of them, and each takes turns with other programs. Rates are images/s.
    """
    differ = not SLOWED * alone <= together <= HIGHEST_RATIO["compute"] * alone
    if compute_threads < 2 or not differ or not _are_considerable(other_cores, cores):
        return ""
    return f" The model computes with {compute_threads} threads on these cores; fewer may help: OMP_NUM_THREADS=1."


def limit_of(observed: float, compute: float, predicted: Prediction) -> Limit:
    """Return the limit of a run with these images/s.

    The device is the limit only if the run is near the device's rate, or near the prediction from the stages. If
    neither holds, the stages slow each other down.
    """
    if observed >= COMPUTE_BOUND * compute:
        return "compute"
    return "contention" if predicted.limit == "compute" and contention(observed, predicted) else predicted.limit


def contention(observed: float, predicted: Prediction) -> str:
    """Return the reason why a run is more than a tenth slower than predicted; empty if it is not."""
    if observed >= CONTENTION * predicted.images_per_s:
        return ""
    return (
        f"alone the stages promise {predicted.images_per_s:,.0f} images/s, together they make {observed:,.0f}: "
        "they compete for cores, memory or the interpreter lock"
    )


def verdict(run: Measured, fixes: Sequence[Fix]) -> str:
    """Return the sentence of a diagnosis whose measurements agree: the first row of `_BEGINNINGS` that holds, all rows
    of `_ADDITIONS` that hold, and the best change or the first row of `_ENDINGS` that holds.

    Args:
        fixes: Changes that help, the best first.
    """
    words = run.words()
    found = " ".join([next(_said(_BEGINNINGS, run)), *_said(_ADDITIONS, run)]).format(**words)
    if run.bound is not None and run.transform is not None:
        takes = transform_sentence(run.transform, is_named=run.transform.name in found)
        found += f" {takes}; without the transform: {run.bound.images_per_s:,.0f} images/s (making it faster can bring "
        found += "up to that)."
    again = " Run it again on an idle machine." if run.others else ""
    if fixes:
        best = fixes[0]
        return f"{found} {best.advice}: {_number(best.images_per_s)} images/s, {100 * (best.gain - 1):+.0f} %.{again}"
    return f"{found} {next(_said(_ENDINGS, run))}{again}"


class _Row(NamedTuple):
    """A sentence, with its limits and condition."""

    limits: Set[Limit]
    holds: Callable[[Measured], object]
    sentence: str


def _said(rows: Iterable[_Row], run: Measured) -> Iterator[str]:
    return (row.sentence for row in rows if run.limit in row.limits and row.holds(run))


def _always(_: Measured) -> bool:
    return True


_STAGES: frozenset[Limit] = frozenset({"fetch", "prepare", "transfer", "cores"})
_ANY: frozenset[Limit] = _STAGES | {"compute", "contention"}
_BEGINNINGS = (
    _Row(
        {"compute"},
        lambda run: run.observed >= COMPUTE_BOUND * run.compute,
        "The device is the limit{rate}; its input keeps up.",
    ),
    _Row(_ANY, lambda run: run.is_slowed, "Your training step is slowed down by what runs beside it{rate}.{slower}"),
    _Row({"contention"}, _always, "The stages slow each other down{rate}, where alone they promise {promised}."),
    _Row({"prepare", "cores"}, lambda run: run.waits_for_transform, "You are waiting for {transform}{rate}."),
    _Row(
        {"cores"},
        lambda run: run.compute_share >= MAIN_SHARE,
        "The processor cores are the limit, which the device's steps and decoding share{rate}.{slower}",
    ),
    _Row(
        {"fetch"},
        lambda run: run.slow_link and not run.is_cached,
        "The link to the bucket is the limit{others}: {mb_per_s} MB/s, {images}, {share}.",
    ),
    _Row({"fetch"}, _always, "You are waiting for bytes to arrive{rate}."),
    _Row({"prepare"}, _always, "You are waiting for images to be decoded{rate}."),
    _Row({"transfer"}, _always, "You are waiting for batches to reach the device{rate}."),
    _Row({"compute"}, _always, "You are waiting for the device{rate}."),
    _Row({"cores"}, _always, "You are waiting for processor cores, which decoding and the other stages share{rate}."),
)
"""Beginnings of a verdict; the first one that holds is used, so special cases come first."""
_ADDITIONS = (
    _Row(_ANY, lambda run: run.is_slowed and run.contention, "Alone the stages promise {promised}."),
    _Row(_STAGES, lambda run: run.contention, "The stages slow each other down, too: alone they promise {promised}."),
    _Row(_ANY, lambda run: run.slow_link, "{slow_link}"),
    _Row(_ANY, lambda run: run.cache, "{cache}"),
)
"""Sentences after the beginning; each one that holds is used."""
_ENDINGS = (
    _Row(_ANY, lambda run: run.waits_for_transform or run.bound is not None, "No setting would bring 5 %."),
    _Row(
        _ANY,
        lambda run: run.others and run.compute_threads > 0,
        "Beside these programs no single change would bring 5 %; without them one may.",
    ),
    _Row(_ANY, _always, "No single change would bring 5 %."),
)
"""Ends of a verdict without a change that helps; the first one that holds is used."""


def _number(value: float) -> str:
    """Return a rate as text, with two digits if it is small."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _are_considerable(other_cores: float, cores: int) -> bool:
    return other_cores > 0 and other_cores >= CONSIDERABLE_SHARE * cores


def is_main(transform: TransformCost, limit: Limit, cpu_s_per_image: float) -> bool:
    """Whether a transform is the larger part of what limits a run."""
    if limit == "cores":
        return transform.cpu_s_per_image >= MAIN_SHARE * cpu_s_per_image
    return limit == "prepare" and transform.s_per_image >= MAIN_SHARE * transform.prepare_s_per_image


def bound_of(transform: TransformCost) -> Bound | None:
    """Return the bound of a run without its transform, if work on the transform is worthwhile."""
    bound = transform.without
    return bound if bound is not None and bound.gain >= MIN_GAIN else None


def transform_name(transform: TransformCost) -> str:
    """Return the name of a transform, or of several, in a sentence."""
    return f"your transform{'s' if ', ' in transform.name else ''} {transform.name}"


def transform_sentence(transform: TransformCost, *, is_named: bool = False) -> str:
    """Return a sentence about the transform's share of preparing an image, without a full stop."""
    are_several = ", " in transform.name
    name = transform_name(transform)
    subject = ("They" if are_several else "It") if is_named else name[0].upper() + name[1:]
    takes, prepare_ms = "take" if are_several else "takes", 1e3 * transform.prepare_s_per_image
    return (
        f"{subject} {takes} {1e3 * transform.s_per_image:.1f} of the {prepare_ms:.1f} ms for which a thread prepares "
        "an image"
    )
