"""Diagnosis of a training run: its limit, and changes that would lift it. Measure, predict, compare, try.

    setup = RunSetup(url=url, split="train", config=config, transfer_ahead=2)
    found = diagnose(setup, device, seconds=2.0)

The steps: the device alone (G); the run as it is, with its waits timed; every stage alone (F, P, H), and what they
predict together; each change that could lift the limit, with its stages measured as they would be; last, a trial of the
best changes: of settings on the data themselves, of a cache and of smaller images on a sample (`sample.py`); a change
that needs another bucket keeps its prediction. `prediction.py` is the model that predicts a rate from the stages,
`verdict.py` has the sentence. Where the measurements contradict each other, nothing is tried.

A change is a few new settings. Its effect on a stage is measured on that stage alone where that is possible here (more
threads, more requests in flight, smaller images made from a sample, a larger batch), and computed where it is not (a
nearer bucket). `prediction.predict` then gives the rate of all stages together.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dataprep.arrays import np
from dataprep.errors import DataprepError, UnansweredError
from dataprep.host.cpu import available_cores, background_cores, cpu_time
from dataprep.host.versions import machine_document
from dataprep.messages import counted, human_bytes, shell_words
from loaders.config import LoaderConfig
from loaders.dataset import Dataset
from loaders.decode.decoders import extension_available
from loaders.diagnosis import fetch_rate
from loaders.diagnosis.findings import MIN_GAIN, Applied, Bound, Changes, Diagnosis, Fix, Limit, Stage, StageRate
from loaders.diagnosis.observed_run import Device, ObservedRun, RunSetup, compute_threads, observe
from loaders.diagnosis.prediction import MORE_AHEAD, allocate, may_gain, next_to_try, predict
from loaders.diagnosis.sample import pixels_left
from loaders.diagnosis.stages import Stages, request_latency_s
from loaders.diagnosis.verdict import Measured, contradiction, disturbance, limit_of, threads_hint, verdict
from loaders.engine.batch import Batch

TIMELINE_STEPS = 200
"""Maximum number of steps that a diagnosis lists."""


def diagnose(
    setup: RunSetup, device: Device, *, seconds: float = 2.0, progress: Callable[[str], None] = lambda what: None
) -> Diagnosis:
    """Measure a run and its stages, and find what limits it.

    Args:
        seconds: Length of the run that is watched; each stage takes half of it.
        progress: Called with what is being measured.

    Raises:
        DataprepError: The data cannot be read.
    """
    attempt = fetch_rate.Attempt(setup)
    while True:
        try:
            return _diagnosed(attempt, device, seconds, progress)
        except UnansweredError:
            following = fetch_rate.gentler(setup, attempt.setup)
            if following is None:
                raise
            progress("the run over a slow link")
            attempt = following


def _diagnosed(
    attempt: fetch_rate.Attempt, device: Device, seconds: float, progress: Callable[[str], None]
) -> Diagnosis:
    with tempfile.TemporaryDirectory(prefix="dataprep-diagnose-") as folder, attempt.setup.open() as loader:
        attempt = fetch_rate.with_full_cache(attempt, loader, progress)
        setup = attempt.setup
        busy_cores = background_cores()
        progress("the device, fed from memory")
        batch = next(iter(loader))
        loader.close()  # ends its threads
        if attempt.batches > 1:
            batch = repeated(batch, attempt.batches)
        with cpu_time() as used:
            stages = Stages(
                attempt=attempt,
                device=device,
                loader=loader,
                batch=batch,
                busy_cores=busy_cores,
                seconds=seconds / 2,
                folder=Path(folder),
                progress=progress,
            )
            progress("the run as it is")
            observed = observe(setup, device, seconds)
            stages.measure_stages(observed.images_per_s)
        compute_alone = stages.alone["compute"].images_per_s
        # A run may find data in the page cache that fetching alone reads from the disk.
        in_turn = stages.rates(setup).fetch_in_turn
        compared = [each for each in stages.alone.values() if each.name != "fetch" or not in_turn]
        undecided = contradiction(
            observed.images_per_s, compared, cores=available_cores(), other_cores=used.cores_of_others
        )
        if not undecided:
            stages.saw_steps(observed.step_images_per_s)
        run = _measured(stages, observed)
        if undecided := undecided or disturbance(run):
            undecided += threads_hint(
                observed.step_images_per_s,
                compute_alone,
                compute_threads=run.compute_threads,
                cores=run.cores,
                other_cores=max(run.other_cores, used.cores_of_others),
            )
        fixes: list[Fix] = []
        if not undecided:
            fixes = try_leading(stages, find_fixes(stages, run), run)
            bound = find_bound(stages, run)
            if stages.transform is not None and bound is not None:
                stages.transform = replace(stages.transform, without=try_bound(stages, bound, run.observed))
        return _diagnosis(stages, observed, replace(run, transform=stages.transform), fixes, compute_alone, undecided)


def _measured(stages: Stages, observed: ObservedRun) -> Measured:
    """Return the measured facts about a run and its stages."""
    compute, predicted = stages.alone["compute"].images_per_s, predict(stages.rates(stages.setup))
    times = [step.times for step in observed.steps]
    sums_s = [sum(getattr(each, name) for each in times) for name in ("wait_s", "transfer_s", "compute_s")]
    wait, transfer, share = (each / (sum(sums_s) or 1.0) for each in sums_s)
    return Measured(
        observed=observed.images_per_s,
        compute=compute,
        predicted=predicted,
        stage_limit=limit_of(observed.images_per_s, compute, predicted),
        cpu_s_per_image=sum(stage.cpu_s_per_image for stage in stages.alone.values()),
        wait_share=wait,
        transfer_share=transfer,
        compute_share=share,
        cores=available_cores(),
        # Processes that serve a stage (a mount of a bucket) are busy during the run, as other programs are.
        other_cores_before=stages.busy_cores,
        other_cores_after=background_cores(),
        compute_threads=compute_threads(stages.device),
        bytes_per_image=stages.bytes_per_image,
        slow_link=stages.attempt.note,
        cache=stages.attempt.cache,
        is_cached=stages.is_cached,
    )


def _diagnosis(
    stages: Stages, observed: ObservedRun, run: Measured, fixes: Sequence[Fix], compute_alone: float, undecided: str
) -> Diagnosis:
    cores = available_cores()
    attainable, allocation = allocate(stages.rates(stages.setup), {"fetch": cores, "prepare": cores})
    notes = " ".join(note for note in (undecided, run.slow_link, run.cache) if note)
    first_s = observed.steps[0].times.started_s
    timeline = [replace(each.times, started_s=each.times.started_s - first_s) for each in observed.steps]
    return Diagnosis(
        url=stages.loader.dataset.data_url,
        device=stages.device.name,
        verdict=f"Undecided: {notes}" if undecided else verdict(run, fixes),
        limit=run.limit,
        observed_images_per_s=run.observed,
        predicted_images_per_s=run.predicted.images_per_s,
        contention=run.contention,
        utilisation=min(1.0, run.observed / run.compute),
        stages=tuple(stages.alone.values()),
        wait_share=run.wait_share,
        transfer_share=run.transfer_share,
        compute_share=run.compute_share,
        timeline=tuple(timeline[:TIMELINE_STEPS]),
        fixes=tuple(fixes),
        applied=None,
        transform=run.transform,
        bytes_per_image=run.bytes_per_image,
        settings=_settings(stages.setup, stages.device),
        machine=machine_document(stages.busy_cores),
        attainable_images_per_s=attainable,
        allocation=allocation,
        undecided=undecided,
        compute_alone_images_per_s=compute_alone,
        other_cores=run.other_cores,
        slow_link=run.slow_link,
        cache=run.cache,
    )


def _settings(setup: RunSetup, device: Device) -> dict[str, object]:
    settings: dict[str, object] = {name: getattr(setup.config, name) for name in LoaderConfig.__dataclass_fields__}
    settings |= {"transfer_ahead": setup.transfer_ahead, "split": setup.split}
    if threads := compute_threads(device):
        settings["compute_threads"] = threads
    transform = setup.config.transform
    return settings | {"transform": None if transform is None else getattr(transform, "__qualname__", repr(transform))}


def apply_best(setup: RunSetup, device: Device, found: Diagnosis, *, seconds: float = 2.0) -> Diagnosis:
    """Run with the best fix that needs neither rebuild nor copy; without such a fix, return the same diagnosis.

    A cache that is not full after FILL_S seconds is not tried; the verdict says so.
    """
    # Over a slow link, or with a cache that is too small, the run was measured with settings other than its own.
    borne: Any = {name: found.settings[name] for name in ("reads_in_flight", "deadline_s", "batch_size", "cache_dir")}
    setup = replace(setup, config=replace(setup.config, **borne))
    for fix in found.fixes:
        if fix.needs == "restart":
            with tempfile.TemporaryDirectory(prefix="dataprep-cache-") as folder:
                changed = setup.changed(fix.settings)
                if fix.name == "cache":
                    changed = setup.changed({**fix.settings, "cache_dir": folder})
                    with changed.open() as loader:
                        lacking = fetch_rate.lacking_after(loader, changed.config, fetch_rate.FILL_S)
                    if lacking:
                        return replace(found, verdict=f"{found.verdict} The cache was not tried: {lacking}.")
                rate = observe(changed, device, seconds).images_per_s
            return replace(
                found,
                applied=Applied(
                    name=fix.name,
                    settings=fix.settings,
                    predicted_images_per_s=fix.predicted_images_per_s,
                    measured_images_per_s=rate,
                ),
            )
    return found


MOST_TRIED = 5
"""Maximum number of changes that are tried.

Each takes as long as the run itself was watched, or twice as long if it is repeated. For data in a bucket four changes
can be tried; the first or second is usually so fast that no other can beat it.
"""
SMALL_GAIN = 1.2
"""If the best change gains less, the unchanged run is measured again: two runs of one setting may differ by 5 %."""
DISTURBED = 0.8
"""Share of the prediction below which a trial is repeated, because another program may have disturbed it."""


def try_leading(stages: Stages, fixes: Sequence[Fix], run: Measured) -> list[Fix]:
    """Try the changes that may be the best one (`next_to_try`), and leave out those that gain nothing.

    Returns:
        The changes that gain something, the best first.
    """

    def rate_of(fix: Fix) -> float | None:
        try:
            rate = _tried(stages, fix)
            if rate is not None and rate < DISTURBED * fix.predicted_images_per_s:
                rate = max(rate, _tried(stages, fix) or 0.0)
        except (MemoryError, RuntimeError):
            return 0.0  # e.g. a batch that does not fit into memory
        except UnansweredError:
            fetch_rate.wait_for_reads_left_behind()
            return 0.0  # more reads at once than the link carries
        return rate

    def again() -> float:
        return stages.tried(stages.setup, "the run as it is, once more")

    return _try_leading(fixes, run.observed, run.stage_limit, rate_of, again)


def try_bound(stages: Stages, bound: Bound, observed: float) -> Bound:
    """Try a run without its transform, unless it is predicted to gain nothing over the observed images/s."""
    if bound.gain < MIN_GAIN:
        return bound
    rate = stages.tried(stages.without_transform)
    if rate < DISTURBED * bound.predicted_images_per_s:
        rate = max(rate, stages.tried(stages.without_transform))
    return replace(bound, images_per_s=rate, gain=rate / observed, is_tried=True)


def _try_leading(
    fixes: Sequence[Fix],
    observed: float,
    limit: Limit,
    rate_of: Callable[[Fix], float | None],
    observe_again: Callable[[], float],
) -> list[Fix]:
    found, tried, untriable = list(fixes), 0, set[str]()
    while tried < MOST_TRIED and (leading := next_to_try(ranked(found), limit, untriable)) is not None:
        rate = rate_of(leading)
        if rate is None:
            untriable.add(leading.name)
            continue
        tried += 1
        rest = [fix for fix in found if fix is not leading]
        known = replace(leading, images_per_s=rate, gain=rate / observed, is_tried=True)
        found = [*rest, known] if known.gain >= MIN_GAIN else rest
    left = ranked([fix for fix in found if fix.gain >= MIN_GAIN])
    if not left or not left[0].is_tried or left[0].gain >= SMALL_GAIN:
        return left
    unchanged = max(observed, observe_again())
    return [fix for fix in left if not fix.is_tried or fix.images_per_s >= MIN_GAIN * unchanged]


def _tried(stages: Stages, fix: Fix) -> float | None:
    """Return the images/s of a run with a change; None if it cannot be tried on this machine."""
    if fix.name == "cache":
        return stages.tried_cached()
    if fix.needs == "restart":
        return stages.tried(stages.setup.changed(fix.settings))
    if fix.needs == "rebuild":
        return stages.tried_smaller(fix.settings["short_side"])
    return None


# Changes

TIE = 0.97
"""A change that takes less effort than the best one is preferred if it reaches this share of the best rate."""
TRUSTED = 0.9
"""A tried change is preferred to the best prediction if it reaches this share of it, because half of all predictions
are off by 6 % or more, and a third by 10 %."""
NEAR = 1.15
"""Largest ratio of a stage's rate to the slowest stage's at which the stage may be the limit as well."""
EFFORTS = ("restart", "rebuild", "copy")
"""Efforts of changes, the smallest first."""
_PREPARING = frozenset({"prepare", "cores", "contention"})
"""Limits that a faster transform can lift."""
SAME_REGION_READ_S = 0.005
"""Time of a small read from a bucket in the same region."""
MOST_LEFT = 1 / MIN_GAIN
"""Largest share of the pixels that smaller images may have: with more, a run gains less than 5 %."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A change, with the stages that it changes."""

    name: str
    settings: Changes
    needs: Any
    advice: str
    stages: dict[Stage, StageRate]
    images_per_s: float | None = None
    """Rate of a complete run with the change, measured if the stages alone do not say enough."""
    request_latency_s: float | None = None
    """Latency of a read if the change moves the data; None if it does not."""
    closes_gap: bool = False
    """Whether the change may close the gap between run and prediction; its own prediction then ignores the gap."""


def find_fixes(stages: Stages, run: Measured) -> list[Fix]:
    """Return the changes that are predicted to gain 5 %, or may gain 5 % given the usual error of such predictions."""
    near, fixes = _near(stages, run), []
    for source, limits in _CHANGES:
        if near.isdisjoint(limits):
            continue
        for change in _answered(source, stages):
            fix = _predicted(change, stages, run)
            if may_gain(fix, run.stage_limit):
                fixes.append(fix)
    return ranked(fixes)


def _answered(source: Callable[[Stages], Iterator[_Change]], stages: Stages) -> Iterator[_Change]:
    """Yield the changes of a source until one makes reads miss their deadline, as more reads may do over a narrow link:
    a run with it would fail."""
    try:
        yield from source(stages)
    except UnansweredError:
        fetch_rate.wait_for_reads_left_behind()


def find_bound(stages: Stages, run: Measured) -> Bound | None:
    """Return the predicted rate of a run without its transform; None if preparing does not limit the run."""
    if stages.transform is None or _near(stages, run).isdisjoint(_PREPARING):
        return None
    prepare = stages.prepared(stages.without_transform.config)
    found = _predicted(_Change("transform", {}, "", "", {"prepare": prepare}), stages, run)
    return Bound(
        images_per_s=found.images_per_s,
        predicted_images_per_s=found.predicted_images_per_s,
        is_tried=False,
        gain=found.gain,
        limit=found.limit,
    )


def _near(stages: Stages, run: Measured) -> set[str]:
    """Return the limit and the stages that are about as slow; with `contention` if they slow each other down, `gap` if
    the run stays below what they allow, and `interpreter` if one process cannot fetch more."""
    predicted = run.predicted
    slow = {name for name, each in stages.alone.items() if each.images_per_s <= NEAR * predicted.images_per_s}
    found = {run.stage_limit, predicted.limit, *slow}
    further = {
        "contention": stages.has_contention,
        "gap": run.falls_short,
        "interpreter": "fetch" in found and stages.is_interpreter_busy,
    }
    return found | {name for name, holds in further.items() if holds}


def _predicted(change: _Change, stages: Stages, run: Measured) -> Fix:
    """Return a change with its predicted rate.

    A changed run with the same limit is assumed to miss its prediction by as much as the run itself. Fetching is slower
    while the other stages run, and then has too few requests in flight. The prediction does not contain this limit, so
    a change that brings more requests may lift the run to its prediction (`closes_gap`).
    """
    # The model knows the stages alone, so it errs where they disturb each other. What it misses of the present run is
    # known, observed over predicted; the same error is assumed of a changed run as long as the same stage limits both,
    # because the disturbance is then the same. With another limit the error says nothing, and the prediction stands:
    # carrying a fetch error over to a run that is limited by compute would promise too little for every change.
    # `prepare` and `cores` count as one limit, since more threads turn one into the other. A change that closes the gap
    # may not be charged with it, but a run that is faster than predicted keeps its lead (the max).
    setup = stages.setup.changed(change.settings)
    found, now = predict(stages.rates(setup, change.stages, change.request_latency_s)), run.predicted
    ratio = 1.0
    if found.limit == now.limit or {found.limit, now.limit} == {"prepare", "cores"}:
        ratio = run.observed / now.images_per_s
        if change.closes_gap and now.limit != "fetch":
            ratio = max(1.0, ratio)
    predicted = found.images_per_s * ratio
    rate = change.images_per_s or predicted
    return Fix(
        name=change.name,
        settings=change.settings,
        needs=change.needs,
        images_per_s=rate,
        predicted_images_per_s=predicted,
        is_tried=change.images_per_s is not None,
        gain=rate / run.observed,
        limit=found.limit,
        advice=change.advice,
    )


def ranked(fixes: Sequence[Fix]) -> list[Fix]:
    """Sort changes by rate and keep the best of each name; among the best ones the least effort comes first."""
    # The first change is the one that is applied and tried, so it must be worth its effort. Rates within TIE of the
    # best are equal for a user: measurements of one run differ by 2 to 3 %, and a restart costs less than a rebuild or
    # a copy. A rate measured in a complete run is preferred down to TRUSTED of one that is only predicted, because a
    # third of all predictions are off by 10 %. A measured change never loses to a predicted one by that rule: both
    # bounds are shares of the best rate, and the wider one applies only to tried changes. Without the bounds an
    # optimistic prediction of a rebuild would always beat a certain restart.
    best_of_name: dict[str, Fix] = {}
    for fix in sorted(fixes, key=lambda fix: -fix.images_per_s):
        best_of_name.setdefault(fix.name, fix)
    found = list(best_of_name.values())
    if found:
        best = found[0]
        shares = {fix.name: TRUSTED if fix.is_tried and not best.is_tried else TIE for fix in found}
        ties = [fix for fix in found if fix.images_per_s >= best.images_per_s * shares[fix.name]]
        first = min(ties, key=lambda fix: EFFORTS.index(fix.needs))
        found.remove(first)
        found.insert(0, first)
    return found


def _more_workers(stages: Stages) -> Iterator[_Change]:
    for settings in _other_workers(stages):
        changed = stages.setup.changed(settings)
        stage = stages.prepared(changed.config)
        whole = stages.tried(changed) if stages.has_contention else None
        advice = f"Decode with {counted(settings['threads'], 'thread')}"
        if processes := settings["processes"]:
            advice = f"Decode in {processes} processes, which have an interpreter lock each"
        faster: dict[Stage, StageRate] = {"prepare": stage}
        if stages.is_interpreter_busy and processes:
            faster["fetch"] = stages.fetched_by(processes)
        yield _Change("workers", settings, "restart", f"{advice}: {stages.setup.typed(settings)}", faster, whole)


def _other_workers(stages: Stages) -> list[Changes]:
    """Return numbers of threads and processes that are worth a try."""
    config, cores = stages.setup.config, available_cores()
    found: list[Changes] = [{"threads": cores, "processes": 0}]
    if (any(config.transforms) or stages.is_interpreter_busy) and cores > 1:
        found.append({"threads": 1, "processes": cores})
    if stages.has_contention:
        found += [{"threads": threads, "processes": 0} for threads in sorted({1, cores // 2} - {0, cores})]
    if stages.workers_wait:
        found.append({"threads": MORE_AHEAD * max(cores, config.num_threads), "processes": 0})
    now = {"threads": config.num_threads, "processes": config.processes}
    return [each for each in found if each != now and stages.setup.can_set(each)]


def _fewer_compute_threads(stages: Stages) -> Iterator[_Change]:
    """Yield smaller numbers of threads for a model that computes on the same cores as decoding.

    Threads of one step wait for each other, mostly spinning. If decoding takes a core from one of them, all others wait
    for it, so many threads are slower than few. No stage alone shows by how much, so complete runs are measured.
    """
    now, cores = compute_threads(stages.device), available_cores()
    for threads in sorted({1, cores // 2, cores} - {0}):
        if threads < now:
            settings = Changes(compute_threads=threads)
            whole = stages.tried(stages.setup.changed(settings))
            advice = f"Compute with {counted(threads, 'thread')} instead of {now}: OMP_NUM_THREADS={threads}"
            stage = stages.computed_with(threads)
            yield _Change("compute-threads", settings, "restart", advice, {"compute": stage}, whole)


def _faster_decoder(stages: Stages) -> Iterator[_Change]:
    config, settings = stages.setup.config, Changes(decoder="extension")
    if config.decoder == "library" and extension_available() and stages.setup.can_set(settings):
        stage = stages.prepared(replace(config, decoder="extension"))
        advice = f"Decode the crop alone, with the extension: {stages.setup.typed(settings)}"
        yield _Change("decoder", settings, "restart", advice, {"prepare": stage})


def _more_ahead(stages: Stages) -> Iterator[_Change]:
    if stages.is_local or stages.attempt.is_narrow:
        return
    setup = stages.setup
    settings = setup.settable(stages.ahead_settings)
    if not settings:
        return
    is_whole = settings == stages.ahead_settings
    found = stages.fetched_ahead if is_whole else stages.fetched_with(setup.changed(settings).config)
    if found is None:
        return
    advice = f"Keep more requests in flight: {setup.typed(settings)}"
    yield _Change("prefetch", settings, "restart", advice, {"fetch": found.rate}, closes_gap=True)


def _local_cache(stages: Stages) -> Iterator[_Change]:
    config = stages.setup.config
    if stages.is_local or config.cache_dir is not None or stages.attempt.cache:  # the run has one, or cannot use it
        return
    needed = stages.loader.dataset.split.num_bytes // config.world_size
    if needed > config.cache_bytes:
        return
    settings = Changes(cache_dir=str(Path(tempfile.gettempdir()) / "dataprep-cache"))
    if not stages.setup.can_set(settings):
        return
    what = f"Keep what was read on a local disk, {human_bytes(needed)}"
    advice = f"{what}: {stages.setup.typed(settings)}, from the second epoch on"
    yield _Change("cache", settings, "restart", advice, {"fetch": stages.cached})


def _smaller_images(stages: Stages) -> Iterator[_Change]:
    short_side = stages.setup.config.short_side
    if pixels_left(stages.fetched.images, short_side) > MOST_LEFT:
        return
    try:
        sample, num_bytes = stages.shrunk(short_side)
    except DataprepError:
        return
    changed: dict[Stage, StageRate] = {
        "prepare": stages.prepared(stages.setup.config, sample),
        "fetch": stages.fetched_smaller(num_bytes / stages.bytes_per_image),
    }
    advice = advice_to_shrink(stages.setup.config, conversion(stages.loader.dataset, short_side))
    yield _Change("resize", {"short_side": short_side}, "rebuild", advice, changed)


def advice_to_shrink(config: LoaderConfig, command: str) -> str:
    """Return the advice to store smaller images, and its cost: random crops of them may be enlarged."""
    side, crops = config.short_side, config.crop_groups if config.augment else ()
    smallest = {group.size: round(side * math.sqrt(group.crop.scale[0])) for group in crops}
    enlarged = [f"{crop} to {size}" for size, crop in smallest.items() if crop < size]
    cost = ""
    if enlarged:
        cost = " (random crops are then enlarged, the smallest of a square image from "
        cost += f"{' and from '.join(enlarged)} pixels: check the accuracy)"
    return f"Store the images with a short side of {side} pixels{cost}: {command}"


def conversion(dataset: Dataset, short_side: int) -> str:
    """Return the command that converts this dataset to one with smaller images, in the same format next to its data."""
    url, data = dataset.url.rstrip("/"), dataset.storage.url.rstrip("/")
    words = ["dataprep", "convert", url, "--output", f"{data}-{short_side}", "--format", dataset.manifest.format]
    return shell_words(*words, "--resize", short_side)


def _nearer_bucket(stages: Stages) -> Iterator[_Change]:
    if stages.is_local or stages.is_cached:
        return
    latency_s = request_latency_s(stages.loader)
    if latency_s < 2 * SAME_REGION_READ_S:
        return
    # Little's law: requests in flight = rate * time of a request. The number in flight stays what the loader keeps, so
    # a shorter request raises the rate in proportion, until bandwidth is the limit. The largest rate that was seen with
    # more requests in flight is the bandwidth that is known to exist; a higher one may exist, but nothing here shows
    # it. A request also takes the time of its bytes, which distance does not change: only the latency is exchanged for
    # the latency of a bucket in the region, and no request gets faster than that.
    fetch = stages.fetched.rate
    request_s = stages.fetched.in_flight / fetch.images_per_s
    nearer_s = max(SAME_REGION_READ_S, request_s - latency_s + SAME_REGION_READ_S)
    bandwidth = max(each.rate.images_per_s for each in (stages.fetched, stages.fetched_ahead) if each is not None)
    rate = min(stages.fetched.in_flight / nearer_s, bandwidth)
    advice = f"A read takes {latency_s * 1e3:,.0f} ms: read from a bucket in this region (dataprep check-region)"
    stage = replace(fetch, images_per_s=rate)
    yield _Change("location", {}, "copy", advice, {"fetch": stage}, request_latency_s=SAME_REGION_READ_S)


def _larger_batch(stages: Stages) -> Iterator[_Change]:
    config, setup = stages.setup.config, stages.setup
    batch_size = MORE_AHEAD * config.batch_size
    settings = Changes(batch_size=batch_size)
    if stages.attempt.is_narrow or batch_size > stages.loader.order.num_samples or not setup.can_set(settings):
        return
    larger = replace(config, batch_size=batch_size)
    try:
        transfer, compute = stages.device_with(repeated(stages.batch, MORE_AHEAD))
    except (MemoryError, RuntimeError):
        return  # the batch does not fit into memory
    changed: dict[Stage, StageRate] = {"transfer": transfer, "compute": compute}
    if not stages.is_local:
        changed["fetch"] = stages.fetched_with(larger).rate
    if predict(stages.rates(setup, changed)).limit in ("prepare", "cores"):
        changed["prepare"] = stages.prepared(larger)
    advice = f"Train with batches of {batch_size:,} (and adapt the learning rate): {setup.typed(settings)}"
    yield _Change("batch", settings, "restart", advice, changed)


def repeated(batch: Batch, times: int) -> Batch:
    """Return a batch that repeats the images of another one."""
    images, labels = np.concatenate([batch.images] * times), np.concatenate([batch.labels] * times)
    return replace(batch, images=images, labels=labels)


def _transfer_ahead(stages: Stages) -> Iterator[_Change]:
    settings = Changes(transfer_ahead=2)
    if stages.setup.transfer_ahead == 0 and stages.setup.can_set(settings):
        advice = f"Send the next batch while the device computes: {stages.setup.typed(settings)}"
        yield _Change("transfer-ahead", settings, "restart", advice, {})


_CHANGES: tuple[tuple[Callable[[Stages], Iterator[_Change]], frozenset[str]], ...] = (
    (_more_workers, frozenset({"prepare", "cores", "interpreter"})),
    (_fewer_compute_threads, frozenset({"prepare", "compute", "cores", "contention"})),
    (_faster_decoder, frozenset({"prepare", "cores"})),
    (_transfer_ahead, frozenset({"transfer", "compute"})),
    (_more_ahead, frozenset({"fetch", "gap"})),
    (_local_cache, frozenset({"fetch", "cores"})),
    (_smaller_images, frozenset({"fetch", "prepare", "cores"})),
    (_larger_batch, frozenset({"fetch", "prepare", "transfer", "compute", "cores"})),
    (_nearer_bucket, frozenset({"fetch"})),
)
"""Functions that propose changes, and the limits that each can lift."""
