"""Find out what a training run waits for, and what would change that: measure, predict, compare, try.

    setup = Setup(url=url, split="train", config=config, transfer_ahead=2)
    found = diagnose(setup, device, seconds=2.0)

The order of things: the device alone (G); the run as it is, its waits timed; where it is slower than the device, every
stage alone (F, P, H) and what they predict together; then each change that could lift the limit, its stages measured
as they would be; last, the best of them are tried. `fixes.py` has the changes, `rates.py` the arithmetic.
"""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dataprep import __version__
from dataprep.cpu import available_cores, background_cores
from dataprep.plan import codec_versions
from loaders.devices import Device
from loaders.findings import Applied, Diagnosis, Fix, Limit, StepTimes
from loaders.fixes import find_fixes
from loaders.loader import Batch, Loader
from loaders.rates import COMPUTE_BOUND, CONTENTION, Prediction, Rates, allocate, predict
from loaders.stages import Stages
from loaders.trial import Observed, Setup, loader_settings, observe
from loaders.trying import try_leading

TIMELINE_STEPS = 200
WAITED_FOR: dict[Limit, str] = {
    "fetch": "bytes to arrive",
    "prepare": "images to be decoded",
    "transfer": "batches to reach the device",
    "compute": "the device",
    "cores": "processor cores, which decoding and the other stages share",
}


def diagnose(
    setup: Setup, device: Device, *, seconds: float = 2.0, progress: Callable[[str], None] = lambda what: None
) -> Diagnosis:
    """Measure a run and its stages, and say what limits it.

    Args:
        setup: The run.
        device: What it trains on.
        seconds: For the run itself; a stage takes half of it.
        progress: Told what is under way.

    Raises:
        DataprepError: The data cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="dataprep-diagnose-") as folder, setup.open() as loader:
        background = background_cores()
        progress("the device, fed from memory")
        batch = _first_batch(loader)
        stages = Stages(setup, device, loader, batch, background, seconds / 2, Path(folder), progress)
        compute = stages.alone["compute"]
        progress("the run as it is")
        observed = observe(setup, device, seconds)
        stages.measure_stages(observed.images_per_s)
        rates = stages.rates(setup)
        predicted = predict(rates)
        is_compute_bound = observed.images_per_s >= COMPUTE_BOUND * compute.images_per_s
        limit: Limit = "compute" if is_compute_bound else predicted.limit
        fixes = find_fixes(stages, observed.images_per_s, predicted, limit)
        fixes = try_leading(stages, fixes, observed.images_per_s)
        return _diagnosis(stages, observed, rates, predicted, limit, fixes)


def apply_best(setup: Setup, device: Device, found: Diagnosis, *, seconds: float = 2.0) -> Diagnosis:
    """Run with the best fix that needs no rebuild and no copy; the same diagnosis where there is none."""
    for fix in found.fixes:
        if fix.needs == "restart":
            with tempfile.TemporaryDirectory(prefix="dataprep-cache-") as folder:
                changed = setup.changed(fix.settings | ({"cache_dir": folder} if fix.name == "cache" else {}))
                if fix.name == "cache":
                    _fill_cache(changed)
                rate = observe(changed, device, seconds).images_per_s
            return replace(
                found,
                applied=Applied(
                    name=fix.name,
                    settings=fix.settings,
                    predicted_images_per_s=fix.images_per_s,
                    measured_images_per_s=rate,
                ),
            )
    return found


def _fill_cache(setup: Setup) -> None:
    """An epoch, so that everything is in the cache."""
    with setup.open() as loader:
        for _ in loader:
            pass


def _first_batch(loader: Loader) -> Batch:
    """A batch that outlives its loader's threads, which end here."""
    batch = next(iter(loader))
    loader.close()
    return batch


def _diagnosis(
    stages: Stages,
    observed: Observed,
    rates: Rates,
    predicted: Prediction,
    limit: Limit,
    fixes: Sequence[Fix],
) -> Diagnosis:
    compute, cores = stages.alone["compute"].images_per_s, available_cores()
    attainable, allocation = allocate(rates, {"fetch": cores, "prepare": cores})
    times = [step.times for step in observed.steps]
    wait, transfer, share = _shares(times)
    return Diagnosis(
        url=stages.loader.dataset.url,
        device=stages.device.name,
        verdict=_verdict(observed.images_per_s, compute, limit, fixes),
        limit=limit,
        observed_images_per_s=observed.images_per_s,
        predicted_images_per_s=predicted.images_per_s,
        contention=_contention(observed.images_per_s, predicted),
        utilisation=min(1.0, observed.images_per_s / compute),
        stages=tuple(stages.alone.values()),
        wait_share=wait,
        transfer_share=transfer,
        compute_share=share,
        timeline=_timeline(times),
        fixes=tuple(fixes),
        applied=None,
        bytes_per_image=stages.bytes_per_image,
        settings=_settings(stages.setup),
        machine=machine(stages.background),
        attainable_images_per_s=attainable,
        allocation=allocation,
    )


def _shares(times: Sequence[StepTimes]) -> tuple[float, float, float]:
    """Of all the time of the steps; the three add up to 1."""
    sums = [sum(getattr(each, name) for each in times) for name in ("wait_s", "transfer_s", "compute_s")]
    total_s = sum(sums) or 1.0
    return sums[0] / total_s, sums[1] / total_s, sums[2] / total_s


def _timeline(times: Sequence[StepTimes]) -> tuple[StepTimes, ...]:
    return tuple(replace(each, started_s=each.started_s - times[0].started_s) for each in times[:TIMELINE_STEPS])


def _contention(observed: float, predicted: Prediction) -> str:
    if observed >= CONTENTION * predicted.images_per_s:
        return ""
    return (
        f"alone the stages promise {predicted.images_per_s:,.0f} images/s, together they make {observed:,.0f}: "
        "they are in each other's way for cores, memory or the interpreter lock"
    )


def _verdict(observed: float, compute: float, limit: Limit, fixes: Sequence[Fix]) -> str:
    share = f"{100 * min(1.0, observed / compute):.0f} % of what the device could take"
    if limit == "compute" and observed >= COMPUTE_BOUND * compute:
        start = f"The device is the limit: {observed:,.0f} images/s, {share}; its input keeps up."
    else:
        start = f"You are waiting for {WAITED_FOR[limit]}: {observed:,.0f} images/s, {share}."
    if not fixes:
        return f"{start} No single change here brings 5 %."
    best = fixes[0]
    return f"{start} {best.advice}: {best.images_per_s:,.0f} images/s, {100 * (best.gain - 1):+.0f} %."


def _settings(setup: Setup) -> dict[str, Any]:
    config = loader_settings(setup.config) | {"transfer_ahead": setup.transfer_ahead, "split": setup.split}
    transform = config["transform"]
    return config | {"transform": None if transform is None else getattr(transform, "__qualname__", repr(transform))}


def machine(background: float) -> dict[str, Any]:
    """On what something was measured."""
    return {
        "cores": available_cores(),
        "busy_cores_before": round(background, 2),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "codecs": codec_versions(),
        "dataprep": __version__,
        "measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
