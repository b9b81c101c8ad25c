"""Backend: the interface of a framework and its devices to the training loop; `torch.py` and `jax.py` implement it.

Shapes: N images of this host, H x W pixels, C = 3 channels.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dataprep.arrays import NDArray, np
from dataprep.errors import DataprepError
from dataprep.messages import counted
from loaders.loader import Loader
from loaders.order import Order
from train.checkpoints.files import State
from train.telemetry.logs import Logs

if TYPE_CHECKING:
    from torch import nn

AUTOMATIC = "automatic"
"""Value of `resume` that means the newest valid checkpoint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopConfig:
    """Settings of a run: when it logs, evaluates, saves and stops, and the advice in its messages.

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
    allow_other_decoder: bool = False
    """Whether a run goes on with other pixels of the same images, which another decoder makes."""
    resume_hint: str = "`resume` automatic continues it"
    """Advice for continuing a stopped run, for its last message."""
    anew_hint: str = (
        "to begin a new run with the checkpoint's weights, give `init` {words} in place of `resume`, and another "
        "`output_dir`"
    )
    """Advice if the dataset was rebuilt since a checkpoint; {words} is replaced by the checkpoint's path or URL."""
    batch_hint: str = "a smaller batch"
    """Advice if there are too few images for a batch."""

    def last_step(self, order: Order) -> int:
        """Return the step after which the run ends."""
        total_steps = order.first_batch(self.epochs)
        return min(total_steps, self.max_steps or total_steps)

    def is_log_due(self, step: int, ended: range) -> bool:
        """Return whether a line is logged after a number of updates, with which these epochs ended."""
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

    If an epoch is shorter than a batch, several may end with the same step.
    """
    if step < 1 or order.first_batch(order.epoch_of(step)) != step:
        return range(0)
    return range(order.epoch_of(step - 1) + 1, order.epoch_of(step) + 1)


def resumed_position(order: Order, epochs: int, step: int) -> str:
    """Return the end of a message about a resumed run: how much of its epoch is done; empty if none is left."""
    position = order.batch_start(step)
    epoch = order.epoch_at(position)
    first, end = order.first_position(epoch), order.first_position(epoch + 1)
    last = order.batch_start(order.first_batch(epochs))
    if position >= last:
        return ""
    samples, done = end - first, position - first
    if order.end is not None:
        end = min(end, order.end)
    left_out = f", {end - last:,} at the end do not fill a batch" if end > last else ""
    follow = min(end, last) - position
    return f": {done:,} of the {samples:,} images of epoch {epoch} are done, {follow:,} follow{left_out}"


def trained_images(order: Order, epochs: int, step: int, first_step: int = 0) -> str:
    """Return a message at the end of a run: how many images were planned, trained, passed over and left out.

    Args:
        step: Step after which the run ended.
        first_step: Step after which it began, above 0 if it began with a later epoch.
    """
    planned, steps, of = order.first_position(epochs), order.first_batch(epochs), f"of {counted(epochs, 'epoch')}"
    if order.end is not None and order.end < planned:
        planned, of = order.end, "until the end of the mixture"
    before = max(0, order.batch_start(first_step))
    trained = order.batch_start(step) - before
    text = f"trained {trained:,} of the {planned:,} images {of}"
    if before:
        text += f"; the run began after the first {before:,}"
    left_out = planned - order.batch_start(steps)
    if step < steps or not left_out:
        return text
    return f"{text}; the last {left_out:,} did not fill a batch of {order.global_batch:,}"


def _is_multiple(count: int, interval: int) -> bool:
    return interval > 0 and count % interval == 0


def _any_multiple(counts: range, interval: int) -> bool:
    return any(_is_multiple(count, interval) for count in counts)


DEVICES = ("xla", "tpu", "cuda", "cpu")
PRECISIONS = ("auto", "float32", "bfloat16")
"""Kinds of PyTorch's devices, and number formats of matrix products, by their names on command lines."""


class Devices(Protocol):
    """This process's share of the devices."""

    @property
    def rank(self) -> int:
        """Number of this process."""

    @property
    def world_size(self) -> int:
        """Number of processes, one on each host."""

    @property
    def num_devices(self) -> int:
        """Number of devices among which a batch is shared, of all processes together."""


class UpdateOverflowError(DataprepError):
    """An update exceeds the range of the weights' numbers, because of a flag such as the learning rate."""


def skipped_images(validation: Loader, images: int) -> dict[str, int]:
    """Return how many images an evaluation of a complete split left out, as `skipped`; nothing if none. Raises
    DataprepError if no image could be read, or the count is wrong."""
    expected = validation.order.num_samples
    if not images:
        raise DataprepError(f"{validation.dataset.url}: none of {expected:,} validation images could be read")
    if images > expected or (images < expected and validation.config.on_error != "skip"):
        raise DataprepError(f"evaluation counted {images:,} images, the split has {expected:,}; this is a bug")
    return {"skipped": expected - images} if images < expected else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """One update of the weights."""

    step: int
    """Number of updates that were done before."""
    lr: float
    positions: range
    """Numbers of this host's rows among those of all batches: the global positions of its samples, if the batch size
    has never changed, and if they are not of a mixture on several hosts."""


class Backend(Protocol):
    """One process's share of the devices, with the model and the optimiser on them."""

    @property
    def name(self) -> str:
        """Kind of the devices as shown in reports: `xla`, `cuda`, `cpu`, `tpu`, …"""

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes logs and checkpoints."""

    @property
    def transfer_ahead(self) -> int:
        """Number of batches that are sent to the devices ahead of the one that is trained on."""

    @property
    def compiles(self) -> bool:
        """Whether the first update compiles the network, which may take minutes."""

    @property
    def catches_signals(self) -> bool:
        """Whether the loop handles SIGTERM and SIGINT; False if the framework handles SIGTERM for several processes."""

    @property
    def saved_entries(self) -> tuple[str, ...]:
        """Names of the entries of `state`."""

    def batches(self, loader: Loader) -> Generator[Any]:
        """Yield the rest of the loader's epoch on the devices; each batch has the `keys` of this host's samples, and
        the loader's `state` after it."""

    def update(self, batch: Any, update: Update) -> Mapping[str, Any]:
        """Do one update with a batch; return scalars on the device, including `loss`, without waiting for them."""

    def evaluate(self, is_stopped: Callable[[], bool]) -> Mapping[str, float] | None:
        """Evaluate the model on validation data.

        Returns:
            Numbers by their names, empty without validation data; None if a signal interrupted the evaluation.
        """

    def agree_to_stop(self, asked: bool, step: int) -> bool:
        """Return whether all processes stop after this step, because a signal reached one of them."""

    def agree_on_time(self, elapsed: bool, step: int) -> bool:
        """Return whether some process's clock says that it is time; processes that must act at the same step get the
        same answer."""

    def check_same_checkpoint(self, step: int, url: str) -> None:
        """Raise UsageError if processes found checkpoints of different steps; step 0 means no checkpoint."""
        return

    def not_finite(self) -> list[str]:
        """Return the names of arrays in `state` with values that are not finite, which the devices reduce.

        All processes call this at the same step; the list is empty in all of them or in none.
        """

    def state(self) -> State:
        """Return this backend's entries of a checkpoint, copied to the host."""

    def converted(self, where: str, state: State) -> State:
        """Return a state with this backend's entries: another framework's state is converted if it can be continued."""

    def restore(self, where: str, state: Mapping[str, Any], changes: list[str]) -> None:
        """Restore the entries of a checkpoint.

        Args:
            changes: Flags with other values in the run that saved the checkpoint, e.g. "`model` vit_base_patch16".

        Raises:
            UsageError: The entries are of another model or optimiser.
            FormatError: The entries are damaged.
        """

    def take_weights(self, where: str, state: Mapping[str, Any], changes: list[str]) -> None:
        """Take the weights of a checkpoint and their statistics, no moments or generators; otherwise as `restore`."""

    def show(self, state: Mapping[str, Any], step: int, logs: Logs) -> None:
        """Log a picture of the predictions of a saved state's weights, if the task has one."""
        return

    def memory_bytes(self) -> int | None:
        """Return the bytes in use on the first device of this process; None if the device does not report them."""

    def profile(self, folder: Path) -> AbstractContextManager[None]:
        """Trace what runs inside the context, into a folder where TensorBoard finds it."""

    def put(self, images_NHWC: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> Any:
        """Copy a batch to the devices; return when it has arrived."""

    def step(self, resident: Any) -> None:
        """Do one update with a batch that `put` returned; return when the devices are done. For `diagnose`."""

    @property
    def compute_threads(self) -> int:
        """Number of threads of an update, if it can be changed, as on a CPU; otherwise 0."""
        return 0

    def use_threads(self, count: int) -> None:
        """Compute with another number of threads from now on, if `compute_threads` is not 0. For `diagnose`."""
        return

    def close(self) -> None:
        """Close the loaders of evaluations."""
        return


COPIES_IN_TRAINING = 4
"""Memory of training divided by the weights' memory: weights, gradients and AdamW's two moments, sharded alike."""


def sharded_dimension(shape: Sequence[int], num_devices: int) -> int | None:
    """Return the (first) longest dimension that all devices can share equally; None if there is none."""
    dividable = [dimension for dimension, length in enumerate(shape) if length and length % num_devices == 0]
    return max(dividable, key=lambda dimension: shape[dimension], default=None)


@dataclass(frozen=True, slots=True)
class Share:
    """Share of one parameter that a device holds."""

    name: str
    shape: tuple[int, ...]
    cut: int | None
    """Dimension along which the parameter is sharded; None: every device holds all of it."""
    bytes: int
    """Size of the complete parameter."""
    bytes_per_device: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of how a model is sharded among a number of devices."""

    num_devices: int
    shares: tuple[Share, ...]

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        return sum(prod(share.shape) for share in self.shares)

    @property
    def bytes(self) -> int:
        """Size of all weights."""
        return sum(share.bytes for share in self.shares)

    @property
    def bytes_per_device(self) -> int:
        """Size of the weights on one device."""
        return sum(share.bytes_per_device for share in self.shares)

    @property
    def training_bytes_per_device(self) -> int:
        """Size of weights, gradients and moments on one device; activations come on top."""
        return COPIES_IN_TRAINING * self.bytes_per_device

    def to_document(self) -> dict[str, object]:
        """Return the plan as a JSON document."""
        return {
            "devices": self.num_devices,
            "parameters": self.parameters,
            "bytes": self.bytes,
            "bytes_per_device": self.bytes_per_device,
            "training_bytes_per_device": self.training_bytes_per_device,
            "weights": [asdict(share) for share in self.shares],
        }


def plan_of(model: nn.Module, num_devices: int) -> Plan:
    """Plan the share of a model on each device; the model may be on the `meta` device, and is not wrapped for FSDP."""
    return Plan(num_devices, tuple(_share(name, each, num_devices) for name, each in model.named_parameters()))


def _share(name: str, weight: nn.Parameter, num_devices: int) -> Share:
    cut = sharded_dimension(weight.shape, num_devices)
    held = weight.nbytes if cut is None else weight.nbytes // num_devices
    return Share(name, tuple(weight.shape), cut, weight.nbytes, held)


def plan_text(plan: Plan) -> str:
    """Return a plan as a table with one line for each parameter."""
    rows = [
        (share.name, _shape_text(share, plan.num_devices), f"{share.bytes:,}", f"{share.bytes_per_device:,}")
        for share in plan.shares
    ]
    header = ("weight", f"shape, cut by {plan.num_devices}", "bytes", "bytes per device")
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(4)]
    lines = [
        f"{name:<{widths[0]}}  {shape:<{widths[1]}}  {whole:>{widths[2]}}  {held:>{widths[3]}}"
        for name, shape, whole, held in (header, *rows)
    ]
    return "\n".join(
        [
            *lines,
            "",
            f"{plan.parameters:,} parameters, {plan.bytes:,} bytes; on each of {plan.num_devices:,} devices "
            f"{plan.bytes_per_device:,}",
            f"with gradients and AdamW's moments {plan.training_bytes_per_device:,}, before activations",
        ]
    )


def _shape_text(share: Share, num_devices: int) -> str:
    lengths = [
        f"{length}/{num_devices}" if dimension == share.cut else str(length)
        for dimension, length in enumerate(share.shape)
    ]
    return " x ".join(lengths) or "1"
