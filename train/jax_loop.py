"""The run of `train.train_resnet_jax`: batches in, log lines, evaluations and checkpoints out, exactly resumable.

A batch of the loader is one update. So the state after any update is: weights, statistics, momentum, the loader's
position, and which evaluation was the last one; there is no generator that would have a state.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from dataprep.errors import UsageError
from loaders.jax import JaxBatch, device_batches
from loaders.loader import Loader
from loaders.monitor import StepMonitor
from train.checkpoint import ARRAYS, CheckpointFolder
from train.jax_config import NEVER, Config
from train.jax_steps import DATA_AXIS, Batch, State, Steps, arrays_of
from train.logs import Logs
from train.profiling import StepProfile, parse_steps
from train.schedule import Schedule
from train.stopping import STOPPED_EXIT_CODE, Stop, stop_signals
from train.unread import Unread

STATE_VERSION = 1
_UPDATES_AHEAD = 2
"""Handed to the device before the one before them is waited for: more would only hold more batches in its memory."""


@dataclass(kw_only=True)
class Training:
    """A run: all that is needed for a step, and what it writes."""

    config: Config
    mesh: Mesh
    steps: Steps
    schedule: Schedule
    loader: Loader
    validation: Loader | None
    """None: nothing is evaluated."""
    logs: Logs
    checkpoints: CheckpointFolder
    description: dict[str, Any]
    """The configuration, kept in checkpoints."""
    state: State
    step: int = 0
    """Updates that were done."""
    _evaluated_step: int = 0
    """Of the last evaluation."""
    _saved_step: int = 0
    _saved_s: float = field(default_factory=time.monotonic)
    _loader_state: dict[str, Any] | None = None
    _in_flight: deque[jax.Array] = field(default_factory=deque)
    """Losses of the last updates that were handed to the devices."""
    _lr: float = 0.0
    """Of the last update."""

    def __post_init__(self) -> None:
        self._unread = Unread(self.logs.folder)
        self._total_steps = self.loader.order.first_batch(self.config.num_epochs)
        self._last_step = min(self._total_steps, self.config.max_steps or self._total_steps)
        if self._total_steps < 1:
            raise UsageError(
                f"{self.loader.order.num_samples:,} images make no batch of {self.config.batch_size:,} in "
                f"{self.config.num_epochs} epochs; choose a smaller --config.batch_size"
            )

    def resume(self) -> None:
        """Go on from the newest valid checkpoint, if there is any.

        Raises:
            UsageError: It is of another model or sequence of batches, or not all processes see the same one.
        """
        found = self.checkpoints.newest_valid(self.logs.tell)
        _check_agreement(0 if found is None else found[0].step, self.checkpoints.url)
        if found is None:
            return
        where, document = f"{self.checkpoints.url}/{found[0].name}", found[1]
        if document.get("version") != STATE_VERSION:
            raise UsageError(f"{where}: version {document.get('version')}, this program reads {STATE_VERSION}")
        try:
            self.state = self.steps.on_devices(self.state, document[ARRAYS])
        except UsageError as error:
            raise UsageError(f"{where}: {error}; use the same --config.model, or another --workdir") from None
        self.loader.load_state_dict(document["loader"])
        self.step = self._saved_step = int(document["step"])
        self._evaluated_step = int(document["evaluated_step"])
        self._tell_differences(document["description"])
        self.logs.tell(f"goes on after step {self.step}, from {where}")

    def run(self) -> int:
        """Train to the end; the exit code, which is another one where a signal ended it before."""
        self.logs.open(step=self.step, total_steps=self._total_steps)
        # Several processes must stop after the same step: there JAX takes SIGTERM itself, and makes them agree.
        signals = (signal.SIGTERM, signal.SIGINT) if jax.process_count() == 1 else ()
        profile = StepProfile(parse_steps(self.config.profile_steps), self.logs.folder, self._trace)
        try:
            with stop_signals(signals) as stop, contextlib.closing(profile):
                stopped = self._run(stop, profile)
        finally:
            self.logs.close()
            self.loader.close()
            if self.validation is not None:
                self.validation.close()
        if stopped:
            self.logs.tell(f"stopped by a signal after step {self.step}; the same command goes on")
        return STOPPED_EXIT_CODE if stopped else 0

    def apply(self, batch: Batch, lr: float) -> dict[str, jax.Array]:
        """One update with a batch on the devices; its loss and accuracy, which nobody waits for."""
        means: dict[str, jax.Array]
        self.state, means = self.steps.update(self.state, batch, lr)
        return means

    def _run(self, stop: Stop, profile: StepProfile) -> bool:
        """Whether it was stopped."""
        if self._is_evaluation_due():
            self._evaluate(stop)  # which a signal broke off
        monitor = StepMonitor(batch_images=self.config.batch_size)
        while self.step < self._last_step and not stop.asked:
            with contextlib.closing(self._batches(self.loader)) as batches:
                for batch in monitor.waiting(batches):
                    profile.before(self.step)
                    self._update(batch)
                    monitor.stepped()
                    stopped = self._is_stopped(stop)
                    done = stopped or self.step >= self._last_step
                    if done or self._is_log_due():
                        self._log(monitor)
                    if self._is_evaluation_due() and not stopped:
                        self._evaluate(stop)
                        monitor.take()  # that time was no step
                    if done or stop.asked or self._is_save_due():
                        self._save()
                    if stopped:
                        return True
                    if done or stop.asked:
                        break
        return stop.asked

    def _update(self, batch: JaxBatch) -> None:
        stop = int(batch.state["position"])
        self._lr = self.schedule.at((stop - self.config.batch_size) / self._epoch_samples)
        means = self.apply(Batch(batch.images, batch.labels, batch.mask), self._lr)
        self._in_flight.append(means["loss"])
        if len(self._in_flight) > _UPDATES_AHEAD:
            self._in_flight.popleft().block_until_ready()
        self.step = stop // self.config.batch_size
        self._loader_state = batch.state
        self._unread.add(self.step, means, batch.keys)

    def _is_stopped(self, stop: Stop) -> bool:
        if jax.process_count() == 1:
            return stop.asked
        return bool(multihost_utils.reached_preemption_sync_point(self.step))

    def _batches(self, loader: Loader) -> Generator[JaxBatch]:
        return device_batches(loader, self.mesh, axis=DATA_AXIS, prefetch=self.config.prefetch)

    def _log(self, monitor: StepMonitor) -> None:
        means = self._unread.take()
        line: dict[str, Any] = {"step": self.step, "epoch": self._epoch, "loss": means["loss"], **means, "lr": self._lr}
        line |= monitor.take()
        memory_bytes = (jax.local_devices()[0].memory_stats() or {}).get("bytes_in_use")
        self.logs.scalars(line if memory_bytes is None else line | {"memory_bytes": memory_bytes})

    def _evaluate(self, stop: Stop) -> None:
        """Over every image once. A signal breaks it off; it is then due again."""
        if self.validation is None:
            return
        sums = dict.fromkeys(("loss", "correct", "images"), 0.0)
        num_batches = None if self.config.steps_per_eval == NEVER else self.config.steps_per_eval
        with contextlib.closing(self._batches(self.validation)) as batches:
            for batch in islice(batches, num_batches):
                found = self.steps.evaluate(self.state, Batch(batch.images, batch.labels, batch.mask))
                sums = {name: sums[name] + float(found[name]) for name in sums}
                if stop.asked:
                    return
        means = {"loss": sums["loss"] / sums["images"], "accuracy": sums["correct"] / sums["images"]}
        self.logs.evaluation(self.step, self._epoch, {**means, "images": sums["images"]})
        self._evaluated_step = self.step

    def _save(self) -> None:
        if self._saved_step == self.step:
            return
        self._unread.check()  # a state that led to no finite loss is not kept; all processes find that
        if jax.process_index() != 0:
            return
        state = {
            "version": STATE_VERSION,
            "step": self.step,
            "evaluated_step": self._evaluated_step,
            "loader": self._loader_state,
            "description": self.description,
            ARRAYS: arrays_of(self.state),
        }
        saved = self.checkpoints.save(self.step, state)
        self._saved_step, self._saved_s = self.step, time.monotonic()
        self.logs.tell(f"saved {self.checkpoints.url}/{saved.name}")

    def _is_log_due(self) -> bool:
        return _divides(self.config.log_per_step, self.step) or _divides(self.config.log_per_epoch, self._ended_epochs)

    def _is_evaluation_due(self) -> bool:
        every, ended = self.config.eval_per_epoch, self._ended_epochs
        is_last = ended == self.config.num_epochs and every != NEVER
        return (_divides(every, ended) or is_last) and self._evaluated_step < self.step

    def _is_save_due(self) -> bool:
        config = self.config
        if _divides(config.checkpoint_per_epoch, self._ended_epochs) or _divides(config.checkpoint_per_step, self.step):
            return True
        elapsed_s = time.monotonic() - self._saved_s
        return config.checkpoint_per_minute != NEVER and elapsed_s >= 60 * config.checkpoint_per_minute

    @contextlib.contextmanager
    def _trace(self, folder: Path) -> Iterator[None]:
        """`plugins/profile/<run>/<host>.xplane.pb`; no update is under way when it begins and ends."""
        jax.block_until_ready(self.state)
        with jax.profiler.trace(str(folder)):
            yield
            jax.block_until_ready(self.state)

    def _tell_differences(self, theirs: dict[str, Any]) -> None:
        for name in sorted(theirs.keys() & self.description.keys()):
            if theirs[name] != self.description[name]:
                self.logs.tell(f"note: --config.{name} was {theirs[name]}, goes on with {self.description[name]}")

    @property
    def _ended_epochs(self) -> int:
        """How many ended with this very step; 0 in the middle of one."""
        epochs = self.loader.order.epoch_of(self.step)
        return epochs if self.step == self.loader.order.first_batch(epochs) else 0

    @property
    def _epoch(self) -> float:
        return self.step * self.config.batch_size / self._epoch_samples

    @property
    def _epoch_samples(self) -> int:
        return self.loader.order.passes * self.loader.order.num_samples


class EpochLogs(Logs):
    """Logs that show everything a second time over epochs x 1000, as resnet_jax does: runs of other batches compare."""

    def scalars(self, line: dict[str, Any]) -> None:
        """As `Logs`; `ep_train/…`."""
        super().scalars(line)
        if self._events is not None:
            values = {f"ep_train/{name}": line[name] for name in line if name not in ("step", "epoch")}
            self._events.scalars(_thousandths(line["epoch"]), values)

    def evaluation(self, step: int, epoch: float, found: dict[str, float]) -> None:
        """As `Logs`; `ep_val/…`."""
        super().evaluation(step, epoch, found)
        if self._events is not None:
            self._events.scalars(_thousandths(epoch), {f"ep_val/{name}": value for name, value in found.items()})


def _thousandths(epoch: float) -> int:
    return round(1000 * epoch)


def _divides(interval: int, count: int) -> bool:
    """Whether something that is due every so often is due; never for NEVER, nor after nothing."""
    return interval > 0 and count > 0 and count % interval == 0


def _check_agreement(step: int, url: str) -> None:
    """Of all processes on the checkpoint that they found: one that sees another folder would train something else."""
    steps = {int(each) for each in multihost_utils.process_allgather(step).flatten()}
    if len(steps) > 1:
        raise UsageError(
            f"--workdir {url}: some processes find a checkpoint of step {max(steps)}, others of step {min(steps)}; "
            "give a folder that all hosts share, or gs://"
        )
