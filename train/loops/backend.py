"""Backend: what the training loop needs from a framework and its devices; `torch.py` and `jax.py` implement it.

Shapes: N images of this host, H x W pixels, C = 3 channels.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dataprep.errors import DataprepError
from loaders.engine.batch import LoaderState
from loaders.loader import Loader
from train.checkpoints.state import State
from train.telemetry.logs import Logs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
    """Return how many images an evaluation of a whole split left out, as `skipped`; nothing if none.

    Args:
        validation: Loader of the evaluation, over every image once.
        images: Images that were counted.

    Raises:
        DataprepError: No image could be read, or the count is wrong.
    """
    expected = validation.order.num_samples
    if not images:
        raise DataprepError(f"{validation.dataset.url}: none of {expected:,} validation images could be read")
    if images > expected or (images < expected and validation.config.on_error != "skip"):
        raise DataprepError(f"evaluation counted {images:,} images, the split has {expected:,}; this is a bug")
    return {"skipped": expected - images} if images < expected else {}


class DeviceBatch(Protocol):
    """A batch on the devices, as the loop sees it."""

    @property
    def keys(self) -> list[str]:
        """Keys of this host's samples."""

    @property
    def state(self) -> LoaderState:
        """State of the loader after this batch, for its `load_state_dict`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """One update of the weights."""

    step: int
    """Number of updates that were done before."""
    lr: float
    positions: range
    """Global positions of this host's samples, counted over all epochs."""


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
    def saves_evaluated_step(self) -> bool:
        """Whether checkpoints record the last evaluation, so that a resumed run does an evaluation that a signal
        interrupted."""

    @property
    def saved_entries(self) -> tuple[str, ...]:
        """Names of the entries of `state`."""

    def batches(self, loader: Loader) -> Generator[Any]:
        """Yield the rest of the loader's epoch as `DeviceBatch`es."""

    def update(self, batch: Any, update: Update) -> Mapping[str, Any]:
        """Do one update with a batch; return scalars on the device, including `loss`, without waiting for them."""

    def evaluate(self, is_stopped: Callable[[], bool]) -> Mapping[str, float] | None:
        """Evaluate the model on validation data.

        Args:
            is_stopped: Returns whether a signal came.

        Returns:
            Numbers by their names, empty without validation data; None if a signal interrupted the evaluation.
        """

    def agree_to_stop(self, asked: bool, step: int) -> bool:
        """Return whether all processes stop after this step, because a signal reached one of them."""

    def agree_on_time(self, elapsed: bool, step: int) -> bool:
        """Return whether some process's clock says that it is time; processes that must act at the same step get the
        same answer."""

    def check_same_checkpoint(self, step: int, url: str) -> None:
        """Check that all processes found a checkpoint of the same step; step 0 means no checkpoint.

        Raises:
            UsageError: The processes see different folders.
        """

    def not_finite(self) -> list[str]:
        """Return the names of arrays in `state` with values that are not finite, which the devices reduce.

        All processes call this at the same step; the list is empty in all of them or in none.
        """

    def state(self) -> State:
        """Return this backend's entries of a checkpoint, copied to the host."""

    def converted(self, where: str, state: State) -> State:
        """Return a state with this backend's entries, where another framework's can be continued; else the same state.

        Args:
            where: Path or URL of the checkpoint, for messages.
            state: All of its entries.
        """

    def restore(self, where: str, state: Mapping[str, Any], changes: list[str]) -> None:
        """Restore the entries of a checkpoint.

        Args:
            where: Path or URL of the checkpoint, for messages.
            state: All of its entries.
            changes: Flags with other values in the run that saved the checkpoint, e.g. `--model vit_base_patch16`.

        Raises:
            UsageError: The entries are those of another model or optimiser.
            FormatError: The entries are damaged.
        """

    def take_weights(self, where: str, state: Mapping[str, Any], changes: list[str]) -> None:
        """Take the weights of a checkpoint, and the statistics beside them, but no moments and no generators; otherwise
        as `restore`."""

    def show(self, state: Mapping[str, Any], step: int, logs: Logs) -> None:
        """Log a picture of what the weights of a saved state do, if the task has one."""

    def memory_bytes(self) -> int | None:
        """Return the bytes in use on the first device of this process; None if the device does not report them."""

    def profile(self, folder: Path) -> AbstractContextManager[None]:
        """Trace what runs inside the context, into a folder where TensorBoard finds it."""

    def put(self, images_NHWC: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> Any:
        """Copy a batch to the devices; return when it has arrived."""

    def try_step(self, resident: Any) -> None:
        """Do one update with a batch that `put` returned; return when the devices are done. For `--diagnose`."""

    @property
    def compute_threads(self) -> int:
        """Number of threads with which an update computes, where that can be changed, as on a CPU; 0 elsewhere."""

    def use_threads(self, count: int) -> None:
        """Compute with another number of threads from now on, where `compute_threads` is not 0. For `--diagnose`."""

    def close(self) -> None:
        """Close what was opened for evaluations."""
