"""The training loop of all entries: batches in, log lines, evaluations and checkpoints out, exactly resumable.

A batch of the loader is one update of the weights, even if its gradient is accumulated over several parts. So the state
after an update is the backend's (weights, optimiser, random generators) and the loader's position.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Generic, NoReturn, TypeVar

from dataprep.dataset.paths import named
from dataprep.errors import DataprepError, UndecidedError, UsageError
from dataprep.messages import counted, quoted, shell_words
from loaders.diagnosis.findings import Options
from loaders.engine.batch import LoaderState
from loaders.loader import Loader
from loaders.metrics.callback import MetricsCallback
from train.checkpoints.checkpoint import PARENTS, CheckpointFolder, load_any
from train.checkpoints.files import CLASSES, STATE_VERSION, State, check_state, taking_position
from train.loops.backend import (
    AUTOMATIC,
    Backend,
    LoopConfig,
    Update,
    UpdateOverflowError,
    ended_epochs,
    resumed_position,
    trained_images,
)
from train.optim.schedule import Schedule
from train.telemetry.goodput import COMPUTE, Goodput, goodput_text, process_start_s
from train.telemetry.logs import Logs, StepProfile

Item = TypeVar("Item")


class StepMonitor:
    """Times waits and steps. A step lasts from the delivery of a batch until the next one is requested.

    If steps are only queued on a device, the loop waits inside a step for room in the queue, so the shares are right
    over several steps, but not for each.

    Args:
        compute_images_per_s: Rate of the device fed from memory, if it is known (`dataprep diagnose` measures it).
    """

    def __init__(self, *, compute_images_per_s: float | None = None) -> None:
        self._compute_images_per_s = compute_images_per_s
        self._restart()

    def waiting(self, batches: Iterable[Item], goodput: Goodput) -> Iterator[Item]:
        """Yield the batches, and time the wait for each, also as `input` of the run."""
        iterator = iter(batches)
        while True:
            started_s = time.perf_counter()
            try:
                with goodput.during("input"):
                    batch = next(iterator)
            except StopIteration:
                return
            self._wait_s += time.perf_counter() - started_s
            yield batch

    def stepped(self, images: int) -> None:
        """Count a step that was finished, or queued on the device; `images_per_s` counts the same images."""
        self._steps += 1
        self._images += images

    def take(self) -> dict[str, float]:
        """Return `images_per_s`, `wait_share` (0..1), `step_s` and `utilisation` (0..1) since the last call.

        The utilisation is MLPerf Storage's: the rate, divided by the rate of the device fed from memory. If that is not
        known, it is the share of the time while the loop does not wait.
        """
        elapsed_s = max(time.perf_counter() - self._started_s, 1e-9)
        images_per_s = self._images / elapsed_s
        wait_share = min(1.0, self._wait_s / elapsed_s)
        known = self._compute_images_per_s
        found = {
            "images_per_s": images_per_s,
            "wait_share": wait_share,
            "step_s": elapsed_s / max(1, self._steps),
            "utilisation": 1 - wait_share if known is None else min(1.0, images_per_s / known),
        }
        self._restart()
        return found

    def _restart(self) -> None:
        self._started_s = time.perf_counter()
        self._wait_s = 0.0
        self._steps = self._images = 0


BackendT = TypeVar("BackendT", bound=Backend)
_DIGITS = 6
"""Significant digits of rates, shares, times, epochs and learning rates in a log line."""
_START_EPOCH = "start_epoch"
"""Flag of a run that begins with a later epoch; a resumed run has it only in its checkpoint."""
_WITHOUT_SHAPE = ("num_heads",)
"""Flags of a model that no shape of its weights shows."""


@dataclass(kw_only=True)
class Training(Generic[BackendT]):
    """A run: backend, loader and settings of its steps, its logs and its checkpoints."""

    config: LoopConfig
    backend: BackendT
    schedule: Schedule
    loader: Loader
    logs: Logs
    checkpoints: CheckpointFolder | None
    """Folder for checkpoints; None: nothing is saved."""
    lr_shares: Mapping[int, float] = field(default_factory=dict)
    """Learning rate with batches of a size, as a share of the schedule's; 1 with sizes that are not here."""
    description: Mapping[str, Any] = field(default_factory=dict)
    """Flags of the run by their names, kept in checkpoints."""
    step: int = 0
    """Number of updates that were done."""
    _lr: float = 0.0
    """Learning rate of the last update."""
    _batch_size: int = 0
    """Images of the last update."""
    _loader_state: LoaderState | None = None
    _branch: tuple[str, Sequence[str] | None] | None = None
    """Checkpoint after which this run begins a branch, and those before it."""
    _evaluated_step: int = 0
    """Step of the last evaluation."""
    _report_loader: MetricsCallback | None = None
    """Logs numbers of the loader with every log line, if the logs take them."""
    _saved_s: float = field(default_factory=time.monotonic)
    _goodput: Goodput = field(default_factory=lambda: Goodput(process_start_s()))

    def __post_init__(self) -> None:
        self._unread = Unread(self.logs.folder, place=self.logs.place)

    def resume(self, where: str) -> None:
        """Continue from a checkpoint, or check that a new run does not mix with an older one.

        Args:
            where: `automatic`: the newest valid one of the branch in use in `checkpoints`, if any; a path or URL, or
                a step of `checkpoints`, after which a branch begins; or '': a new run.

        Raises:
            UsageError: The checkpoint is from another model or sequence of batches, or of a kind that cannot be
                continued here; the folder of a new run has checkpoints; or all of those to continue are damaged.
            FormatError: The checkpoint is damaged.
        """
        if not where:
            if self.checkpoints is not None and self.checkpoints.list():
                raise UsageError(
                    f"{self.checkpoints.url}: has checkpoints of a run; continue it with `resume` automatic, or "
                    "choose another `output_dir`"
                )
            return
        with self._goodput.during("restore"):
            self._resume(where)

    def _resume(self, where: str) -> None:
        if self.checkpoints is None and (where == AUTOMATIC or where.isdecimal()):
            raise UsageError(f"`resume` {where} looks in `output_dir`, which is empty; give both")
        if self.checkpoints is None or where != AUTOMATIC:
            if self.checkpoints is not None and where.isdecimal():
                where = self.checkpoints.at_step(int(where))
            state = load_any(where, self.checkpoints)
            parents = state.get(PARENTS)
            self._branch = where.rpartition("/")[2], parents if isinstance(parents, list) else None
        else:
            found = self.checkpoints.newest_valid(self.logs.tell, move_damaged=self.backend.is_first)
            self.backend.check_same_checkpoint(0 if found is None else found[0].step, self.checkpoints.url)
            if found is None and self.checkpoints.current():
                raise UsageError(
                    f"{self.checkpoints.url}: all of its checkpoints are damaged; remove them to start a new run, or "
                    "choose another folder"
                )
            if found is None:
                self.logs.tell(f"{self.checkpoints.url}: no checkpoint yet, starting a new run")
                return
            where, state = f"{self.checkpoints.url}/{found[0].name}", found[1]
        self._restore(where, state)
        position = "" if self._is_packed else resumed_position(self.loader.order, self.config.epochs, self.step)
        self.logs.tell(f"resumed after step {self.step}, from {where}{position}")

    def begin_with(self, where: str) -> None:
        """Take the weights of a checkpoint for a new run, which begins at the first image with moments of its own.

        Raises:
            UsageError: There is no such checkpoint, or it is from another model.
            FormatError: The checkpoint is damaged.
        """
        state, changes = self._checked(where, load_any(where))
        self.backend.take_weights(where, state, self._named(changes))
        self.logs.tell(f"a new run with the weights of {where}, which were saved after step {state['step']}")

    def run(self) -> int:
        """Train to the end; return the exit code: 0, or `STOPPED_EXIT_CODE` after a signal."""
        total_steps = self.loader.order.first_batch(self.config.epochs)
        if total_steps < 1:
            raise UsageError(
                f"{self.loader.order.num_samples:,} images are too few for a batch of "
                f"{self.loader.config.batch_size:,} in {self.config.epochs} epochs; choose {self.config.batch_hint}"
            )
        if self.checkpoints is not None:
            self.checkpoints.remove_unfinished()
            if self._branch is not None and (self.checkpoints.is_own or self.backend.is_first):
                self.checkpoints.begin_branch(*self._branch)
        epoch = self._epoch if self.step else 0.0
        self.logs.open(step=self.step, total_steps=total_steps, epoch=epoch, goodput=self._goodput)
        self._report_loader = (
            MetricsCallback(self.loader, self.logs.loader, every=1) if self.logs.takes_loader else None
        )
        folder = self.logs.trace_folder(self.loader.config.rank)
        profile = StepProfile(self.config.profile_steps, folder, self.backend.profile, self.logs.asked_s)
        try:
            with self._stop_signals() as stop, contextlib.closing(profile):
                stopped = self._train(stop, profile)
            if not stopped:
                self.logs.ended(self.step, self._epoch)
                if not self._is_packed:
                    self.logs.tell(trained_images(self.loader.order, self.config.epochs, self.step, self._first_step))
                if skipped := self._skipped:
                    self.logs.tell(
                        f"{counted(skipped, 'image')} could not be read and took no part in the training; "
                        f'run "dataprep verify {shell_words(self.loader.dataset.url)}" to see which'
                    )
            self.logs.tell(goodput_text(self._goodput.seconds()))
        finally:
            self.logs.close()
            self.loader.close()
            self.backend.close()
        if stopped:
            self.logs.tell(f"stopped by a signal after step {self.step}; {self.config.resume_hint}")
        return STOPPED_EXIT_CODE if stopped else 0

    def diagnose(self, model: str, options: Options) -> int:
        """Measure what the run would wait for, with its own updates; return the exit code."""
        from train.telemetry.diagnosis import diagnose_run

        with self.loader, contextlib.closing(self.logs):
            found = diagnose_run(
                self.loader,
                self.backend,
                model=model,
                transfer_ahead=self.backend.transfer_ahead,
                folder=self.logs.folder,
                options=options,
            )
        return UndecidedError.exit_code if found.undecided else 0

    def _stop_signals(self) -> AbstractContextManager[Stop]:
        if self.backend.catches_signals:
            return stop_signals(SIGNALS, self._announce_stop)
        return interrupt_as_sigterm(self._announce_stop)

    def _announce_stop(self) -> None:
        when = "this step" if self.loader.config.world_size == 1 else "the next log line"
        if not self.backend.catches_signals:
            when = "the same step of all processes"
        saved = "without" if self.checkpoints is None else "with"
        self.logs.tell(
            f"stopping after {when}, {saved} a checkpoint; a second signal ends the run at once, without one"
        )

    def _train(self, stop: Stop, profile: StepProfile) -> bool:
        """Do all remaining steps; return whether a signal came."""
        last_step = self.config.last_step(self.loader.order)
        if self.step < last_step:
            compiling = "; the network is compiled first, which may take minutes" if self.backend.compiles else ""
            first = max(self.step, self._first_step) + 1
            last = max(first, last_step)
            self.logs.tell(f"training on {self.backend.name}: updates {first:,} to {last:,}{compiling}")
        if self._is_evaluation_due() and not self._evaluate(stop):  # a signal had interrupted this evaluation
            return True
        monitor = StepMonitor()
        self._goodput.enter(COMPUTE)
        while self.step < last_step:
            with contextlib.closing(self.backend.batches(self.loader)) as batches:
                for batch in monitor.waiting(batches, self._goodput):
                    profile.before(self.step)
                    is_new = self.loader.config.batch_size != self._batch_size
                    with self._goodput.during("compile" if is_new and self.backend.compiles else COMPUTE):
                        self._update(batch)
                    monitor.stepped(self._batch_size)
                    if self._report(monitor, stop, last_step):
                        return True
                    if self.step >= last_step:
                        break
        return stop.asked

    def _update(self, batch: Any) -> None:
        config, order, before = self.loader.config, self.loader.order, self._batch_size
        number = order.batch_at(int(batch.state["position"])) - 1
        size = self._batch_size = config.batch_size
        self._lr = self.schedule.at(order.epochs_done(order.batch_start(number))) * self.lr_shares.get(size, 1.0)
        if before and size != before:
            compiling = "; the network is compiled again" if self.backend.compiles else ""
            self.logs.tell(
                f"update {number + 1:,}: batches of {size:,} images from here on, {before:,} before; the learning rate "
                f"is {_rounded(self._lr):g}{compiling}"
            )
        first = number * size
        positions = range(first + config.rank, first + size, config.world_size)
        try:
            numbers = self.backend.update(batch, Update(step=self.step, lr=self._lr, positions=positions))
        except UpdateOverflowError as error:
            self._unread.overflowed(number + 1, batch.keys, str(error))
        self.step = number + 1
        self._loader_state = batch.state
        self._unread.add(self.step, numbers, batch.keys)

    def _report(self, monitor: StepMonitor, stop: Stop, last_step: int) -> bool:
        """Log, evaluate and save if that is due after a step; return whether a signal ends the run here."""
        stopped = self.backend.agree_to_stop(stop.asked, self.step)
        done = stopped or self.step >= last_step
        ended = ended_epochs(self.loader.order, self.step)
        if done or self.config.is_log_due(self.step, ended):
            self._log(monitor)
        if done or self._is_save_due(ended):
            self._save()  # before the evaluation, which may fail or take longer than a signal allows
        if self._is_evaluation_due() and not stopped:
            if not self._evaluate(stop):
                stopped = True
                self._save()
            monitor.take()  # the time of an evaluation does not count for any step
        return stopped

    def _log(self, monitor: StepMonitor) -> None:
        means = self._unread.take()
        line = {"step": self.step, "epoch": self._epoch, "loss": means["loss"], **means, "lr": _rounded(self._lr)}
        line |= {name: _rounded(value) for name, value in monitor.take().items()}
        if skipped := self._skipped:
            line["skipped"] = skipped
        line["goodput"] = _rounded(self.logs.goodput(self.step))
        memory_bytes = self.backend.memory_bytes()
        self.logs.scalars(line if memory_bytes is None else line | {"memory_bytes": memory_bytes})
        if self._report_loader is not None:
            self._report_loader(self.step)

    def _evaluate(self, stop: Stop) -> bool:
        """Evaluate and log; return False if a signal interrupted the evaluation, which then stays due."""
        with self._goodput.during("evaluation"):
            found = self.backend.evaluate(lambda: stop.asked)
        if found is None:
            return False
        if found:
            self._unread.judge(self.step, found)
            self.logs.evaluation(self.step, self._epoch, found)
        self._evaluated_step = self.step
        if self.checkpoints is not None and self.backend.is_first and self._unread.saved_step == self.step:
            with self._goodput.during("checkpoint"):
                self.checkpoints.note_evaluated(self.step)
        return True

    def _is_evaluation_due(self) -> bool:
        ended = ended_epochs(self.loader.order, self.step)
        return self._evaluated_step < self.step and self.config.is_evaluation_due(ended)

    def _is_save_due(self, ended: range) -> bool:
        if self.config.is_save_due(self.step, ended):
            return True
        if not self.config.ckpt_interval_minutes:
            return False
        elapsed = self.config.is_save_due_after(time.monotonic() - self._saved_s)
        return self.backend.agree_on_time(elapsed, self.step)

    def _save(self) -> None:
        if self.checkpoints is None or self._unread.saved_step == self.step:
            return
        with self._goodput.during("checkpoint"):
            self._save_state()

    def _save_state(self) -> None:
        # No state is saved after a loss that is not finite, or with such weights; all processes notice it at this step.
        self._unread.check()
        self._unread.refuse(self.step, self.backend.not_finite())
        if self.checkpoints is not None and (self.backend.is_first or self.checkpoints.takes_parts):
            self._write(self.checkpoints)
        self._unread.saved_step, self._saved_s = self.step, time.monotonic()

    def _write(self, checkpoints: CheckpointFolder) -> None:
        state = {
            "version": STATE_VERSION,
            "step": self.step,
            "evaluated_step": self._evaluated_step,
            **self.backend.state(),
            "loader": self._loader_state,
            "description": self.description,
            CLASSES: list(self.loader.classes),
            PARENTS: [each.name for each in checkpoints.current()],
        }
        saved = checkpoints.save(self.step, state)
        if saved is not None:
            self.logs.tell(f"saved {checkpoints.url}/{saved.name}")
            self.backend.show(state, self.step, self.logs)

    def _restore(self, where: str, state: State) -> None:
        state, changes = self._checked(where, state)
        with taking_position(where):
            self.loader.check_build(state["loader"], self.config.anew_hint.format(words=shell_words(where)))
            self._check_decoder(where, state["loader"])
        self.backend.restore(where, state, self._named(changes))
        with taking_position(where):
            self.loader.load_state_dict(state["loader"])
            self.step = self._unread.saved_step = int(state["step"])
            is_evaluated = self.checkpoints is not None and self.checkpoints.is_evaluated(where.rpartition("/")[2])
            self._evaluated_step = self.step if is_evaluated else int(state.get("evaluated_step", self.step))
        if _START_EPOCH in self.description:
            self.description = {**self.description, _START_EPOCH: _start_epoch(state["description"])}
        for name, was, now in changes:
            self.logs.tell(f"note: {_field(name)} was {_shown(was)}, is now {_shown(now)}")

    def _check_decoder(self, where: str, loader_state: LoaderState) -> None:
        """Raise UsageError if images get other pixels from now on, unless that is allowed."""
        if (decoder := self.loader.other_decoder(loader_state)) and not self.config.allow_other_decoder:
            raise UsageError(
                f"{where}: its images were decoded by {quoted(decoder)}, whose pixels differ from those of the "
                "decoder here, or are not known; install the same one, or add `allow_other_decoder`"
            )

    def _checked(self, where: str, state: State) -> tuple[State, list[tuple[str, Any, Any]]]:
        """Check that a run saved a state; return it with this backend's entries, and the flags that have changed."""
        state = self.backend.converted(where, state)
        check_state(where, state, self.backend.saved_entries)
        changes = _changes(state["description"], self.description)
        for name, was, now in changes:
            if name in _WITHOUT_SHAPE:
                raise UsageError(
                    f"{where}: from another model: {_field(name)} was {_shown(was)}, is now "
                    f"{_shown(now)}; use the flags that it was trained with"
                )
        return state, changes

    def _named(self, changes: list[tuple[str, Any, Any]]) -> list[str]:
        """Return the flags of a checkpoint's run that have changed, for messages."""
        return [f"{_field(name)} {was}" for name, was, _ in changes]

    @property
    def _skipped(self) -> int:
        """Number of images that this host's loader has left out because they could not be read."""
        return sum(self.loader.snapshot().skipped.values()) if self.loader.config.on_error == "skip" else 0

    @property
    def _first_step(self) -> int:
        """Step after which the run began: above 0 if it began with a later epoch than the first."""
        return self.loader.order.first_batch(_start_epoch(self.description))

    @property
    def _is_packed(self) -> bool:
        """Whether a batch may leave out images that do not fit into its rows; they are not counted here."""
        return self.loader.config.packs is not None

    @property
    def _epoch(self) -> float:
        order = self.loader.order
        return _rounded(order.epochs_done(order.batch_start(self.step)))


def _rounded(value: float) -> float:
    """Return a number as a log line shows it; losses are not rounded, so that runs can be compared bit for bit."""
    return float(f"{value:.{_DIGITS}g}")


def _field(name: str) -> str:
    """Return a flag of a checkpoint's description as a message names it."""
    return f"`{name.replace('.', '_')}`"


def _shown(value: object) -> str:
    """Return a flag's value as a message shows it."""
    if value in (None, ""):
        return "not given"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _start_epoch(flags: object) -> int:
    """Return the epoch that a run with these flags began with."""
    found = flags.get(_START_EPOCH, 0) if isinstance(flags, Mapping) else 0
    return found if isinstance(found, int) else 0


def _changes(theirs: object, ours: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the flags with other values in the checkpoint's run: name, old value, new value."""
    if not isinstance(theirs, Mapping):
        return []
    # The flags left out say how a run begins; they mean nothing to a resumed run.
    both = sorted((theirs.keys() & ours.keys()) - {"allow_other_decoder", "init", "resume", _START_EPOCH})
    return [(name, theirs[name], ours[name]) for name in both if theirs[name] != ours[name]]


SIGNALS = (signal.SIGTERM, signal.SIGINT)
STOPPED_EXIT_CODE = 128 + signal.SIGTERM
SAME_S = 1.0
"""Time after the first signal during which others count as the same one: a terminal sends Ctrl-C to all its processes,
and the process that started this one may pass it on."""
_SHOW_CURSOR = b"\x1b[?25h\n"
"""Sequence that undoes a progress bar's changes to a terminal."""


class Stop:
    """Whether a signal came."""

    asked = False


@contextlib.contextmanager
def stop_signals(
    signals: Sequence[signal.Signals] = SIGNALS, announce: Callable[[], None] = lambda: None
) -> Iterator[Stop]:
    """Take the first signal as a request to stop; a second one ends the process at once, with code 128 + its number.

    Python runs a handler only between two of the main thread's instructions, and compiling a network may be one of them
    for minutes. So a thread reads the signals' numbers from a pipe, into which Python writes them as they come.

    Args:
        announce: Called by that thread after the first signal.
    """
    stop = Stop()

    def ask(_number: int, _frame: FrameType | None) -> None:
        stop.asked = True

    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    thread = threading.Thread(target=_watch, args=(reading, frozenset(signals), announce), daemon=True)
    thread.start()
    woken_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {each: signal.signal(each, ask) for each in signals}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(woken_before)
        os.close(writing)  # which ends the thread
        thread.join()
        os.close(reading)


@contextlib.contextmanager
def interrupt_as_sigterm(announce: Callable[[], None]) -> Iterator[Stop]:
    """Send this process SIGTERM at the first Ctrl-C, for a framework that stops all processes at SIGTERM; a second
    Ctrl-C ends this process at once. The framework decides whether they stop, never the `Stop`."""

    def pass_on() -> None:
        announce()
        os.kill(os.getpid(), signal.SIGTERM)

    with stop_signals((signal.SIGINT,), pass_on):
        yield Stop()


def _watch(pipe: int, signals: frozenset[int], announce: Callable[[], None]) -> None:
    """Announce the first signal, and end the process after the second one."""
    first_s = None
    while number := os.read(pipe, 1):
        if number[0] not in signals:
            continue
        if first_s is None:
            first_s = time.monotonic()
            announce()
        elif time.monotonic() - first_s > SAME_S:
            if sys.stderr.isatty():
                os.write(sys.stderr.fileno(), _SHOW_CURSOR)
            os._exit(128 + number[0])


_SHOWN_KEYS = 4
"""Number of keys in the message about a batch."""
_TO_TRY = "try a lower learning rate, a longer warm-up or a lower weight decay"


def refuse_not_finite(where: str, found: Mapping[str, float], advice: str) -> None:
    """Raise DataprepError if a number of an evaluation is not finite."""
    for name, value in found.items():
        if not math.isfinite(value):
            raise DataprepError(f"{where}: the {name} of the evaluation is {value}, expected a finite one; {advice}")


@dataclass(slots=True)
class Unread:
    """Numbers of the updates since the last reading."""

    folder: Path | None
    """Folder for a file with the keys of a batch whose loss is not finite."""
    saved_step: int = -1
    """Step of the newest checkpoint of the run; -1: there is none."""
    place: str = ""
    """Path or URL of the folder, for messages."""
    _updates: list[tuple[int, Mapping[str, Any], list[str]]] = field(default_factory=list)

    def add(self, step: int, numbers: Mapping[str, Any], keys: list[str]) -> None:
        """Note the scalars of one update, on the device, with `loss` among them, and the keys of its samples."""
        self._updates.append((step, numbers, keys))

    def check(self) -> None:
        """Check that the waiting losses are finite, without clearing them. Raises DataprepError if a loss is not
        finite."""
        for step, numbers, keys in self._updates:
            if not math.isfinite(loss := float(numbers["loss"])):
                self._end(step, f"the loss is {loss}, expected a finite one", str(loss), keys)

    def judge(self, step: int, found: Mapping[str, float]) -> None:
        """Check that the losses that wait, and then the numbers of an evaluation, are finite. Raises DataprepError if
        one is not finite."""
        self.check()
        refuse_not_finite(f"step {step}", found, f"{self._kept}; {_TO_TRY}")

    def take(self) -> dict[str, float]:
        """Return the means since the last call, and clear the numbers. Raises DataprepError if a loss is not finite."""
        self.check()
        updates, self._updates = self._updates, []
        names = updates[0][1] if updates else ()
        return {name: math.fsum(float(numbers[name]) for _, numbers, _ in updates) / len(updates) for name in names}

    def overflowed(self, step: int, keys: list[str], why: str) -> NoReturn:
        """Raise DataprepError because an update exceeds the range of numbers, or an earlier loss is not finite."""
        self.check()
        self._end(step, f"{why}, expected finite weights", "overflow", keys)

    def refuse(self, step: int, names: list[str]) -> None:
        """Raise DataprepError if arrays that are about to be saved have values that are not finite."""
        if names:
            more = f" and {counted(len(names) - 1, 'more array')}" if len(names) > 1 else ""
            raise DataprepError(
                f"step {step}: values that are not finite in {names[0]}{more}, expected finite ones in a checkpoint, "
                f"so none is written; {self._kept}; {_TO_TRY}"
            )

    @property
    def _kept(self) -> str:
        if self.saved_step < 0:
            return "nothing is kept, because no checkpoint was saved"
        return f"nothing after the checkpoint of step {self.saved_step:,} is kept"

    def _end(self, step: int, what: str, loss: str, keys: list[str]) -> NoReturn:
        where = ""
        if self.folder is not None:
            name = f"not-finite-{step:09d}.json"
            (self.folder / name).write_text(json.dumps({"step": step, "loss": loss, "keys": keys}) + "\n")
            where = f", all of them in {self.place}/{name}"
        raise DataprepError(
            f"step {step}: {what}; of {len(keys):,} samples the first are "
            f"{', '.join(map(named, keys[:_SHOWN_KEYS]))}{where}; {self._kept}; look at the samples, or {_TO_TRY}"
        )
