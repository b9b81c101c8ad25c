"""The single changes that could make a run faster, each with the rate that it should bring.

A change is a few new settings. What it does to a stage is measured on that stage alone where that can be done here
(more threads, more requests under way, smaller images made of a sample, a larger batch), and computed where it cannot
(a bucket that lies nearer). `rates.predict` says what all stages make together then.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dataprep.errors import DataprepError
from loaders.config import LoaderConfig
from loaders.cpu import available_cores
from loaders.decode import extension_available
from loaders.devices import Device
from loaders.findings import Fix, Limit, Stage, StageRate
from loaders.loader import Batch, Loader
from loaders.rates import CONTENTION, Prediction, Rates, predict
from loaders.stage_rates import (
    SAMPLE_IMAGES,
    Fetched,
    cached_rate,
    compute_rate,
    fetch_rate_alone,
    mean_bytes,
    prepare_rate,
    request_latency_s,
    transfer_rate,
    write_sample,
)
from loaders.trial import Setup, observe

MIN_GAIN = 1.05
"""Below it a change is not worth a restart, nor a difference worth believing."""
TIE = 0.97
"""Of the best prediction: then the change that costs less comes first."""
NEAR = 1.15
"""Stages within this factor of the slowest may be the limit as well."""
EFFORTS = ("restart", "rebuild", "copy")
IDLE_SHARE = 0.5
"""Of their cores that busy workers use at least."""
MORE = 4
"""Times the batches ahead, the requests under way, or the batch."""
MEMORY_BYTES = 4 * 2**30
"""That more batches ahead may take."""
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


class Bench:
    """Measures stages of one run, each setting once.

    Args:
        setup: The run.
        device: What it trains on.
        loader: Of the run, not running.
        batch: One of its batches.
        background: Cores that other programs keep busy.
        seconds: For each stage.
        folder: For samples of the data; somebody else removes it.
        progress: Told what is under way.
    """

    def __init__(
        self,
        setup: Setup,
        device: Device,
        loader: Loader,
        batch: Batch,
        background: float,
        seconds: float,
        folder: Path,
        progress: Callable[[str], None],
    ) -> None:
        self.setup, self.device, self.loader, self.batch = setup, device, loader, batch
        self.background, self._seconds, self._folder, self.progress = background, seconds, folder, progress
        self.observed_images_per_s = 0.0
        self.stages: dict[Stage, StageRate] = {"compute": compute_rate(device, batch, seconds, background)}

    @property
    def has_contention(self) -> bool:
        """The run is much slower than its stages promise; known once it was observed."""
        return self.observed_images_per_s < CONTENTION * predict(self.rates(self.setup)).images_per_s

    @property
    def is_local(self) -> bool:
        """The data lie on a disk of this machine."""
        return self.loader.dataset.storage().is_local

    @property
    def bytes_per_image(self) -> float:
        """Encoded."""
        return self.fetched.bytes_per_image

    @cached_property
    def fetched(self) -> Fetched:
        """The bytes as they come now, and the images of the sample."""
        self.progress("fetching alone")
        return fetch_rate_alone(self.loader, self.setup.config, self._seconds, self.background, keep=SAMPLE_IMAGES)

    @cached_property
    def ahead_settings(self) -> dict[str, int]:
        """With several times as many images under way, as far as memory allows."""
        config = self.setup.config
        batch_bytes = config.rows * config.image_size**2 * 3
        at_most = max(config.prefetch_batches, MEMORY_BYTES // batch_bytes)
        batches = min(MORE * config.prefetch_batches, at_most)
        return {"prefetch_batches": batches, "reads_in_flight": int(MORE * self.fetched.in_flight)}

    @cached_property
    def fetched_ahead(self) -> Fetched:
        """Fetching with `ahead_settings`."""
        return self.fetched_with(self.setup.changed(self.ahead_settings).config)

    @cached_property
    def cached(self) -> StageRate:
        """Fetching from a cache on a local disk."""
        self.progress("a cache on the local disk")
        config, folder = self.setup.config, self._folder / "cache"
        return cached_rate(self.fetched.images, folder, config.num_threads, self._seconds / 2, self.background)

    @cached_property
    def sample(self) -> str:
        """A local dataset of images as they are stored."""
        return write_sample(self.fetched.images, self._folder / "sample")

    def measure_stages(self, observed_images_per_s: float) -> None:
        """All of them, as they are set up."""
        self.observed_images_per_s = observed_images_per_s
        transfer = transfer_rate(self.device, self.batch, self._seconds / 2, self.background)
        prepare = self.prepared(self.setup.config)
        compute = self.stages.pop("compute")
        self.stages |= {"fetch": self.fetched.rate, "prepare": prepare, "transfer": transfer, "compute": compute}

    def prepared(self, config: LoaderConfig, sample: str | None = None) -> StageRate:
        """Decoding with other settings, or of other images."""
        self.progress("decoding alone")
        return prepare_rate(sample or self.sample, config, self._seconds, self.background)

    def fetched_with(self, config: LoaderConfig) -> Fetched:
        """Fetching with other settings."""
        self.progress("fetching, with more under way")
        return fetch_rate_alone(self.loader, config, self._seconds, self.background)

    def device_with(self, batch: Batch) -> tuple[StageRate, StageRate]:
        """Transfer and compute of another batch."""
        self.progress("the device, with a larger batch")
        return (
            transfer_rate(self.device, batch, self._seconds / 2, self.background),
            compute_rate(self.device, batch, self._seconds / 2, self.background),
        )

    def tried(self, setup: Setup) -> float:
        """Images/s of a whole run with other settings."""
        self.progress("the run, with other workers")
        return observe(setup, self.device, self._seconds).images_per_s

    def shrunk(self, short_side: int) -> tuple[str, float]:
        """A sample as a build would shrink it, and the bytes of an image in it."""
        self.progress(f"shrinking a sample to {short_side} pixels")
        url = write_sample(self.fetched.images, self._folder / f"sample-{short_side}", short_side)
        return url, mean_bytes(url)

    def rates(self, setup: Setup, changed: Mapping[Stage, StageRate] | None = None) -> Rates:
        """For `predict`: the stages, some of them changed.

        Args:
            setup: With the transfer as it would be.
            changed: Stages that would be others.
        """
        stages = self.stages | dict(changed or {})
        return Rates(
            images_per_s={name: stage.images_per_s for name, stage in stages.items()},
            cpu_s_per_image={name: stage.cpu_s_per_image for name, stage in stages.items()},
            cores=self._available_cores(stages),
            transfer_ahead=setup.transfer_ahead > 0,
            fetch_in_turn=self.is_local,
        )

    def _available_cores(self, stages: Mapping[Stage, StageRate]) -> float:
        """What other programs leave, and no less than a stage was seen to get beside them."""
        left = available_cores() - self.background
        return max(left, *(stage.images_per_s * stage.cpu_s_per_image for stage in stages.values()))


def find_fixes(bench: Bench, observed: float, predicted: Prediction, limit: Limit) -> list[Fix]:
    """The changes that should bring 5 % or more, the best first.

    Args:
        bench: To measure with.
        observed: Images/s of the run.
        predicted: Of its stages.
        limit: What holds the run back.
    """
    near = _near(bench, predicted, limit)
    calibrated = _Calibration(bench, observed, predicted)
    fixes = []
    for source, limits in _CHANGES:
        if near.isdisjoint(limits):
            continue
        for change in source(bench):
            fix = calibrated.fix(change)
            if fix.gain >= MIN_GAIN:
                fixes.append(fix)
    return _ranked(fixes)


def _near(bench: Bench, predicted: Prediction, limit: Limit) -> set[str]:
    """The limit, and the stages that are about as slow."""
    slow = {name for name, each in bench.stages.items() if each.images_per_s <= NEAR * predicted.images_per_s}
    return {limit, predicted.limit, *slow}


@dataclass(frozen=True, slots=True)
class _Calibration:
    """Predictions of changes, corrected by how the run itself differs from its prediction."""

    bench: Bench
    observed: float
    predicted: Prediction

    @property
    def ratio(self) -> float:
        """What the run makes of its prediction."""
        return self.observed / self.predicted.images_per_s

    def fix(self, change: _Change) -> Fix:
        setup = self.bench.setup.changed(change.settings)
        found = predict(self.bench.rates(setup, change.stages))
        rate = change.images_per_s or found.images_per_s * self._correction(found.limit)
        return Fix(
            name=change.name,
            settings=change.settings,
            needs=change.needs,
            images_per_s=rate,
            gain=rate / self.observed,
            limit=found.limit,
            advice=change.advice,
        )

    def _correction(self, limit: Limit) -> float:
        """The run's own, where the same thing holds it back."""
        is_same = limit == self.predicted.limit or {limit, self.predicted.limit} == {"prepare", "cores"}
        return self.ratio if is_same else 1.0


def _ranked(fixes: list[Fix]) -> list[Fix]:
    """By rate; among the best ones that which costs the least effort first, and one fix of each name."""
    best_of_name: dict[str, Fix] = {}
    for fix in sorted(fixes, key=lambda fix: -fix.images_per_s):
        best_of_name.setdefault(fix.name, fix)
    ranked = list(best_of_name.values())
    if ranked:
        ties = [fix for fix in ranked if fix.images_per_s >= TIE * ranked[0].images_per_s]
        first = min(ties, key=lambda fix: EFFORTS.index(fix.needs))
        ranked.remove(first)
        ranked.insert(0, first)
    return ranked


def _more_workers(bench: Bench) -> Iterator[_Change]:
    for settings in _other_workers(bench):
        changed = bench.setup.changed(settings)
        stage = bench.prepared(changed.config)
        whole = bench.tried(changed) if bench.has_contention else None
        yield _Change("workers", settings, "restart", _workers_advice(settings), {"prepare": stage}, whole)


def _other_workers(bench: Bench) -> list[dict[str, int]]:
    """Threads and processes that are worth a try."""
    config, cores = bench.setup.config, available_cores()
    found = [{"threads": cores, "processes": 0}]
    if config.transform is not None and cores > 1:
        found.append({"threads": 1, "processes": cores})
    if bench.has_contention:
        found += [{"threads": threads, "processes": 0} for threads in sorted({1, cores // 2} - {0, cores})]
    prepare = bench.stages["prepare"]
    workers = min(cores, config.num_threads * max(1, config.processes))
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


def _faster_decoder(bench: Bench) -> Iterator[_Change]:
    config = bench.setup.config
    if config.decoder == "library" and extension_available():
        stage = bench.prepared(replace(config, decoder="extension"))
        advice = "Decode the crop alone, with the extension: --decoder extension"
        yield _Change("decoder", {"decoder": "extension"}, "restart", advice, {"prepare": stage})


def _more_ahead(bench: Bench) -> Iterator[_Change]:
    if bench.is_local:
        return
    settings = bench.ahead_settings
    advice = (
        f"Keep more requests under way: --prefetch-batches {settings['prefetch_batches']} "
        f"--reads-in-flight {settings['reads_in_flight']}"
    )
    yield _Change("prefetch", settings, "restart", advice, {"fetch": bench.fetched_ahead.rate})


def _local_cache(bench: Bench) -> Iterator[_Change]:
    config = bench.setup.config
    if bench.is_local or config.cache_dir is not None:
        return
    needed = bench.loader.dataset.split.num_bytes // config.world_size
    if needed > config.cache_bytes:
        return
    folder = str(Path(tempfile.gettempdir()) / "dataprep-cache")
    advice = f"Keep what was read on a local disk, {needed / 1e9:,.1f} GB: --cache-dir DIR, from the second epoch on"
    yield _Change("cache", {"cache_dir": folder}, "restart", advice, {"fetch": bench.cached})


def _smaller_images(bench: Bench) -> Iterator[_Change]:
    short_side = bench.setup.config.short_side
    try:
        sample, num_bytes = bench.shrunk(short_side)
    except DataprepError:
        return
    share = num_bytes / bench.bytes_per_image
    stages: dict[Stage, StageRate] = {"prepare": bench.prepared(bench.setup.config, sample)}
    fetch = bench.fetched.rate
    if not bench.is_local:
        rate = min(_latency_rate(bench), _bandwidth_rate(bench) / share)
        stages["fetch"] = replace(fetch, images_per_s=rate, cpu_s_per_image=fetch.cpu_s_per_image * (1 + share) / 2)
    advice = f"Store the images with a short side of {short_side} pixels: dataprep build --resize {short_side}"
    yield _Change("resize", {"short_side": short_side}, "rebuild", advice, stages)


def _nearer_bucket(bench: Bench) -> Iterator[_Change]:
    if bench.is_local:
        return
    latency_s = request_latency_s(bench.loader)
    if latency_s < 2 * BESIDE_S:
        return
    fetch = bench.fetched.rate
    request_s = bench.fetched.in_flight / fetch.images_per_s
    nearer_s = max(BESIDE_S, request_s - latency_s + BESIDE_S)
    rate = min(bench.fetched.in_flight / nearer_s, max(_bandwidth_rate(bench), fetch.images_per_s))
    advice = f"A read takes {latency_s * 1e3:,.0f} ms: read from a bucket beside this machine (dataprep check-region)"
    stage = replace(fetch, images_per_s=rate)
    yield _Change("location", {}, "copy", advice, {"fetch": stage})


def _bandwidth_rate(bench: Bench) -> float:
    """Images/s with as many requests under way as help."""
    return max(bench.fetched_ahead.rate.images_per_s, bench.fetched.rate.images_per_s)


def _latency_rate(bench: Bench) -> float:
    """Images/s if bytes took no time and round trips alone did."""
    if bench.fetched_ahead.rate.images_per_s > NEAR * bench.fetched.rate.images_per_s:
        return bench.fetched.rate.images_per_s
    latency_s = max(request_latency_s(bench.loader), 1e-4)
    return max(bench.fetched.in_flight / latency_s, bench.fetched.rate.images_per_s)


def _larger_batch(bench: Bench) -> Iterator[_Change]:
    config, setup = bench.setup.config, bench.setup
    batch_size = MORE * config.batch_size
    if batch_size > bench.loader.order.num_samples:
        return
    larger = replace(config, batch_size=batch_size)
    try:
        transfer, compute = bench.device_with(_repeated(bench.batch, MORE))
    except (MemoryError, RuntimeError):
        return  # it does not fit
    stages: dict[Stage, StageRate] = {"transfer": transfer, "compute": compute}
    if not bench.is_local:
        stages["fetch"] = bench.fetched_with(larger).rate
    if predict(bench.rates(setup, stages)).limit in ("prepare", "cores"):
        stages["prepare"] = bench.prepared(larger)
    advice = f"Train with batches of {batch_size:,} (and its learning rate): --batch-size {batch_size}"
    yield _Change("batch", {"batch_size": batch_size}, "restart", advice, stages)


def _repeated(batch: Batch, times: int) -> Batch:
    import numpy as np

    images, labels = np.concatenate([batch.images] * times), np.concatenate([batch.labels] * times)
    return replace(batch, images=images, labels=labels)


def _transfer_ahead(bench: Bench) -> Iterator[_Change]:
    if bench.setup.transfer_ahead == 0:
        advice = "Send the next batch while the device computes: --transfer-ahead 2"
        yield _Change("transfer-ahead", {"transfer_ahead": 2}, "restart", advice, {})


_CHANGES: tuple[tuple[Callable[[Bench], Iterator[_Change]], frozenset[str]], ...] = (
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
