"""The single changes that could make a run faster, each with the rate that it should bring.

A change is a few new settings. What it does to a stage is measured on that stage alone where that can be done here
(more threads, more requests under way, smaller images made of a sample, a larger batch), and computed where it cannot
(a bucket that lies nearer). `rates.predict` says what all stages make together then.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dataprep.cpu import available_cores
from dataprep.errors import DataprepError
from loaders.decode import extension_available
from loaders.findings import Fix, Limit, Stage, StageRate
from loaders.loader import Batch
from loaders.rates import Prediction, predict
from loaders.stage_rates import request_latency_s
from loaders.stages import MORE, Stages

MIN_GAIN = 1.05
"""Below it a change is not worth a restart, nor a difference worth believing."""
TIE = 0.97
"""Of the best prediction: then the change that costs less comes first."""
TRUSTED = 0.9
"""Of the best prediction: a change that was tried comes first already then, for half of all predictions are 6 % off or
more, a third 10 %."""
NEAR = 1.15
"""Stages within this factor of the slowest may be the limit as well."""
EFFORTS = ("restart", "rebuild", "copy")
IDLE_SHARE = 0.5
"""Of their cores that busy workers use at least."""
BESIDE_S = 0.005
"""A small read from a bucket in the same region."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A change with the stages that it changes."""

    name: str
    settings: dict[str, Any]
    needs: Any
    advice: str
    stages: dict[Stage, StageRate]
    images_per_s: float | None = None
    """Of a whole run, where the stages alone do not say enough."""


def find_fixes(stages: Stages, observed: float, predicted: Prediction, limit: Limit) -> list[Fix]:
    """The changes that should bring 5 % or more.

    Args:
        stages: To measure with.
        observed: Images/s of the run.
        predicted: Of its stages.
        limit: What holds the run back.
    """
    near = _near(stages, predicted, limit)
    calibrated = _Calibration(stages, observed, predicted)
    fixes = []
    for source, limits in _CHANGES:
        if near.isdisjoint(limits):
            continue
        for change in source(stages):
            fix = calibrated.fix(change)
            if fix.gain >= MIN_GAIN:
                fixes.append(fix)
    return ranked(fixes)


def _near(stages: Stages, predicted: Prediction, limit: Limit) -> set[str]:
    """The limit, and the stages that are about as slow."""
    slow = {name for name, each in stages.alone.items() if each.images_per_s <= NEAR * predicted.images_per_s}
    return {limit, predicted.limit, *slow}


@dataclass(frozen=True, slots=True)
class _Calibration:
    """Predictions of changes, corrected by how the run itself differs from its prediction."""

    stages: Stages
    observed: float
    predicted: Prediction

    @property
    def ratio(self) -> float:
        """What the run makes of its prediction."""
        return self.observed / self.predicted.images_per_s

    def fix(self, change: _Change) -> Fix:
        setup = self.stages.setup.changed(change.settings)
        found = predict(self.stages.rates(setup, change.stages))
        predicted = found.images_per_s * self._correction(found.limit)
        rate = change.images_per_s or predicted
        return Fix(
            name=change.name,
            settings=change.settings,
            needs=change.needs,
            images_per_s=rate,
            predicted_images_per_s=predicted,
            is_tried=change.images_per_s is not None,
            gain=rate / self.observed,
            limit=found.limit,
            advice=change.advice,
        )

    def _correction(self, limit: Limit) -> float:
        """The run's own, where the same thing holds it back."""
        is_same = limit == self.predicted.limit or {limit, self.predicted.limit} == {"prepare", "cores"}
        return self.ratio if is_same else 1.0


def ranked(fixes: Sequence[Fix]) -> list[Fix]:
    """By rate; among the best ones that which costs the least effort first, and one fix of each name."""
    best_of_name: dict[str, Fix] = {}
    for fix in sorted(fixes, key=lambda fix: -fix.images_per_s):
        best_of_name.setdefault(fix.name, fix)
    found = list(best_of_name.values())
    if found:
        best = found[0]
        ties = [fix for fix in found if fix.images_per_s >= best.images_per_s * _tie(fix, best)]
        first = min(ties, key=lambda fix: EFFORTS.index(fix.needs))
        found.remove(first)
        found.insert(0, first)
    return found


def _tie(fix: Fix, best: Fix) -> float:
    return TRUSTED if fix.is_tried and not best.is_tried else TIE


def _more_workers(stages: Stages) -> Iterator[_Change]:
    for settings in _other_workers(stages):
        changed = stages.setup.changed(settings)
        stage = stages.prepared(changed.config)
        whole = stages.tried(changed) if stages.has_contention else None
        yield _Change("workers", settings, "restart", _workers_advice(settings), {"prepare": stage}, whole)


def _other_workers(stages: Stages) -> list[dict[str, int]]:
    """Threads and processes that are worth a try."""
    config, cores = stages.setup.config, available_cores()
    found = [{"threads": cores, "processes": 0}]
    if config.transform is not None and cores > 1:
        found.append({"threads": 1, "processes": cores})
    if stages.has_contention:
        found += [{"threads": threads, "processes": 0} for threads in sorted({1, cores // 2} - {0, cores})]
    prepare = stages.alone["prepare"]
    workers = min(stages.available_cores(), config.num_threads * max(1, config.processes))
    if config.transform is not None and prepare.images_per_s * prepare.cpu_s_per_image < IDLE_SHARE * workers:
        found.append({"threads": MORE * cores, "processes": 0})  # it waits for something else than cores
    return [each for each in found if each != {"threads": config.num_threads, "processes": config.processes}]


def _workers_advice(settings: Mapping[str, int]) -> str:
    threads, processes = settings["threads"], settings["processes"]
    if processes:
        reason = "a transform holds the interpreter lock"
        return f"Decode in {processes} processes, because {reason}: --processes {processes} --threads {threads}"
    count = f"{threads} thread{'s' if threads > 1 else ''}"
    return f"Decode with {count}: --threads {threads} --processes 0"


def _faster_decoder(stages: Stages) -> Iterator[_Change]:
    config = stages.setup.config
    if config.decoder == "library" and extension_available():
        stage = stages.prepared(replace(config, decoder="extension"))
        advice = "Decode the crop alone, with the extension: --decoder extension"
        yield _Change("decoder", {"decoder": "extension"}, "restart", advice, {"prepare": stage})


def _more_ahead(stages: Stages) -> Iterator[_Change]:
    if stages.is_local:
        return
    settings = stages.ahead_settings
    advice = (
        f"Keep more requests under way: --prefetch-batches {settings['prefetch_batches']} "
        f"--reads-in-flight {settings['reads_in_flight']}"
    )
    yield _Change("prefetch", settings, "restart", advice, {"fetch": stages.fetched_ahead.rate})


def _local_cache(stages: Stages) -> Iterator[_Change]:
    config = stages.setup.config
    if stages.is_local or config.cache_dir is not None:
        return
    needed = stages.loader.dataset.split.num_bytes // config.world_size
    if needed > config.cache_bytes:
        return
    folder = str(Path(tempfile.gettempdir()) / "dataprep-cache")
    advice = f"Keep what was read on a local disk, {needed / 1e9:,.1f} GB: --cache-dir DIR, from the second epoch on"
    yield _Change("cache", {"cache_dir": folder}, "restart", advice, {"fetch": stages.cached})


def _smaller_images(stages: Stages) -> Iterator[_Change]:
    short_side = stages.setup.config.short_side
    try:
        sample, num_bytes = stages.shrunk(short_side)
    except DataprepError:
        return
    changed: dict[Stage, StageRate] = {"prepare": stages.prepared(stages.setup.config, sample)}
    if not stages.is_local:
        changed["fetch"] = stages.fetched_smaller(num_bytes / stages.bytes_per_image)
    advice = f"Store the images with a short side of {short_side} pixels: dataprep build --resize {short_side}"
    yield _Change("resize", {"short_side": short_side}, "rebuild", advice, changed)


def _nearer_bucket(stages: Stages) -> Iterator[_Change]:
    if stages.is_local:
        return
    latency_s = request_latency_s(stages.loader)
    if latency_s < 2 * BESIDE_S:
        return
    fetch = stages.fetched.rate
    request_s = stages.fetched.in_flight / fetch.images_per_s
    nearer_s = max(BESIDE_S, request_s - latency_s + BESIDE_S)
    rate = min(stages.fetched.in_flight / nearer_s, max(_bandwidth_rate(stages), fetch.images_per_s))
    advice = f"A read takes {latency_s * 1e3:,.0f} ms: read from a bucket beside this machine (dataprep check-region)"
    stage = replace(fetch, images_per_s=rate)
    yield _Change("location", {}, "copy", advice, {"fetch": stage})


def _bandwidth_rate(stages: Stages) -> float:
    """Images/s with as many requests under way as help."""
    return max(stages.fetched_ahead.rate.images_per_s, stages.fetched.rate.images_per_s)


def _larger_batch(stages: Stages) -> Iterator[_Change]:
    config, setup = stages.setup.config, stages.setup
    batch_size = MORE * config.batch_size
    if batch_size > stages.loader.order.num_samples:
        return
    larger = replace(config, batch_size=batch_size)
    try:
        transfer, compute = stages.device_with(_repeated(stages.batch, MORE))
    except (MemoryError, RuntimeError):
        return  # it does not fit
    changed: dict[Stage, StageRate] = {"transfer": transfer, "compute": compute}
    if not stages.is_local:
        changed["fetch"] = stages.fetched_with(larger).rate
    if predict(stages.rates(setup, changed)).limit in ("prepare", "cores"):
        changed["prepare"] = stages.prepared(larger)
    advice = f"Train with batches of {batch_size:,} (and its learning rate): --batch-size {batch_size}"
    yield _Change("batch", {"batch_size": batch_size}, "restart", advice, changed)


def _repeated(batch: Batch, times: int) -> Batch:
    import numpy as np

    images, labels = np.concatenate([batch.images] * times), np.concatenate([batch.labels] * times)
    return replace(batch, images=images, labels=labels)


def _transfer_ahead(stages: Stages) -> Iterator[_Change]:
    if stages.setup.transfer_ahead == 0:
        advice = "Send the next batch while the device computes: --transfer-ahead 2"
        yield _Change("transfer-ahead", {"transfer_ahead": 2}, "restart", advice, {})


_CHANGES: tuple[tuple[Callable[[Stages], Iterator[_Change]], frozenset[str]], ...] = (
    (_more_workers, frozenset({"prepare", "cores"})),
    (_faster_decoder, frozenset({"prepare", "cores"})),
    (_transfer_ahead, frozenset({"transfer", "compute"})),
    (_more_ahead, frozenset({"fetch"})),
    (_local_cache, frozenset({"fetch", "cores"})),
    (_smaller_images, frozenset({"fetch", "prepare", "cores"})),
    (_larger_batch, frozenset({"fetch", "prepare", "transfer", "compute", "cores"})),
    (_nearer_bucket, frozenset({"fetch"})),
)
"""And which limits each can lift."""
