"""The limit and the sentence of a diagnosis, and what makes it undecided: pure functions of the measured rates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """Return the sentence of a diagnosis whose measurements agree: the first beginning of `_BEGINNINGS` that holds, all
    additions of `_ADDITIONS` that hold, and the best change or the first ending of `_ENDINGS` that holds.

    Args:
        observed: Images/s of the run.
        compute: Images/s of the device alone.
        limit: What limits the run.
        predicted: Prediction from its stages.
        fixes: Changes that help, the best first.
        parts: Parts of an image's way and of a step.
    """
    run = _Run(observed, compute, limit, predicted, parts)
    words = run.words()
    beginning = next(row for row in _BEGINNINGS if limit in row.limits and row.holds(run)).sentence.format(**words)
    found = beginning + "".join(f" {row.sentence.format(**words)}" for row in _ADDITIONS if row.holds(run))
    if run.bound is not None and parts.transform is not None:
        takes = transform_sentence(parts.transform, is_named=parts.transform.name in found)
        found += f" {takes}; without the transform: {run.bound.images_per_s:,.0f} images/s (making it faster can bring "
        found += "up to that)."
    again = " Run it again on an idle machine." if words["others"] else ""
    if fixes:
        best = fixes[0]
        return f"{found} {best.advice}: {_number(best.images_per_s)} images/s, {100 * (best.gain - 1):+.0f} %.{again}"
    return f"{found} {next(row for row in _ENDINGS if row.holds(run)).sentence}{again}"


@dataclass(frozen=True, slots=True)
class _Run:
    """A run, with the conditions and the words of the tables below."""

    observed: float
    compute: float
    limit: Limit
    predicted: Prediction
    parts: Parts

    @property
    def is_slowed(self) -> bool:
        return has_slowed_steps(self.observed, self.compute, self.limit, self.parts)

    @property
    def competes(self) -> bool:
        """Whether the stages together are slower than they promise alone."""
        return bool(contention(self.observed, self.predicted))

    @property
    def waits_for_transform(self) -> bool:
        transform = self.parts.transform
        return transform is not None and is_main(transform, self.limit, self.parts.cpu_s_per_image)

    @property
    def bound(self) -> Bound | None:
        return None if self.parts.transform is None else bound_of(self.parts.transform)

    def words(self) -> dict[str, str]:
        """Return the words that sentences take."""
        parts, others = self.parts, _other_programs(self.parts)
        share = f"{100 * min(1.0, self.observed / self.compute):.0f} % of what the device could take"
        return {
            "others": others,
            "share": share,
            "images": f"{_number(self.observed)} images/s",
            "rate": f"{others}: {_number(self.observed)} images/s, {share}",
            "promised": f"{self.predicted.images_per_s:,.0f}",
            "mb_per_s": _number(self.observed * parts.bytes_per_image / 1e6),
            "slower": _slower_steps(self.observed, self.compute, parts),
            "transform": "" if parts.transform is None else transform_name(parts.transform),
            "slow_link": parts.slow_link,
            "cache": parts.cache,
        }


@dataclass(frozen=True, slots=True)
class _Row:
    """A sentence, and when it is said."""

    limits: frozenset[Limit]
    holds: Callable[[_Run], bool]
    sentence: str


_ANY: frozenset[Limit] = frozenset({*WAITED_FOR, "contention"})


def _always(_: _Run) -> bool:
    return True


_BEGINNINGS = (
    _Row(
        frozenset({"compute"}),
        lambda run: run.observed >= COMPUTE_BOUND * run.compute,
        "The device is the limit{rate}; its input keeps up.",
    ),
    _Row(_ANY, lambda run: run.is_slowed, "Your training step is slowed down by what runs beside it{rate}.{slower}"),
    _Row(
        frozenset({"contention"}),
        _always,
        "The stages slow each other down{rate}, where alone they promise {promised}.",
    ),
    _Row(
        frozenset({"prepare", "cores"}), lambda run: run.waits_for_transform, "You are waiting for {transform}{rate}."
    ),
    _Row(
        frozenset({"cores"}),
        lambda run: run.parts.compute_share >= MAIN_SHARE,
        "The processor cores are the limit, which the device's steps and decoding share{rate}.{slower}",
    ),
    _Row(
        frozenset({"fetch"}),
        lambda run: bool(run.parts.slow_link) and not run.parts.is_cached,
        "The link to the bucket is the limit{others}: {mb_per_s} MB/s, {images}, {share}.",
    ),
    *(_Row(frozenset({limit}), _always, f"You are waiting for {what}{{rate}}.") for limit, what in WAITED_FOR.items()),
)
"""Beginnings of a verdict by limit; the first that holds is said, so the special cases come first."""
_ADDITIONS = (
    _Row(_ANY, lambda run: run.is_slowed and run.competes, "Alone the stages promise {promised}."),
    _Row(
        _ANY,
        lambda run: not run.is_slowed and run.limit not in ("compute", "contention") and run.competes,
        "The stages slow each other down, too: alone they promise {promised}.",
    ),
    _Row(_ANY, lambda run: bool(run.parts.slow_link), "{slow_link}"),
    _Row(_ANY, lambda run: bool(run.parts.cache), "{cache}"),
)
"""Sentences that follow the beginning; each that holds is said."""
_ENDINGS = (
    _Row(_ANY, lambda run: run.waits_for_transform or run.bound is not None, "No setting would bring 5 %."),
    _Row(
        _ANY,
        lambda run: bool(_other_programs(run.parts)) and run.parts.compute_threads > 0,
        "Beside these programs no single change would bring 5 %; without them one may.",
    ),
    _Row(_ANY, _always, "No single change would bring 5 %."),
)
"""Ends of a verdict without a change that helps; the first that holds is said."""


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
