"""The training loop that the entries share: batches in, log lines and checkpoints out, exactly resumable.

A batch of the loader is one update of the weights, however many parts its gradient is accumulated over. So the state
after any update is: weights, optimiser, generators, and the loader's position.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from dataprep.errors import UsageError
from loaders.loader import Loader
from loaders.monitor import StepMonitor
from loaders.torch import TorchBatch
from train.checkpoint import Checkpoint, CheckpointFolder, load_any
from train.logs import Logs
from train.optimizer import moments_of
from train.parts import PartFolder
from train.profiling import StepProfile
from train.runtime import Runtime
from train.schedule import Schedule
from train.stopping import STOPPED_EXIT_CODE, Stop, stop_signals
from train.unread import Unread

STATE_VERSION = 1
AUTOMATIC = "automatic"


class Task(ABC):
    """What an entry trains."""

    @abstractmethod
    def parts(self, batch: TorchBatch, positions: range) -> Iterator[torch.Tensor]:
        """Losses, scalars, of the `accum_iter` parts of this host's batch, one after the other.

        Args:
            batch: On the device.
            positions: Of its samples, counted over all epochs.
        """

    def evaluate(self) -> dict[str, float]:
        """Numbers about data that are not trained on; none where there are no such data."""
        return {}

    def picture(self, weights: dict[str, Any], step: int, logs: Logs) -> None:  # noqa: B027 (most show nothing)
        """Show what the weights, on the host, do; nothing where there is nothing to look at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopConfig:
    """When to stop, say something, and save.

    Raises:
        UsageError: A value is out of its range.
    """

    epochs: int
    accum_iter: int = 1
    """Parts of a batch over which its gradient is accumulated."""
    log_interval_steps: int = 20
    ckpt_interval: int = 20
    """Epochs; the last one is saved in any case."""
    first_saved_epoch: int = 0
    """And then every `ckpt_interval`-th. long_seq_mae saves the first one, vit_10b_fsdp_example the tenth."""
    ckpt_interval_steps: int = 0
    """0: none for this reason."""
    ckpt_interval_minutes: float = 0
    """0: none for this reason."""
    profile_steps: tuple[int, int] | None = None
    """Traced from the first of these steps until before the second."""
    max_steps: int = 0
    """0: all; otherwise the run ends after so many, as if it were stopped."""
    clip_grad_norm: float = 0.0
    """Longest gradient, of all parameters together; 0: as it is."""
    eval_interval: int = 1
    """Epochs between evaluations; the last one is evaluated in any case."""

    def __post_init__(self) -> None:
        for name in ("epochs", "accum_iter", "log_interval_steps", "ckpt_interval", "eval_interval"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("ckpt_interval_steps", "ckpt_interval_minutes", "max_steps", "clip_grad_norm"):
            if getattr(self, name) < 0:
                raise UsageError(f"--{name} must be 0 or more, got {getattr(self, name)}")


@dataclass(kw_only=True)
class Training:
    """A run: all that is needed for a step, and what it writes."""

    config: LoopConfig
    runtime: Runtime
    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    loader: Loader
    task: Task
    logs: Logs
    checkpoints: CheckpointFolder | None
    """None saves nothing."""
    description: dict[str, Any] = field(default_factory=dict)
    """Flags, kept in checkpoints."""
    step: int = 0
    """Updates that were done."""
    _lr: float = 0.0
    """Of the last update."""
    _loader_state: dict[str, Any] | None = None
    _saved_step: int = -1
    _saved_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._unread = Unread(self.logs.folder)

    def resume(self, where: str) -> None:
        """Go on from a checkpoint, or see that a new run does not mix with an older one.

        Args:
            where: `automatic`, for the newest valid one of `checkpoints`, if there is any; a path or URL; or nothing.

        Raises:
            UsageError: It is of another model or sequence of batches; or nothing was said, and there are some.
            FormatError: It is damaged.
        """
        if not where:
            if self.checkpoints is not None and self.checkpoints.list():
                raise UsageError(
                    f"{self.checkpoints.url}: checkpoints of a run stand there; go on with --resume automatic, or "
                    "choose another --output_dir"
                )
            return
        if where != AUTOMATIC:
            state: dict[str, Any] = load_any(where)
        elif self.checkpoints is None:
            raise UsageError("--resume automatic looks in --output_dir, which is empty; give both")
        else:
            found = self.checkpoints.newest_valid(self.logs.tell)
            if found is None:
                self.logs.tell(f"{self.checkpoints.url}: no checkpoint yet, starting anew")
                return
            where, state = f"{self.checkpoints.url}/{found[0].name}", found[1]
        self._take(where, state)
        self.logs.tell(f"goes on after step {self.step}, from {where}")

    def run(self) -> int:
        """Train to the end; the exit code, which is another one where a signal ended it before."""
        total_steps = self.loader.order.first_batch(self.config.epochs)
        if total_steps < 1:
            raise UsageError(
                f"{self.loader.order.num_samples:,} images make no batch of {self.loader.config.batch_size:,} in "
                f"{self.config.epochs} epochs; choose a smaller batch"
            )
        if isinstance(self.checkpoints, PartFolder):
            self.checkpoints.remove_unfinished()
        self.logs.open(step=self.step, total_steps=total_steps)
        profile = StepProfile(self.config.profile_steps, self.logs.folder, self.runtime.profile)
        try:
            with stop_signals() as stop, contextlib.closing(profile):
                self._run(total_steps, stop, profile)
        finally:
            self.logs.close()
            self.loader.close()
        return STOPPED_EXIT_CODE if stop.asked else 0

    def _run(self, total_steps: int, stop: Stop, profile: StepProfile) -> None:
        monitor, done = StepMonitor(batch_images=self.loader.config.batch_size), False
        last_step = min(total_steps, self.config.max_steps or total_steps)
        while self.step < last_step:
            epoch = self.loader.epoch
            with contextlib.closing(self.runtime.batches(self.loader)) as batches:
                for batch in monitor.waiting(batches):
                    profile.before(self.step)
                    self._update(batch)
                    monitor.stepped()
                    done = self.step >= last_step or self._agree(stop.asked)
                    if done or self.step % self.config.log_interval_steps == 0:
                        self._log(monitor)
                    if self._ends(epoch) and self._is_evaluation_due(epoch):
                        self._evaluate()
                        monitor.take()  # that time was no step
                    if self._is_save_due(epoch) or done:
                        self._save()
                    if done:
                        break
            if done and self.step < last_step:
                stop.asked = True  # maybe of another host
                self.logs.tell(f"stopped by a signal after step {self.step}; --resume automatic goes on")
                return

    def apply(self, batch: TorchBatch, positions: range) -> torch.Tensor:
        """One update of the weights with a batch on the device; its loss, which nobody waits for."""
        loss = torch.zeros((), device=self.runtime.device)
        for part in self.task.parts(batch, positions):
            share = part / self.config.accum_iter
            share.backward()  # type: ignore[no-untyped-call]
            loss = loss + share.detach()
        if self.config.clip_grad_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.runtime.end_step()
        return loss

    def _update(self, batch: TorchBatch) -> None:
        config = self.loader.config
        stop = int(batch.state["position"])
        first = stop - config.batch_size
        self._lr = self.schedule.at(first / self._epoch_samples)
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr * group.get("lr_scale", 1.0)
        self.runtime.begin_step(self.step)
        loss = self.apply(batch, range(first + config.rank, stop, config.world_size))
        self.step = stop // config.batch_size
        self._loader_state = batch.state
        self._unread.add(self.step, {"loss": loss}, batch.keys)

    def _log(self, monitor: StepMonitor) -> None:
        numbers = self._unread.take()
        samples = self.step * self.loader.config.batch_size
        line = {
            "step": self.step,
            "epoch": samples / self._epoch_samples,
            **numbers,
            "lr": self._lr,
            **monitor.take(),
        }
        memory_bytes = self.runtime.memory_bytes()
        self.logs.scalars(line if memory_bytes is None else line | {"memory_bytes": memory_bytes})

    def _evaluate(self) -> None:
        found = self.task.evaluate()
        if found:
            self.logs.evaluation(self.step, self.step * self.loader.config.batch_size / self._epoch_samples, found)

    def _ends(self, epoch: int) -> bool:
        return self.step == self.loader.order.first_batch(epoch + 1)

    def _is_evaluation_due(self, epoch: int) -> bool:
        return (epoch + 1) % self.config.eval_interval == 0 or epoch + 1 == self.config.epochs

    def _is_save_due(self, epoch: int) -> bool:
        config = self.config
        since = epoch - config.first_saved_epoch
        if self._ends(epoch) and ((since >= 0 and since % config.ckpt_interval == 0) or epoch + 1 == config.epochs):
            return True
        if config.ckpt_interval_steps and self.step % config.ckpt_interval_steps == 0:
            return True
        if not config.ckpt_interval_minutes:
            return False
        return self._agree(time.monotonic() - self._saved_s >= 60 * config.ckpt_interval_minutes)

    def _agree(self, said: bool) -> bool:
        """Hosts have clocks and signals of their own, but stop and save at one step; asking each step would wait."""
        if self.runtime.world_size == 1:
            return said
        return self.step % self.config.log_interval_steps == 0 and self.runtime.agree(said)

    def _save(self) -> None:
        if self.checkpoints is None or self._saved_step == self.step:
            return
        if self.runtime.rank != 0 and not isinstance(self.checkpoints, PartFolder):
            return
        self._unread.check()  # a state that led to no finite loss is not kept
        on_host = self.runtime.on_host
        state = {
            "version": STATE_VERSION,
            "step": self.step,
            "model": on_host(self.model.state_dict()),
            "optimizer": on_host(self.optimizer.state_dict()),
            "random": self.runtime.random_state(),
            "loader": self._loader_state,
            "description": self.description,
        }
        saved: Checkpoint | None
        if isinstance(self.checkpoints, PartFolder):
            saved = self.checkpoints.save_part(self.step, state)
        else:
            saved = self.checkpoints.save(self.step, state)
        self._saved_step, self._saved_s = self.step, time.monotonic()
        if saved is not None:
            self.logs.tell(f"saved {self.checkpoints.url}/{saved.name}")
            self.task.picture(state["model"], self.step, self.logs)

    def _take(self, where: str, state: dict[str, Any]) -> None:
        if state.get("version") != STATE_VERSION:
            raise UsageError(f"{where}: version {state.get('version')}, this program reads {STATE_VERSION}")
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.runtime.cut_as_weights(moments_of(self.optimizer))
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise UsageError(f"{where}: of another model than --model ({reason}); use the same flags") from None
        self.loader.load_state_dict(state["loader"])
        self.runtime.set_random_state(state["random"])
        self.step = self._saved_step = int(state["step"])
        theirs = state["description"]
        for name in sorted(theirs.keys() & self.description.keys()):
            if theirs[name] != self.description[name]:
                self.logs.tell(f"note: --{name} was {theirs[name]}, goes on with {self.description[name]}")

    @property
    def _epoch_samples(self) -> int:
        return self.loader.order.passes * self.loader.order.num_samples
