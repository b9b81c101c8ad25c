"""The stages of one run, unchanged and with changes; each is measured when it is first needed.

First come the measurements of single stages (device, transfer, preparing with the user's transform), then `Stages`,
which measures each setting of a run once.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from dataprep.dataset.adopted import is_adopted
from dataprep.errors import DataprepError, UnansweredError
from dataprep.host.cpu import available_cores, cpu_quota, cpu_time
from loaders.config import LoaderConfig
from loaders.dataset import open_dataset
from loaders.diagnosis import fetch_rate, prediction
from loaders.diagnosis.findings import Changes, Stage, StageRate, TransformCost
from loaders.diagnosis.observed_run import Device, RunSetup, observe, reads_in_flight, using_threads
from loaders.diagnosis.sample import (
    DISK_SHARDS,
    SAMPLE_IMAGES,
    SPLIT,
    RehearsalSetup,
    Source,
    mean_image_bytes,
    places_in,
    sample_streams,
    write_sample,
)
from loaders.engine.batch import Batch
from loaders.engine.stats import StageTimes
from loaders.loader import Loader, open_configured
from loaders.order import samples_per_block

_LOCKED = 0.8
"""Minimum use, in cores, of a transform that holds the interpreter lock, over all threads of a process; the loader
itself has the lock for the rest of a core."""
_MOST_LOCKED = 1.1
"""Maximum of the same, which is one core and a tenth of measurement error."""
_WAITING = 1.3
"""Ratio of the time to the CPU time of preparing an image, from which on threads count as waiting."""
_IDLE_CORES = 0.5
"""Cores that must be idle; otherwise threads may wait for a core instead of the lock."""
_EXPLAINED = 0.5
"""Share of a transform's time; if the CPU time of all threads is less, they wait for something else."""


def transform_cost(
    config: LoaderConfig, before: Mapping[str, StageTimes], after: Mapping[str, StageTimes]
) -> TransformCost | None:
    """Return the cost of the transforms between two snapshots of a loader's stages; None without transforms."""
    nothing = StageTimes()
    images, transform_s, cpu_s = _between(before.get("transform", nothing), after.get("transform", nothing))
    decoded, prepare_s, _ = _between(before.get("decode", nothing), after.get("decode", nothing))
    if not images or not decoded:
        return None
    return TransformCost(
        name=", ".join(dict.fromkeys(_name_of(each) for each in config.transforms if each is not None)),
        s_per_image=transform_s / images,
        cpu_s_per_image=cpu_s / images,
        prepare_s_per_image=prepare_s / decoded,
        holds_lock=False,
        without=None,
    )


def holds_lock(
    cost: TransformCost, *, threads: int, images_per_s: float, cpu_s_per_image: float, idle_cores: float
) -> bool:
    """Whether a transform holds the interpreter lock, so that only one thread of a process runs it at a time.

    Args:
        threads: Threads of one process that call it.
        images_per_s: Rate of one process.
        cpu_s_per_image: Total CPU time for an image. With a short transform, threads also wait for the lock elsewhere:
            a thread may keep it for 5 ms.
        idle_cores: Cores that were idle during the measurement.
    """
    taken = images_per_s * cost.cpu_s_per_image
    is_waiting = cost.prepare_s_per_image >= _WAITING * cpu_s_per_image
    return threads > 1 and _LOCKED <= taken <= _MOST_LOCKED and is_waiting and idle_cores >= _IDLE_CORES


def waits_for_no_core(cost: TransformCost, threads: int) -> bool:
    """Whether a transform that `threads` threads of a process call waits for a disk, a server or the like, and not for
    a core or the interpreter lock."""
    return threads * cost.cpu_s_per_image < _EXPLAINED * cost.s_per_image


def _between(before: StageTimes, after: StageTimes) -> tuple[int, float, float]:
    """Return the images of a stage, its working time and its CPU time between two snapshots."""
    return (
        after.items - before.items,
        after.busy_s.sum_s - before.busy_s.sum_s,
        after.cpu_s.sum_s - before.cpu_s.sum_s,
    )


def _name_of(transform: Any) -> str:
    """Return the place of a transform's definition, as `--transform` names it; for an object, its class's."""
    if isinstance(transform, partial):
        return _name_of(transform.func)
    kind = transform if hasattr(transform, "__qualname__") else type(transform)
    return f"{kind.__module__}:{kind.__qualname__}"


WARM_UP_STEPS = 3
"""Steps of a device that are not measured: compilation is in the first two."""


def compute_rate(device: Device, batch: Batch, seconds: float, busy_cores: float) -> StageRate:
    """Measure the device by repeating one batch from memory."""
    resident = device.put(batch.images, batch.labels)
    for _ in range(WARM_UP_STEPS):
        device.step(resident)
    return _repeated("compute", lambda: device.step(resident), len(batch.images), seconds, busy_cores)


def transfer_rate(device: Device, batch: Batch, seconds: float, busy_cores: float) -> StageRate:
    """Measure the transfer of batches to the device, one after another."""
    device.put(batch.images, batch.labels)
    return _repeated("transfer", lambda: device.put(batch.images, batch.labels), len(batch.images), seconds, busy_cores)


def _repeated(name: Stage, call: Callable[[], object], images: int, seconds: float, busy_cores: float) -> StageRate:
    steps = 0
    with cpu_time() as used:
        until_s = time.perf_counter() + seconds
        while time.perf_counter() < until_s or steps < WARM_UP_STEPS:
            call()
            steps += 1
    rate = steps * images / used.elapsed_s
    return StageRate(name=name, images_per_s=rate, cpu_s_per_image=used.cores_used(busy_cores) / rate)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rate of decoding alone, and how evenly batches are made."""

    rate: StageRate
    jitter: tuple[float, ...]
    """Intervals between batches, relative to their mean."""
    transform: TransformCost | None
    """Cost of the user's transform within it."""
    other_cores: float
    """Cores that other programs used during the measurement; 0 if unknown."""


def prepare_rate(sample_url: str, config: LoaderConfig, seconds: float, busy_cores: float) -> Prepared:
    """Measure our loader on a local sample in the page cache."""
    with open_configured(sample_url, SPLIT, replace(config, fields=(), cache_dir=None)) as loader:
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        for _ in range(config.prefetch_batches + 1):
            next(batches)
        before = loader.snapshot().stages
        taken, times_s = 0, [time.perf_counter()]
        with cpu_time() as used:
            while times_s[-1] < times_s[0] + seconds:
                taken += len(next(batches).images)
                times_s.append(time.perf_counter())
        transform = transform_cost(config, before, loader.snapshot().stages)
    rate = taken / used.elapsed_s
    if transform is not None:
        process_rate = rate / max(1, config.processes)
        idle_cores = available_cores() - max(used.own_s, used.machine_s) / used.elapsed_s
        locked = holds_lock(
            transform,
            threads=config.num_threads,
            images_per_s=process_rate,
            cpu_s_per_image=used.own_s / taken,
            idle_cores=idle_cores,
        )
        transform = replace(transform, holds_lock=locked)
    mean_s = (times_s[-1] - times_s[0]) / (len(times_s) - 1)
    jitter = tuple((later - earlier) / mean_s for earlier, later in itertools.pairwise(times_s))
    found = StageRate(name="prepare", images_per_s=rate, cpu_s_per_image=used.cores_used(busy_cores) / rate)
    return Prepared(found, jitter, transform, used.cores_of_others)


def request_latency_s(loader: Loader) -> float:
    """Return the shortest time of three reads of one byte."""
    storage, file = loader.dataset.storage, loader.index.file(0, 0)
    times_s = []
    for _ in range(3):
        started_s = time.perf_counter()
        try:
            storage.read_range(file, 0, 1)
        except DataprepError:
            continue
        times_s.append(time.perf_counter() - started_s)
    return min(times_s, default=0.0)


IDLE_SHARE = 0.5
"""Share of the workers' cores in use; below it, the workers wait for something other than cores."""
MEMORY_BYTES = 4 * 2**30
"""Memory that more batches ahead may take."""


@dataclass(kw_only=True, eq=False)
class Stages:
    """Measures the stages of one run, each setting once."""

    attempt: fetch_rate.Attempt
    """The run."""
    device: Device
    """Device that the run trains on."""
    loader: Loader
    """Loader of the run; it is not iterated."""
    batch: Batch
    """One of the loader's batches."""
    busy_cores: float
    """Cores that other programs keep busy."""
    seconds: float
    """Length of one measurement."""
    folder: Path
    """Folder for samples of the data; the caller removes it."""
    progress: Callable[[str], None]
    """Function that is called with what is being measured."""
    alone: dict[Stage, StageRate] = field(default_factory=dict, init=False)
    """Rates of the stages as the run is set up."""
    observed_images_per_s: float = field(default=0.0, init=False)
    transform: TransformCost | None = field(default=None, init=False)
    other_cores: float | None = field(default=None, init=False)
    """Cores that other programs used during the first measurement of decoding."""
    _jitter: tuple[float, ...] = field(default=(), init=False)
    _shrunk: dict[int, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._quota = cpu_quota()
        self.alone["compute"] = compute_rate(self.device, self.batch, self.seconds, self.busy_cores)

    @property
    def setup(self) -> RunSetup:
        """Settings of the run."""
        return self.attempt.setup

    @property
    def workers_wait(self) -> bool:
        """Whether the workers wait in the user's transform for something other than a core or the interpreter lock, so
        that more workers than cores may help."""
        config, prepare = self.setup.config, self.alone["prepare"]
        left = min(self.available_cores(self.alone), available_cores() - (self.other_cores or 0.0))
        workers = min(left, config.num_threads * max(1, config.processes))
        is_idle = prepare.images_per_s * prepare.cpu_s_per_image < IDLE_SHARE * workers
        return is_idle and self.transform is not None and waits_for_no_core(self.transform, config.num_threads)

    @property
    def has_contention(self) -> bool:
        """Whether the run is much slower than its stages predict; known once the run was observed."""
        return (
            self.observed_images_per_s < prediction.CONTENTION * prediction.predict(self.rates(self.setup)).images_per_s
        )

    @property
    def is_interpreter_busy(self) -> bool:
        """Whether fetching from a bucket keeps the interpreter of one process busy, so that more processes, each with
        its own interpreter, may fetch more."""
        return not self.is_local and self.fetched.own_cores >= prediction.BUSY_INTERPRETER

    @property
    def is_local(self) -> bool:
        """Whether the data are on a disk of this machine."""
        return self.loader.dataset.storage.is_local

    @property
    def is_cached(self) -> bool:
        """Whether the run reads from a bucket through a cache, which `with_full_cache` has filled."""
        return not self.is_local and self.setup.config.cache_dir is not None

    @property
    def bytes_per_image(self) -> float:
        """Mean size of an encoded image."""
        return self.fetched.bytes_per_image

    @cached_property
    def fetched(self) -> fetch_rate.Fetched:
        """Fetching as it is set up, and the images of the sample."""
        self.progress("fetching alone")
        return fetch_rate.fetch_rate_alone(
            self.loader, self.setup.config, self.seconds, self.busy_cores, keep=SAMPLE_IMAGES
        )

    @cached_property
    def ahead_settings(self) -> Changes:
        """Changed settings: enough images in flight, within the memory, that fetching no longer limits the run."""
        config, fetched, storage = self.setup.config, self.fetched, self.loader.dataset.storage
        beyond = prediction.predict_fetched(self.rates(self.setup)).images_per_s
        usual = reads_in_flight(storage, replace(config, reads_in_flight=None, processes=0))
        reads = prediction.reads_needed(fetched.in_flight, fetched.rate.images_per_s, beyond, usual)
        batch_bytes = config.rows * config.image_size**2 * 3
        batches = min(prediction.batches_needed(reads, config.rows), MEMORY_BYTES // batch_bytes)
        found: Changes = {}
        if batches > config.prefetch_batches:
            found["prefetch_batches"] = batches
        if reads > reads_in_flight(storage, config):
            found["reads_in_flight"] = reads
        return found

    @cached_property
    def fetched_ahead(self) -> fetch_rate.Fetched | None:
        """Fetching with `ahead_settings`; None if that many reads miss their deadline."""
        if self.attempt.is_narrow:
            return None  # twice as many reads missed their deadline
        try:
            return self.fetched_with(self.setup.changed(self.ahead_settings).config)
        except UnansweredError:
            fetch_rate.wait_for_reads_left_behind()
            return None

    @cached_property
    def cached(self) -> StageRate:
        """Rate of fetching from a cache on a local disk that holds the complete sample."""
        self.progress("a cache on the local disk")
        setup = self._cached_setup(self.sample)
        with setup.open() as loader:
            fetch_rate.fetch_all_once(loader, setup.config)
            return fetch_rate.fetch_rate_alone(loader, setup.config, self.seconds / 2, self.busy_cores).rate

    @cached_property
    def sample(self) -> str:
        """URL of a local dataset of images as they are stored."""
        is_built = not is_adopted(self.loader.dataset.manifest)
        return write_sample(self.fetched.images, self.folder / "sample", is_built=is_built)

    def measure_stages(self, observed_images_per_s: float) -> None:
        """Measure all stages as they are set up."""
        self.observed_images_per_s = observed_images_per_s
        transfer = transfer_rate(self.device, self.batch, self.seconds / 2, self.busy_cores)
        prepare = self.prepared(self.setup.config)
        compute = self.alone.pop("compute")
        self.alone |= {"fetch": self.fetched.rate, "prepare": prepare, "transfer": transfer, "compute": compute}

    def prepared(self, config: LoaderConfig, sample: str | None = None) -> StageRate:
        """Measure decoding with other settings, or of another sample."""
        self.progress("decoding alone")
        sample = sample or self.sample
        found = prepare_rate(sample, self.planned_for(sample, config), self.seconds, self.busy_cores)
        self._jitter = self._jitter or found.jitter
        self.transform = self.transform or found.transform
        self.other_cores = found.other_cores if self.other_cores is None else self.other_cores
        return found.rate

    def saw_steps(self, images_per_s: float) -> None:
        """Use the rate of the run's own steps as the device's rate if it is higher.

        Other work makes a step slower and never faster, so both rates are lower bounds of the device's.
        """
        compute = self.alone["compute"]
        self.alone["compute"] = replace(compute, images_per_s=max(compute.images_per_s, images_per_s))

    def planned_for(self, sample: str, config: LoaderConfig) -> LoaderConfig:
        """Return the settings with the number of streams that makes planning a sample like planning the split."""
        of_sample = open_dataset(sample, SPLIT).split.samples
        samples = self.loader.order.num_samples
        return replace(config, num_streams=sample_streams(config.num_streams, samples=samples, of_sample=of_sample))

    @cached_property
    def without_transform(self) -> RunSetup:
        """The run without its transform."""
        config = self.setup.config
        groups = tuple(replace(group, transform=None) for group in config.view_groups)
        return replace(self.setup, config=replace(config, transform=None, view_groups=groups))

    def fetched_with(self, config: LoaderConfig) -> fetch_rate.Fetched:
        """Measure fetching with other settings."""
        self.progress("fetching, with more in flight")
        return fetch_rate.fetch_rate_alone(self.loader, config, self.seconds, self.busy_cores)

    def fetched_by(self, processes: int) -> StageRate:
        """Return the highest rate of fetching in several processes, each with its share of the requests."""
        fetched = self.fetched
        most = fetched.in_flight / max(self._request_latency_s, 1e-9)
        rate = min(fetched.one_process_images_per_s * processes, most)
        return replace(fetched.rate, images_per_s=max(fetched.rate.images_per_s, rate))

    def fetched_smaller(self, share: float) -> StageRate:
        """Measure fetching as if images had a share of their bytes: the same number of smaller reads, or fewer reads if
        one read from a bucket brings several images. A cache answers at once whatever their size."""
        if self.is_cached:
            return self.fetched.rate
        self.progress("fetching, as if images were smaller")
        config, factor = self.setup.config, self._images_per_read(share) / self._images_per_read(1.0)
        found = fetch_rate.fetch_rate_alone(
            self.loader, config, self.seconds, self.busy_cores, share=min(1.0, share * factor)
        ).rate
        return replace(found, images_per_s=found.images_per_s * factor, cpu_s_per_image=found.cpu_s_per_image / factor)

    def _images_per_read(self, share: float) -> int:
        """Return the number of images that one read would bring if images had a share of their bytes."""
        order, config = self.loader.order, self.setup.config
        if self.is_local or order.samples_per_block == 1 or self.loader.index.one_file_per_image:
            return 1
        return samples_per_block(
            order.num_samples,
            share * self.bytes_per_image,
            block_bytes=config.block_bytes,
            num_streams=order.num_streams,
            window=order.window,
        )

    def device_with(self, batch: Batch) -> tuple[StageRate, StageRate]:
        """Measure transfer and compute of another batch."""
        self.progress("the device, with a larger batch")
        return (
            transfer_rate(self.device, batch, self.seconds / 2, self.busy_cores),
            compute_rate(self.device, batch, self.seconds / 2, self.busy_cores),
        )

    def computed_with(self, threads: int) -> StageRate:
        """Measure compute with another number of threads on the cores that decode."""
        self.progress("the device, with fewer threads")
        with using_threads(self.device, threads):
            return compute_rate(self.device, self.batch, self.seconds / 2, self.busy_cores)

    def tried(self, setup: RunSetup, what: str = "the run, with a change") -> float:
        """Return the images/s of a run with other settings or on other images, watched for as long as the run itself.

        Args:
            what: Text for `progress`.
        """
        self.progress(what)
        return observe(setup, self.device, 2 * self.seconds).images_per_s

    def tried_cached(self) -> float:
        """Return the images/s of a run whose cache holds the complete sample, as in every epoch after the first."""
        what = f"a run from a cache that gives {self.cached.images_per_s:,.0f} images/s"
        return self.tried(self._cached_setup(self.sample), what)

    def tried_smaller(self, short_side: int) -> float:
        """Return the images/s of a run on smaller images, with as many bytes read from the disk, bucket or cache."""
        (sample, num_bytes), what = self.shrunk(short_side), "a run on smaller images"
        if self.is_cached:
            cached = self._cached_setup(sample)
            with cached.open() as loader:
                fetch_rate.fetch_all_once(loader, cached.config)
            return self.tried(cached, what)
        config, dataset = self.setup.config, self.loader.dataset
        places = places_in(dataset, self.loader.index, shards=DISK_SHARDS if self.is_local else 1)
        images_per_read = self._images_per_read(num_bytes / self.bytes_per_image)
        if self.is_local and self.fetched.is_cold:
            fetch_rate.forget_files(dataset)
        return self.tried(
            self._rehearsed(sample, config, Source(dataset, places, config.deadline_s, images_per_read)), what
        )

    def _cached_setup(self, sample: str) -> RehearsalSetup:
        """Return a run on a sample, with its own cache."""
        config = replace(self.setup.config, cache_dir=str(self.folder / "cache"))
        return self._rehearsed(sample, config, None)

    def _rehearsed(self, sample: str, config: LoaderConfig, source: Source | None) -> RehearsalSetup:
        """Return a run on a sample that is fetched as from the disk or bucket."""
        return RehearsalSetup(
            url=sample,
            split=SPLIT,
            config=replace(self.planned_for(sample, config), fields=()),
            transfer_ahead=self.setup.transfer_ahead,
            source=source,
            reads_in_flight=self.loader.dataset.storage.reads_in_flight,
        )

    def shrunk(self, short_side: int) -> tuple[str, float]:
        """Return a sample as a build would shrink it, and the mean size of its images."""
        if short_side not in self._shrunk:
            self.progress(f"shrinking a sample to {short_side} pixels")
            self._shrunk[short_side] = write_sample(
                self.fetched.images, self.folder / f"sample-{short_side}", short_side
            )
        return self._shrunk[short_side], mean_image_bytes(self._shrunk[short_side])

    def rates(
        self, setup: RunSetup, changed: Mapping[Stage, StageRate] | None = None, request_latency_s: float | None = None
    ) -> prediction.Rates:
        """Return the argument of `predict`: the stages, some of them changed.

        Args:
            setup: The run, with the change if that is one of its settings.
            changed: Stages that the change makes faster or slower.
            request_latency_s: Latency of a read after a change that moves the data; by default the measured one.
        """
        stages = self.alone | dict(changed or {})
        if self.is_local and not self.fetched.is_cold:
            # Preparing alone reads its images from the page cache as well.
            stages["fetch"] = replace(stages["fetch"], cpu_s_per_image=0.0)
        return prediction.Rates(
            images_per_s={name: stage.images_per_s for name, stage in stages.items()},
            cpu_s_per_image={name: stage.cpu_s_per_image for name, stage in stages.items()},
            cores=self.available_cores(stages),
            transfer_ahead=setup.transfer_ahead > 0,
            batches=self._batches(setup, stages["fetch"].images_per_s, request_latency_s),
            fetch_in_turn=self.is_local and self.fetched.is_cold,
        )

    def _batches(
        self, setup: RunSetup, fetch_images_per_s: float, request_latency_s: float | None
    ) -> prediction.Batches:
        """Return the run's batches, and the room between its stages.

        If the batches ahead request all their bytes at once, the bytes arrive a round trip later. From a cache they
        come without one: its time is CPU time, which is counted for its stage.
        """
        config, latency_s = setup.config, 0.0
        if not self.is_local and config.cache_dir is None:
            in_flight = config.prefetch_batches * config.rows
            is_short = in_flight < reads_in_flight(self.loader.dataset.storage, config)
            known_s = self._request_latency_s if request_latency_s is None else request_latency_s
            latency_s = in_flight / fetch_images_per_s if is_short else known_s
        return prediction.Batches(
            images=config.rows,
            ahead=config.prefetch_batches,
            on_device=setup.transfer_ahead,
            fetch_latency_s=latency_s,
            jitter=self._jitter or (1.0,),
        )

    @cached_property
    def _request_latency_s(self) -> float:
        return 0.0 if self.is_cached else request_latency_s(self.loader)

    def available_cores(self, stages: Mapping[Stage, StageRate]) -> float:
        """Return the cores that other programs leave: at least as many as a stage has used, at most the quota of the
        control group, which all stages share."""
        left = available_cores() - self.busy_cores
        used = (stage.images_per_s * stage.cpu_s_per_image for stage in stages.values())
        return min(self._quota, max(left, *used))
