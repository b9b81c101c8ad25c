"""Diagnosis of a training run: its limit, and changes that would lift it. Measure, predict, compare, try.

    setup = RunSetup(url=url, split="train", config=config, transfer_ahead=2)
    found = diagnose(setup, device, seconds=2.0)

The steps: the device alone (G); the run as it is, with its waits timed; every stage alone (F, P, H), and what they
predict together; each change that could lift the limit, with its stages measured as they would be; last, a trial of the
best changes: of settings on the data themselves, of a cache and of smaller images on a sample (`sample.py`); a change
that needs another bucket keeps its prediction. `fixes.py` has the changes, `prediction.py` the model that predicts a
rate from the stages, `verdict.py` the sentence. Where the measurements contradict each other, nothing is tried.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dataprep.errors import UnansweredError
from dataprep.host.cpu import available_cores, background_cores, cpu_time
from dataprep.host.versions import machine_document
from loaders.config import LoaderConfig
from loaders.diagnosis import fetch_rate
from loaders.diagnosis.findings import MIN_GAIN, Applied, Bound, Diagnosis, Fix, Limit
from loaders.diagnosis.fixes import find_bound, find_fixes, ranked, repeated
from loaders.diagnosis.observed_run import Device, ObservedRun, RunSetup, compute_threads, observe
from loaders.diagnosis.prediction import allocate, next_to_try, predict
from loaders.diagnosis.stages import Stages
from loaders.diagnosis.verdict import Measured, contradiction, disturbance, limit_of, threads_hint, verdict

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


def apply_best(
    setup: RunSetup, device: Device, found: Diagnosis, *, seconds: float = 2.0, fill_s: float = fetch_rate.FILL_S
) -> Diagnosis:
    """Run with the best fix that needs neither rebuild nor copy; without such a fix, return the same diagnosis.

    A cache that is not full after `fill_s` seconds is not tried; the verdict says so.
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
                        lacking = fetch_rate.lacking_after(loader, changed.config, fill_s)
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
