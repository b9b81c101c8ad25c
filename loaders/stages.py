"""The stages of one run, as they are now and as a change would make them; measured when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from dataprep.cpu import available_cores
from loaders.config import LoaderConfig
from loaders.devices import Device
from loaders.findings import Stage, StageRate
from loaders.loader import Batch, Loader
from loaders.order import samples_per_block
from loaders.rates import CONTENTION, Batches, Rates, predict
from loaders.rehearsal import Bucket, RehearsalSetup, places_in
from loaders.stage_rates import (
    SAMPLE_IMAGES,
    SPLIT,
    Fetched,
    compute_rate,
    fetch_rate_alone,
    mean_bytes,
    prepare_rate,
    request_latency_s,
    transfer_rate,
    write_sample,
)
from loaders.trial import Setup, observe, reads_in_flight

MORE = 4
"""Times the batches ahead, and the requests under way."""
MEMORY_BYTES = 4 * 2**30
"""That more batches ahead may take."""


class Stages:
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
        self.background, self.progress = background, progress
        self._seconds, self._folder = seconds, folder
        self.observed_images_per_s = 0.0
        self._jitter: tuple[float, ...] = ()
        self._shrunk: dict[int, str] = {}
        self.alone: dict[Stage, StageRate] = {"compute": compute_rate(device, batch, seconds, background)}

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
        """Fetching from a cache on a local disk, which the first pass over the sample fills."""
        self.progress("a cache on the local disk")
        setup, filling = self._cached_setup, len(self.fetched.images)
        with setup.open() as loader:
            return fetch_rate_alone(loader, setup.config, self._seconds / 2, self.background, keep=filling).rate

    @cached_property
    def sample(self) -> str:
        """A local dataset of images as they are stored."""
        return write_sample(self.fetched.images, self._folder / "sample")

    def measure_stages(self, observed_images_per_s: float) -> None:
        """All of them, as they are set up."""
        self.observed_images_per_s = observed_images_per_s
        transfer = transfer_rate(self.device, self.batch, self._seconds / 2, self.background)
        prepare = self.prepared(self.setup.config)
        compute = self.alone.pop("compute")
        self.alone |= {"fetch": self.fetched.rate, "prepare": prepare, "transfer": transfer, "compute": compute}

    def prepared(self, config: LoaderConfig, sample: str | None = None) -> StageRate:
        """Decoding with other settings, or of other images."""
        self.progress("decoding alone")
        found = prepare_rate(sample or self.sample, config, self._seconds, self.background)
        self._jitter = self._jitter or found.jitter
        return found.rate

    def fetched_with(self, config: LoaderConfig) -> Fetched:
        """Fetching with other settings."""
        self.progress("fetching, with more under way")
        return fetch_rate_alone(self.loader, config, self._seconds, self.background)

    def fetched_smaller(self, share: float) -> StageRate:
        """Fetching from a bucket, if images had a share of their bytes: as many reads of less, or where several images
        come by one read, fewer reads."""
        self.progress("fetching, as if images were smaller")
        config, times = self.setup.config, self._images_a_read(share) / self._images_a_read(1.0)
        found = fetch_rate_alone(
            self.loader, config, self._seconds, self.background, share=min(1.0, share * times)
        ).rate
        return replace(found, images_per_s=found.images_per_s * times, cpu_s_per_image=found.cpu_s_per_image / times)

    def _images_a_read(self, share: float) -> int:
        """From a bucket, if images had a share of their bytes."""
        order, config = self.loader.order, self.setup.config
        if order.samples_per_block == 1 or self.loader.dataset.rows(config.deadline_s).is_folder:
            return 1
        return samples_per_block(
            order.num_samples,
            share * self.bytes_per_image,
            block_bytes=config.block_bytes,
            num_streams=order.num_streams,
            window=order.window,
        )

    def device_with(self, batch: Batch) -> tuple[StageRate, StageRate]:
        """Transfer and compute of another batch."""
        self.progress("the device, with a larger batch")
        return (
            transfer_rate(self.device, batch, self._seconds / 2, self.background),
            compute_rate(self.device, batch, self._seconds / 2, self.background),
        )

    def tried(self, setup: Setup) -> float:
        """Images/s of a whole run with other settings, for as long as the run itself was watched."""
        self.progress("the run, with a change")
        return observe(setup, self.device, 2 * self._seconds).images_per_s

    def tried_cached(self) -> float:
        """Images/s of a run that has the sample in its cache, as every epoch but the first has all images."""
        filled = self.cached
        self.progress(f"a run from a cache that gives {filled.images_per_s:,.0f} images/s")
        return observe(self._cached_setup, self.device, 2 * self._seconds).images_per_s

    def tried_smaller(self, short_side: int) -> float:
        """Images/s of a run on smaller images; of a bucket as many bytes are read as they have."""
        sample, num_bytes = self.shrunk(short_side)
        self.progress("a run on smaller images")
        config = self.setup.config
        setup = replace(self.setup, url=sample, split=SPLIT, config=replace(config, fields=()))
        if not self.is_local:
            places = places_in(self.loader.dataset, config.deadline_s)
            images_a_read = self._images_a_read(num_bytes / self.bytes_per_image)
            bucket = Bucket(self.loader.dataset, places, config.deadline_s, images_a_read)
            setup = self._rehearsed(sample, config, bucket)
        return observe(setup, self.device, 2 * self._seconds).images_per_s

    @property
    def _cached_setup(self) -> RehearsalSetup:
        config = replace(self.setup.config, cache_dir=str(self._folder / "cache"))
        return self._rehearsed(self.sample, config, None)

    def _rehearsed(self, sample: str, config: LoaderConfig, bucket: Bucket | None) -> RehearsalSetup:
        """A run on a sample, fetched as from the bucket."""
        return RehearsalSetup(
            url=sample,
            split=SPLIT,
            config=replace(config, fields=()),
            transfer_ahead=self.setup.transfer_ahead,
            bucket=bucket,
            reads_in_flight=self.loader.dataset.storage().reads_in_flight,
        )

    def shrunk(self, short_side: int) -> tuple[str, float]:
        """A sample as a build would shrink it, and the bytes of an image in it."""
        if short_side not in self._shrunk:
            self.progress(f"shrinking a sample to {short_side} pixels")
            self._shrunk[short_side] = write_sample(
                self.fetched.images, self._folder / f"sample-{short_side}", short_side
            )
        return self._shrunk[short_side], mean_bytes(self._shrunk[short_side])

    def rates(self, setup: Setup, changed: Mapping[Stage, StageRate] | None = None) -> Rates:
        """For `predict`: the stages, some of them changed.

        Args:
            setup: With the transfer as it would be.
            changed: Stages that would be others.
        """
        stages = self.alone | dict(changed or {})
        if self.is_local and not self.fetched.is_cold:
            # Preparing alone reads its images from the page cache as well.
            stages["fetch"] = replace(stages["fetch"], cpu_s_per_image=0.0)
        return Rates(
            images_per_s={name: stage.images_per_s for name, stage in stages.items()},
            cpu_s_per_image={name: stage.cpu_s_per_image for name, stage in stages.items()},
            cores=self._available_cores(stages),
            transfer_ahead=setup.transfer_ahead > 0,
            batches=self._batches(setup, stages["fetch"].images_per_s),
            fetch_in_turn=self.is_local and self.fetched.is_cold,
        )

    def _batches(self, setup: Setup, fetch_images_per_s: float) -> Batches:
        """How the run moves its images; bytes that the batches ahead ask for all at once come a round trip later."""
        config, latency_s = setup.config, 0.0
        if not self.is_local:
            under_way = config.prefetch_batches * config.rows
            is_short = under_way < reads_in_flight(self.loader.dataset.storage(), config)
            latency_s = under_way / fetch_images_per_s if is_short else self._request_latency_s
        return Batches(
            images=config.rows,
            ahead=config.prefetch_batches,
            on_device=setup.transfer_ahead,
            fetch_latency_s=latency_s,
            jitter=self._jitter or (1.0,),
        )

    @cached_property
    def _request_latency_s(self) -> float:
        return request_latency_s(self.loader)

    def available_cores(self) -> float:
        """What other programs leave to this run."""
        return self._available_cores(self.alone)

    def _available_cores(self, stages: Mapping[Stage, StageRate]) -> float:
        """What other programs leave, and no less than a stage was seen to get beside them."""
        left = available_cores() - self.background
        return max(left, *(stage.images_per_s * stage.cpu_s_per_image for stage in stages.values()))
