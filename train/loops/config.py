"""Settings of the training loop: when it logs, evaluates, saves and stops. Pure functions of the step."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from dataprep.messages import counted
from loaders.order import Order

AUTOMATIC = "automatic"
"""Value of --resume that means the newest valid checkpoint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopConfig:
    """Settings of when a run logs, evaluates, saves and stops, and of how messages name the entry's flags.

    An interval of 0 turns its reason off.
    """

    epochs: int
    max_steps: int = 0
    """Number of steps after which the run ends, without a change of the learning rate's schedule; 0: all epochs."""
    log_interval_steps: int = 20
    log_interval_epochs: int = 0
    eval_interval: int = 1
    """Epochs between evaluations; if this is not 0, the last epoch is always evaluated."""
    ckpt_interval: int = 20
    """Epochs between checkpoints; the end of the run is always saved."""
    first_saved_epoch: int = 0
    """Index of the first epoch that is saved, and then every `ckpt_interval`-th. long_seq_mae saves after its first
    epoch (0), vit_10b_fsdp_example after its tenth (9)."""
    ckpt_interval_steps: int = 0
    ckpt_interval_minutes: float = 0.0
    profile_steps: tuple[int, int] | None = None
    """First step that is traced, and the first one after it that is not."""
    flag_prefix: str = "--"
    """Prefix of a flag's name on the entry's command line."""
    resume_hint: str = "--resume automatic continues it"
    """How to continue a stopped run, for its last message."""
    anew_hint: str = (
        "to begin a new run with the checkpoint's weights, give --init {words} in place of --resume, and another "
        "--output_dir"
    )
    """What to do if the dataset was built anew since a checkpoint, whose path or URL takes the place of {words}."""
    batch_hint: str = "a smaller batch"
    """What to choose if there are too few images for a batch, for the message."""

    def last_step(self, order: Order) -> int:
        """Return the step after which the run ends."""
        total_steps = order.first_batch(self.epochs)
        return min(total_steps, self.max_steps or total_steps)

    def is_log_due(self, step: int, ended: range) -> bool:
        """Return whether a line is logged after a step.

        Args:
            step: Number of updates that were done.
            ended: Epochs that ended with this step, as `ended_epochs` returns them.
        """
        return _is_multiple(step, self.log_interval_steps) or _any_multiple(ended, self.log_interval_epochs)

    def is_evaluation_due(self, ended: range) -> bool:
        """Return whether the model is evaluated when these epochs have ended."""
        return _any_multiple(ended, self.eval_interval) or (self.eval_interval > 0 and self.epochs in ended)

    def is_save_due(self, step: int, ended: range) -> bool:
        """Return whether a checkpoint is due by the count of steps or epochs; arguments as for `is_log_due`."""
        since_first = (epoch - 1 - self.first_saved_epoch for epoch in ended)
        by_epoch = any(since >= 0 and since % self.ckpt_interval == 0 for since in since_first)
        return by_epoch or self.epochs in ended or _is_multiple(step, self.ckpt_interval_steps)

    def is_save_due_after(self, elapsed_s: float) -> bool:
        """Return whether a checkpoint is due by the time since the last one."""
        return self.ckpt_interval_minutes > 0 and elapsed_s >= 60 * self.ckpt_interval_minutes


def ended_epochs(order: Order, step: int) -> range:
    """Return the numbers of epochs, counted from 1, that end with a step: none in the middle of an epoch.

    Where an epoch is shorter than a batch, several may end with the same step.
    """
    if step < 1 or order.first_batch(order.epoch_of(step)) != step:
        return range(0)
    return range(order.epoch_of(step - 1) + 1, order.epoch_of(step) + 1)


def resumed_position(order: Order, epochs: int, step: int) -> str:
    """Return the end of a message about a resumed run: how much of its epoch is done; empty where none is left."""
    samples, position = order.epoch_samples, step * order.global_batch
    epoch, done = divmod(position, samples)
    last = order.first_batch(epochs) * order.global_batch
    if position >= last:
        return ""
    end = min((epoch + 1) * samples, order.end or inf)
    left_out = f", {end - last:,} at the end do not fill a batch" if end > last else ""
    follow = min(end, last) - position
    return f": {done:,} of the {samples:,} images of epoch {epoch} are done, {follow:,} follow{left_out}"


def trained_images(order: Order, epochs: int, step: int, first_step: int = 0) -> str:
    """Return a message at the end of a run: how many images were planned, trained, passed over and left out.

    Args:
        order: Order of the images.
        epochs: Epochs of the run.
        step: Step after which the run ended.
        first_step: Step after which it began, above 0 where it began with a later epoch.
    """
    planned, steps, of = epochs * order.epoch_samples, order.first_batch(epochs), f"of {counted(epochs, 'epoch')}"
    if order.end is not None and order.end < planned:
        planned, of = order.end, "until the end of the mixture"
    trained, before = (step - first_step) * order.global_batch, first_step * order.global_batch
    text = f"trained {trained:,} of the {planned:,} images {of}"
    if before:
        text += f"; the run began after the first {before:,}"
    left_out = planned - steps * order.global_batch
    if step < steps or not left_out:
        return text
    return f"{text}; the last {left_out:,} did not fill a batch of {order.global_batch:,}"


def _is_multiple(count: int, interval: int) -> bool:
    return interval > 0 and count % interval == 0


def _any_multiple(counts: range, interval: int) -> bool:
    return any(_is_multiple(count, interval) for count in counts)
